from __future__ import annotations

import math
from typing import Any

import pytest

from doppler import Cluster, Device, Link
from doppler.cluster.device import MAX_DEVICES
from doppler.cluster.link import fully_connected
from doppler.errors import ClusterError


def pair(*links: Link, channels: tuple[str, ...] = ()) -> Cluster:
    return Cluster("pair", (Device("a"), Device("b")), links, channels)


def test_uniform_has_equal_devices_and_free_links() -> None:
    cluster = Cluster.uniform(3, memory=5.0)
    assert cluster.name == "uniform:3"
    assert cluster.n_devices == 3
    assert cluster.n_channels == 0
    assert [device.name for device in cluster.devices] == ["gpu0", "gpu1", "gpu2"]
    assert {device.memory for device in cluster.devices} == {5.0}
    assert len(cluster.links) == 6
    assert {link.channel for link in cluster.links} == {-1}
    assert {link.latency for link in cluster.links} == {0.0}


def test_uniform_of_one_has_no_link() -> None:
    assert Cluster.uniform(1).links == ()


@pytest.mark.parametrize("count", [0, -1, 2.5, MAX_DEVICES + 1])
def test_uniform_needs_a_whole_number_of_devices(count: float) -> None:
    with pytest.raises(ClusterError, match=rf"devices is {count}, must be a whole number"):
        Cluster.uniform(count)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [math.inf, math.nan])
def test_uniform_needs_a_finite_number_of_devices(count: float) -> None:
    with pytest.raises(ClusterError, match="must be a whole number from 1 to 1024"):
        Cluster.uniform(count)  # type: ignore[arg-type]


def test_accelerators_move_tensors_over_the_host_in_turns() -> None:
    cluster = Cluster.accelerators_and_cpus(2, 2, 16e9)
    assert [device.name for device in cluster.devices] == ["gpu0", "gpu1", "cpu0", "cpu1"]
    assert [device.kind for device in cluster.devices] == ["gpu", "gpu", "cpu", "cpu"]
    assert [device.memory for device in cluster.devices] == [16e9, 16e9, math.inf, math.inf]
    assert cluster.channel_names == ("gpu0 to host", "gpu1 to host")
    links = {(link.source, link.target): link for link in cluster.links}
    assert links[0, 1].hops == 2.0
    assert links[0, 2].hops == links[3, 1].hops == 1.0
    assert links[2, 3].hops == 0.0
    assert links[2, 3].bandwidth == math.inf
    assert links[0, 1].bandwidth == links[0, 2].bandwidth / 2
    assert [links[0, 1].channel, links[2, 0].channel, links[2, 1].channel] == [0, 0, 1]
    assert links[2, 3].channel == -1


def test_accelerators_alone_and_cpus_alone() -> None:
    assert Cluster.accelerators_and_cpus(1, 0, 1.0).n_devices == 1
    assert Cluster.accelerators_and_cpus(0, 2, 1.0).n_channels == 0
    with pytest.raises(ClusterError, match="has no device"):
        Cluster.accelerators_and_cpus(0, 0, 1.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("flops", 0.0),
        ("flops", -1.0),
        ("flops", math.nan),
        ("memory_bandwidth", 0.0),
        ("memory", 0.0),
        ("slowdown", 0.0),
    ],
)
def test_device_numbers_must_be_positive(key: str, value: float) -> None:
    with pytest.raises(ClusterError, match=rf"'x': {key} is {value}, must be a .*number > 0"):
        Device("x", **dict[str, Any]({key: value}))


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_launch_overhead_must_be_finite(value: float) -> None:
    with pytest.raises(
        ClusterError, match=r"'x': launch_overhead is .*, must be a finite number >= 0"
    ):
        Device("x", launch_overhead=value)


def test_slowdown_must_be_finite() -> None:
    # An op that takes no time would take 0 * infinity, which is no number.
    with pytest.raises(
        ClusterError, match="device 'x': slowdown is inf, must be a finite number > 0"
    ):
        Device("x", slowdown=math.inf)


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ({"bandwidth": 0.0}, "link 0 -> 1: bandwidth is 0.0, must be a number > 0"),
        ({"bandwidth": math.nan}, "link 0 -> 1: bandwidth is nan, must be a number > 0"),
        ({"bandwidth": 1e-310}, "link 0 -> 1: bandwidth is 1e-310, too small"),
        ({"latency": -1.0}, "link 0 -> 1: latency is -1.0, must be a finite number >= 0"),
        ({"latency": math.inf}, "link 0 -> 1: latency is inf, must be a finite number >= 0"),
        ({"hops": -1.0}, "link 0 -> 1: hops is -1.0, must be a finite number >= 0"),
        ({"hops": math.nan}, "link 0 -> 1: hops is nan, must be a finite number >= 0"),
        ({"channel": -2}, "link 0 -> 1: channel is -2, must be a whole number >= -1"),
    ],
)
def test_link_rules(link: dict[str, float], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        Link(0, 1, **link)  # type: ignore[arg-type]


def test_a_cluster_needs_a_device() -> None:
    with pytest.raises(ClusterError, match="cluster 'none' has no device"):
        Cluster("none", (), ())


def test_a_cluster_is_not_too_large() -> None:
    devices = tuple(Device(f"d{i}") for i in range(MAX_DEVICES + 1))
    with pytest.raises(ClusterError, match="cluster 'huge': at most 1024 devices"):
        Cluster("huge", devices, ())


def test_names_are_unique() -> None:
    with pytest.raises(ClusterError, match="two devices are named 'a'"):
        Cluster("twins", (Device("a"), Device("a")), fully_connected(2))


def test_every_pair_has_one_link_in_each_direction() -> None:
    there, back = Link(0, 1), Link(1, 0)
    assert pair(there, back).n_devices == 2
    with pytest.raises(ClusterError, match="no link from 'b' to 'a'; every pair needs one"):
        pair(there)
    with pytest.raises(ClusterError, match=r"link \(0, 1\) is repeated or a loop"):
        pair(there, back, there)
    with pytest.raises(ClusterError, match=r"link \(1, 1\) is repeated or a loop"):
        pair(there, back, Link(1, 1))
    with pytest.raises(ClusterError, match=r"link \(0, 2\) names a missing device"):
        pair(there, back, Link(0, 2))
    with pytest.raises(ClusterError, match=r"link: source is -1, must be a whole number >= 0"):
        pair(there, back, Link(-1, 0))


def test_channels_have_names() -> None:
    assert pair(Link(0, 1, channel=0), Link(1, 0), channels=("bus",)).n_channels == 1
    with pytest.raises(ClusterError, match=r"link \(0, 1\) has an unnamed channel"):
        pair(Link(0, 1, channel=1), Link(1, 0), channels=("bus",))


def test_fully_connected_takes_channels_from_a_matrix() -> None:
    links = fully_connected(2, 5.0, 0.5, [[-1, 3], [4, -1]])
    assert links == (Link(0, 1, 5.0, 0.5, 3), Link(1, 0, 5.0, 0.5, 4))


@pytest.mark.parametrize("names", [("bus", "bus"), ("bus", "")])
def test_channel_names_are_unique_and_not_empty(names: tuple[str, str]) -> None:
    with pytest.raises(ClusterError, match=r"channel name '(bus)?' is empty or repeated"):
        pair(Link(0, 1, channel=0), Link(1, 0, channel=1), channels=names)
