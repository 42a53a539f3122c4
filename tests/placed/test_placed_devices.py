"""The devices of this machine, and a first guess of what they do."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from doppler.cores import cores
from doppler.engine import CpuBackend
from doppler.errors import EngineError
from doppler.placed.devices import guessed_cluster, open_backend, physical_devices, usual_devices


def test_devices_of_the_cpu_share_the_cores_out() -> None:
    backend = open_backend(["cpu:0", "cpu:1"])
    assert isinstance(backend, CpuBackend)
    assert backend.device_names == ("cpu0", "cpu1")
    assert backend.threads == max(1, cores() // 2)
    assert backend.memory == (math.inf, math.inf)
    assert physical_devices(backend) == (torch.device("cpu"),) * 2
    assert open_backend(("cpu",), threads=3, memory=1e6).memory == (1e6,)


def test_the_usual_devices_can_be_opened() -> None:
    devices = usual_devices()
    assert len(open_backend(devices).device_names) == len(devices)


def test_every_pair_of_devices_is_linked() -> None:
    backend = open_backend(["cpu:0", "cpu:1", "cpu:2"], threads=2, memory=1e9)
    cluster = guessed_cluster(backend)
    assert [device.name for device in cluster.devices] == list(backend.device_names)
    assert {device.memory for device in cluster.devices} == {1e9}
    pairs = {(link.source, link.target) for link in cluster.links}
    assert len(pairs) == len(cluster.links) == 6
    (twice,) = {device.flops for device in cluster.devices}
    once = guessed_cluster(open_backend(["cpu"], threads=1)).devices[0].flops
    assert twice == 2 * once


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("devices", [["cuda:0"], ["cuda:9"], ["cuda:0", "cpu"], ["cuda"]])
def test_gpus_that_are_not_there_are_missed(devices: list[str]) -> None:
    with pytest.raises(EngineError, match="torch finds no GPU on this machine"):
        open_backend(devices)


@pytest.mark.parametrize(
    "devices",
    [[], "cpu", None, 3, {"cpu:0"}, [None], ["cpu:"], ["cpu:-1"], ["cpu:٣"], ["CPU:0"], ["cpu:0 "]],
)
def test_what_is_no_list_of_devices_is_refused(devices: Any) -> None:
    with pytest.raises(EngineError, match="devices"):
        open_backend(devices)


@pytest.mark.parametrize("memory", [math.nan, -1.0, 0, "1GB", None, True])
def test_memory_is_a_number_of_bytes(memory: Any) -> None:
    with pytest.raises(EngineError, match="memory is"):
        open_backend(["cpu:0"], memory=memory)


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True, 10**9])
def test_threads_are_a_whole_number(threads: Any) -> None:
    with pytest.raises(EngineError, match="threads"):
        open_backend(["cpu:0"], threads=threads)
