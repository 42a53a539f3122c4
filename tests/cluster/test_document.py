from __future__ import annotations

import math
import os
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler import Cluster, Device, Graph, Problem
from doppler.cluster import Link, presets, save_cluster
from doppler.cluster.link import fully_connected
from doppler.errors import ClusterError, UnknownNameError

TWO = """
name: two
devices:
  - {name: gpu, count: 2, flops: 10, efficiency: 0.5, memory: 100}
links:
  - {between: [gpu, gpu], bandwidth: 4, latency: 0.5, channel: pair}
"""


def mixed(rule: str) -> Cluster:
    return Cluster.parse(
        f"""
devices:
  - {{name: gpu, count: 2, flops: 10}}
  - {{name: cpu, count: 2, kind: cpu, flops: 1, slowdown: 3, launch_overhead: 0.25}}
links:
  - {{between: [gpu, gpu], bandwidth: 40}}
  - {{between: [cpu, cpu], bandwidth: .inf}}
  - {{between: [gpu, cpu], bandwidth: 4, channel: {rule}}}
""",
        "mixed.yaml",
    )


def test_groups_and_rules() -> None:
    cluster = Cluster.parse(TWO, "two.yaml")
    assert cluster.name == "two"
    assert [device.name for device in cluster.devices] == ["gpu0", "gpu1"]
    assert {device.flops for device in cluster.devices} == {5.0}
    assert {device.memory for device in cluster.devices} == {100.0}
    assert [(link.source, link.target) for link in cluster.links] == [(0, 1), (1, 0)]
    assert {link.latency for link in cluster.links} == {0.5}
    assert cluster.channel_names == ("gpu0 to gpu1", "gpu1 to gpu0")


def test_a_group_of_one_keeps_its_name_and_the_file_gives_the_cluster_its_name() -> None:
    cluster = Cluster.parse("devices: [{name: solo, flops: 1}]", "dir/mine.yaml")
    assert cluster.name == "mine"
    assert [device.name for device in cluster.devices] == ["solo"]
    assert cluster.links == ()


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        ("none", []),
        (
            "pair",
            [f"gpu{a} to cpu{b}" for a in (0, 1) for b in (0, 1)]
            + [f"cpu{a} to gpu{b}" for a in (0, 1) for b in (0, 1)],
        ),
        ("source", ["gpu0 out", "gpu1 out", "cpu0 out", "cpu1 out"]),
        ("shared", ["gpu to cpu", "cpu to gpu"]),
    ],
)
def test_channel_rules(rule: str, names: list[str]) -> None:
    cluster = mixed(rule)
    assert list(cluster.channel_names) == names
    crossing = [link for link in cluster.links if (link.source < 2) != (link.target < 2)]
    assert len(crossing) == 8
    assert all((link.channel >= 0) == bool(names) for link in crossing)
    inside = [link for link in cluster.links if (link.source < 2) == (link.target < 2)]
    assert {link.channel for link in inside} == {-1}


def test_an_adapter_of_its_own_takes_turns_apart_from_other_links() -> None:
    cluster = Cluster.parse(
        """
devices:
  - {name: a, count: 2, flops: 1}
  - {name: b, count: 2, flops: 1}
links:
  - {between: [a, a], bandwidth: 9, channel: source}
  - {between: [b, b], bandwidth: 9}
  - {between: [a, b], bandwidth: 1, channel: source net}
""",
        "x",
    )
    assert {*cluster.channel_names} == {
        "a0 out",
        "a1 out",
        "a0 net out",
        "a1 net out",
        "b0 net out",
        "b1 net out",
    }
    channel = {(link.source, link.target): link.channel for link in cluster.links}
    assert channel[0, 2] == channel[0, 3] != channel[0, 1]
    assert channel[2, 0] == channel[2, 1]


def test_a_later_rule_replaces_an_earlier_one() -> None:
    cluster = Cluster.parse(TWO + "  - {between: [gpu, gpu], bandwidth: 8}\n", "x")
    assert {link.bandwidth for link in cluster.links} == {8.0}


def test_numbers_may_be_written_like_1e9() -> None:
    # YAML 1.1 reads 1e9, without a sign or a point, as text.
    cluster = Cluster.parse("devices: [{name: a, flops: 1e9, memory: 16e+9}]", "x")
    assert cluster.devices[0].flops == 1e9
    assert cluster.devices[0].memory == 16e9


ONE = "devices: [{name: a, flops: 1}]\n"
BOTH = "devices: [{name: a, flops: 1}, {name: b, flops: 1}]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.yaml: must be a mapping with devices, links, measured, name, source"),
        ("[]", "f.yaml: must be a mapping"),
        ("a: [", "f.yaml: not valid YAML"),
        ("a: \x00", "f.yaml: not valid YAML"),
        ("[" * 5000, "f.yaml: not"),
        ("!!python/object/apply:os.getcwd []", "f.yaml: not valid YAML"),
        ("device: []", "f.yaml: unknown key 'device': did you mean 'devices'?"),
        ("zzz: 1", "f.yaml: unknown key 'zzz'"),
        ("name: x", "f.yaml: devices is missing"),
        ("devices: []", "f.yaml: devices is [], must have at least 1 item"),
        ("devices: {}", "f.yaml: devices is {}, must be a list"),
        ("devices: [3]", "f.yaml: devices[0]: must be a mapping with count"),
        (
            "devices: [{name: a, flop: 1}]",
            "f.yaml: devices[0]: unknown key 'flop': did you mean 'flops'?",
        ),
        ("devices: [{flops: 1}]", "f.yaml: devices[0].name is missing"),
        (
            "devices: [{name: '', flops: 1}]",
            "f.yaml: devices[0].name is '', must have at least 1 character",
        ),
        (
            "devices: [{name: a, flops: 1}, {name: a, flops: 1}]",
            "f.yaml: devices[1]: name is 'a', must be a new one",
        ),
        (
            "devices: [{name: a, count: 0, flops: 1}]",
            "f.yaml: devices[0].count is 0, must be greater than or equal to 1",
        ),
        (
            "devices: [{name: a, count: true, flops: 1}]",
            "devices[0].count is True, must be a whole number",
        ),
        (
            "devices: [{name: a, count: 1.5, flops: 1}]",
            "devices[0].count is 1.5, must be a whole number",
        ),
        (
            "devices: [{name: a, count: 1000000000, flops: 1}]",
            "f.yaml: devices[0].count is 1000000000, must be less than or equal to 1024",
        ),
        ("devices: [{name: a}]", "f.yaml: devices[0].flops is missing"),
        ("devices: [{name: a, flops: fast}]", "devices[0].flops is 'fast', must be a number"),
        ("devices: [{name: a, flops: true}]", "devices[0].flops is True, must be a number"),
        ("devices: [{name: a, flops: [1]}]", "devices[0].flops is [1], must be a number"),
        (
            "devices: [{name: a, flops: .nan}]",
            "f.yaml: devices[0]: device 'a': flops is nan, must be a number > 0",
        ),
        (
            "devices: [{name: a, flops: 1" + "0" * 400 + "}]",
            "must be a number of 64 bits",
        ),
        (
            "devices: [{name: a, flops: -1}]",
            "devices[0]: device 'a': flops is -1.0, must be a number > 0",
        ),
        (
            "devices: [{name: a, flops: 1, efficiency: 2}]",
            "f.yaml: devices[0].efficiency is 2, must be less than or equal to 1",
        ),
        (
            "devices: [{name: a1, flops: 1}, {name: a, count: 2, flops: 1}]",
            "f.yaml: cluster 'f': two devices are named 'a1'",
        ),
        (ONE + "links: 3", "f.yaml: links is 3, must be a list"),
        (ONE + "links: [3]", "f.yaml: links[0]: must be a mapping with bandwidth"),
        (
            ONE + "links: [{betwen: [a, a]}]",
            "f.yaml: links[0]: unknown key 'betwen': did you mean 'between'?",
        ),
        (
            ONE + "links: [{between: [a, b], bandwidth: 1}]",
            "f.yaml: links[0]: between is ['a', 'b'], must name two groups of a",
        ),
        (
            ONE + "links: [{between: [[1], a], bandwidth: 1}]",
            "links[0].between[0] is [1], must be a text",
        ),
        (
            ONE + "links: [{between: a, bandwidth: 1}]",
            "f.yaml: links[0].between is 'a', must be a list",
        ),
        (
            ONE + "links: [{between: [a, a], bandwidth: 1, channel: own}]",
            "f.yaml: links[0]: channel is 'own', must be none, pair, source, shared",
        ),
        (
            BOTH + "links: [{between: [a, b]}]",
            "f.yaml: links[0].bandwidth is missing",
        ),
        (
            BOTH + "links: [{between: [a, b], bandwidth: -1}]",
            "f.yaml: links[0]: link 0 -> 1: bandwidth is -1.0, must be a number > 0",
        ),
        (BOTH, "f.yaml: cluster 'f': no link from 'a' to 'b'"),
        (ONE + "measured: 3", "f.yaml: measured is 3, must be a mapping"),
        (ONE + "measured: {t: 3}", "f.yaml: measured.t is 3, must be a mapping"),
        (ONE + "measured: {1: {}}", "f.yaml: measured: a key is 1, must be a text"),
        (
            ONE + "measured: {t: {3: 1.0}}",
            "f.yaml: measured.t: a key is 3, must be a text",
        ),
        (
            ONE + "measured: {t: {relu(4)->4: fast}}",
            "f.yaml: measured.t['relu(4)->4'] is 'fast', must be a number",
        ),
        (
            ONE + "measured: {t: {relu(4)->4: 0}}",
            "f.yaml: measured.t['relu(4)->4'] is 0, must be greater than 0",
        ),
        (
            ONE + "measured: {t: {relu(4)->4: .inf}}",
            "f.yaml: measured.t['relu(4)->4'] is inf, must be a finite number",
        ),
        (
            "devices: [{name: a, flops: 1, measured: t}]",
            "f.yaml: devices[0]: measured is 't', must name a table; there is none",
        ),
        (
            "devices: [{name: a, flops: 1, measured: t}]\nmeasured: {core: {}}",
            "f.yaml: devices[0]: measured is 't', must name one of core",
        ),
    ],
)
def test_messages(text: str, message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        Cluster.parse(text, "f.yaml")
    assert str(caught.value).startswith("f.yaml: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_message_stays_short_whatever_the_file_holds() -> None:
    # Ten lines that stand for ten thousand million entries.
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    nested = "\n".join(f"  {line}" for line in lines)
    text = f"devices:\n- name:\n{nested}\n".replace("\n  a", "\n    a")
    with pytest.raises(ClusterError, match=r"devices\[0\].name is .*, must be a text") as caught:
        Cluster.parse(text, "bomb.yaml")
    assert len(str(caught.value)) < 150


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 2000),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["gpu", "cpu", "pair", "source", "=bus", "none", "1e9"]),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=3)
)
GROUP = st.dictionaries(
    st.sampled_from(
        ["name", "count", "kind", "flops", "efficiency", "memory", "slowdown", "measured"]
    )
    | st.text(max_size=3),
    VALUES,
)
RULE = st.dictionaries(
    st.sampled_from(["between", "bandwidth", "latency", "channel", "hops"]),
    VALUES | st.lists(st.sampled_from(["gpu", "cpu"]), min_size=2, max_size=2),
)
FILES = st.fixed_dictionaries(
    {"devices": st.lists(GROUP, max_size=3) | VALUES},
    optional={
        "links": st.lists(RULE, max_size=3) | VALUES,
        "name": VALUES,
        "source": VALUES,
        "measured": st.dictionaries(SCALARS, st.dictionaries(SCALARS, SCALARS)) | VALUES,
    },
)


def refusal(text: str) -> str | None:
    """Return why the text is no cluster; None if it is one."""
    try:
        Cluster.parse(text, "fuzz.yaml")
    except ClusterError as error:
        return str(error)
    return None


@settings(max_examples=300)
@given(FILES)
def test_nothing_but_a_cluster_error_leaves_the_parser(data: dict[str, Any]) -> None:
    message = refusal(yaml.safe_dump(data))
    assert message is None or message.startswith("fuzz.yaml: ")


@settings(max_examples=300)
@given(st.text(max_size=60) | st.text(alphabet="[]{}:,-&*!|>'\"\n ab1?", max_size=60))
def test_nothing_but_a_cluster_error_leaves_the_parser_of_any_text(text: str) -> None:
    with pytest.raises(ClusterError, match=r"^fuzz\.yaml: "):
        Cluster.parse(text, "fuzz.yaml")


@settings(max_examples=100)
@given(st.data())
def test_a_damaged_file_is_refused_or_still_a_cluster(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(TWO)))
    text = TWO[:at] + data.draw(st.characters() | st.just("")) + TWO[at + 1 :]
    message = refusal(text)
    assert message is None or message.startswith("fuzz.yaml: ")


def test_all_presets_load_and_name_their_source() -> None:
    names = presets()
    assert {"p100x4", "v100x8", "a100x4", "a100x8", "h100x8", "a100_2x4", "gpu_cpu"} <= {*names}
    for name in names:
        cluster = Cluster.load(name)
        assert cluster.name == name
        assert cluster.n_channels > 0
        text = (resources.files("doppler.cluster") / "presets" / f"{name}.yaml").read_text("utf-8")
        assert "datasheet" in yaml.safe_load(text)["source"]
        assert all(math.isfinite(device.memory) for device in cluster.devices)


@pytest.mark.parametrize(
    ("name", "devices"),
    [("p100x4", 4), ("v100x8", 8), ("a100_2x4", 8), ("gpu_cpu", 2), ("h100_8x8", 64)],
)
def test_presets_have_the_devices_that_they_name(name: str, devices: int) -> None:
    assert Cluster.load(name).n_devices == devices


def test_two_nodes_share_one_link_in_each_direction() -> None:
    cluster = Cluster.load("a100_2x4")
    across = {link.channel for link in cluster.links if link.source < 4 <= link.target}
    back = {link.channel for link in cluster.links if link.target < 4 <= link.source}
    assert len(across) == len(back) == 1
    assert across != back


def test_every_h100_has_an_adapter_beside_its_nvlink() -> None:
    cluster = Cluster.load("h100_8x8")
    problem = Problem(Graph.build(1, [], [], flops=[1.0]), cluster)
    assert problem.nodes.tolist() == [node for node in range(8) for _ in range(8)]
    assert cluster.n_channels == 2 * 64
    inside, across = set[Any](), set[Any]()
    for link in cluster.links:
        near = link.source // 8 == link.target // 8
        (inside if near else across).add((link.source, link.channel))
    assert len(inside) == len(across) == 64
    assert not {channel for _, channel in inside} & {channel for _, channel in across}


def test_load_uniform_by_name() -> None:
    assert Cluster.load("uniform:4") == Cluster.uniform(4)


@pytest.mark.parametrize(
    "name", ["uniform:", "uniform:x", "uniform:-1", "uniform:1.5", "uniform:٤"]
)
def test_uniform_names_are_checked(name: str) -> None:
    with pytest.raises(ClusterError, match=f"{name}: give a whole number of devices"):
        Cluster.load(name)


def test_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown cluster 'v100x9': did you mean 'v100x8'"):
        Cluster.load("v100x9")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"none.yaml: no such file; give the path of a cluster"):
        Cluster.load(tmp_path / "none.yaml")
    with pytest.raises(ClusterError, match="is a directory"):
        Cluster.load(tmp_path)


def test_a_file_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(TWO)
    assert Cluster.load(path) == Cluster.parse(TWO, "two")


@pytest.mark.parametrize("name", [*presets(), "uniform:3", "uniform:1"])
def test_saved_clusters_read_back_equal(name: str, tmp_path: Path) -> None:
    cluster = Cluster.load(name)
    path = save_cluster(cluster, tmp_path / "saved.yaml", source="a test")
    again = Cluster.load(path)
    assert again.name == cluster.name
    assert again.devices == cluster.devices
    graph = Graph.build(2, [0], [1], flops=[1e12, 1e12], output_bytes=[1e6, 1e6])
    one, two = Problem(graph, cluster).arrays, Problem(graph, again).arrays
    for key in ("compute", "latency", "factor", "capacity"):
        assert np.array_equal(getattr(one, key), getattr(two, key))
    assert sorted(again.channel_names) == sorted(cluster.channel_names)
    for link, other in zip(
        sorted(cluster.links, key=lambda link: (link.source, link.target)),
        sorted(again.links, key=lambda link: (link.source, link.target)),
        strict=True,
    ):
        names = [
            which.channel_names[it.channel] if it.channel >= 0 else None
            for which, it in ((cluster, link), (again, other))
        ]
        assert names[0] == names[1]


def test_accelerators_and_cpus_read_back_equal(tmp_path: Path) -> None:
    cluster = Cluster.accelerators_and_cpus(2, 1, 1e9)
    again = Cluster.load(save_cluster(cluster, tmp_path / "saved.yaml"))
    assert again.devices == cluster.devices
    assert again.links == tuple(sorted(cluster.links, key=lambda link: (link.source, link.target)))
    assert again.channel_names == cluster.channel_names


CLASSES = st.text(min_size=1, max_size=20) | st.just('einsum(4x4)->4 equation="ab->a" dim=[0]')
SECONDS = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
TIMES = st.dictionaries(CLASSES, SECONDS, max_size=4)


@settings(max_examples=100)
@given(st.lists(TIMES, min_size=1, max_size=3))
def test_measured_times_read_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, tables: list[dict[str, float]]
) -> None:
    devices = tuple(Device(f"d{i}", measured=times) for i, times in enumerate(tables))
    cluster = Cluster("measured", devices, fully_connected(len(devices)))
    path = save_cluster(cluster, tmp_path_factory.mktemp("saved") / "c.yaml")
    again = Cluster.load(path)
    assert again == cluster
    assert [device.measured for device in again.devices] == tables


def test_equal_devices_share_one_table_of_the_file(tmp_path: Path) -> None:
    times = {"relu(4)->4": 0.1}
    devices = (Device("a"), Device("b", measured=times), Device("c", measured={**times}))
    path = save_cluster(Cluster("m", devices, fully_connected(3)), tmp_path / "c.yaml")
    data = yaml.safe_load(path.read_text())
    assert [entry.get("measured") for entry in data["devices"]] == [None, "b", "b"]
    assert data["measured"] == {"b": times}


def test_a_file_without_measured_times_is_written_as_before(tmp_path: Path) -> None:
    path = save_cluster(Cluster.uniform(2), tmp_path / "c.yaml")
    assert "measured" not in path.read_text()


def test_every_device_of_a_group_has_the_measured_times() -> None:
    text = "devices: [{name: a, count: 2, flops: 1, measured: core}]\n"
    text += "links: [{between: [a, a], bandwidth: 1}]\nmeasured: {core: {relu(4)->4: 1e-3}}"
    cluster = Cluster.parse(text, "x")
    assert [device.measured for device in cluster.devices] == [{"relu(4)->4": 0.001}] * 2
    assert hash(cluster.devices[0]) is not None


def test_links_that_differ_by_direction_are_kept(tmp_path: Path) -> None:
    devices = Cluster.uniform(2).devices
    links = (Link(0, 1, 1e9, 1e-6), Link(1, 0, 2e9, 3e-6, hops=4.0))
    cluster = Cluster("m", devices, links)
    assert Cluster.load(save_cluster(cluster, tmp_path / "c.yaml")) == cluster


def test_a_number_with_a_zero_before_it_is_decimal_and_base_60_is_no_number() -> None:
    assert (
        Cluster.parse(
            "devices: [{name: a, count: 010, flops: 1}]\nlinks: [{between: [a, a], bandwidth: 1}]",
            "x",
        ).n_devices
        == 10
    )
    with pytest.raises(ClusterError, match=r"x: devices\[0\].*count is '1:40', must be a whole"):
        Cluster.parse("devices: [{name: a, count: 1:40, flops: 1}]", "x")


@pytest.mark.parametrize("part", [{"name": "\ud800"}, {"name": "a", "kind": "\ud800"}])
def test_a_name_that_is_no_text_is_not_written(part: dict[str, str], tmp_path: Path) -> None:
    cluster = Cluster("one", (Device(**part),), ())  # type: ignore[arg-type]
    with pytest.raises(ClusterError, match=r"c.yaml: cannot be written, a name is no text"):
        save_cluster(cluster, tmp_path / "c.yaml")
    assert not list(tmp_path.iterdir())


def test_a_file_whose_name_is_no_text_gives_a_name_that_is(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff.yaml"))
    path.write_text("devices: [{name: solo, flops: 1}]")
    assert Cluster.load(path).name == "odd\ufffd"
