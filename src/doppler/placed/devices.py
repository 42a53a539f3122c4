"""The devices of this machine as torch names them, and a first guess of their speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from doppler.checks import check_number, check_whole
from doppler.cluster import Cluster, Device, Link
from doppler.cores import cores
from doppler.engine import Backend, CpuBackend, CudaBackend
from doppler.errors import EngineError
from doppler.messages import shown_value

if TYPE_CHECKING:
    import torch

# What devices do about, until the first runs tell: FLOP/s and bytes/s of a core and of a GPU,
# bytes/s and seconds of a copy between CPU devices and over a bus.
_CORE_FLOPS, _CORE_BANDWIDTH = 5e10, 1e10
_GPU_FLOPS, _GPU_BANDWIDTH, _GPU_LAUNCH = 1.5e13, 1e12, 5e-6
_COPY_BANDWIDTH, _COPY_LATENCY = 5e9, 3e-5
_BUS_BANDWIDTH, _BUS_LATENCY = 2e10, 2e-5


def open_backend(
    devices: Sequence[str], *, threads: int | None = None, memory: float = math.inf
) -> Backend:
    """Make the backend of some devices of this machine.

    Parameters
    ----------
    devices : sequence of str
        ``"cpu:0"``, ``"cpu:1"``, ...: as many devices of the CPU, each with a worker thread and
        memory of its own. Or ``"cuda:0"``, ..., and ``"cpu"`` if it shall help.
    threads : int, optional
        Torch threads of each device of the CPU; by default the cores are shared out.
    memory : float
        Bytes that each device of the CPU may hold.

    Raises
    ------
    EngineError
        If the devices are not there, mixed in another way, or repeated.
    """
    known = isinstance(devices, Sequence) and not isinstance(devices, str)
    if not known or not devices or not all(isinstance(d, str) for d in devices):
        raise EngineError(
            f"devices is {shown_value(devices)}, must be a list as ['cuda:0', 'cuda:1'] or "
            "['cpu:0', 'cpu:1']"
        )
    if len(set(devices)) < len(devices):
        raise EngineError(f"devices {list(devices)}: each at most once")
    if threads is not None:
        check_whole(threads, "threads", 1, error=EngineError)
    check_number(memory, "memory", above=True, infinite=True, error=EngineError)
    if any(device.startswith("cuda") for device in devices):
        return CudaBackend([_name(device) for device in devices], threads=threads)
    for device in devices:
        number = device.removeprefix("cpu:")
        if device != "cpu" and not (number.isascii() and number.isdigit()):
            raise EngineError(
                f"devices: {shown_value(device)} is none; give 'cpu:0', 'cpu:1', ... or "
                "'cuda:0', 'cuda:1', ..."
            )
    each = max(1, cores() // len(devices)) if threads is None else threads
    return CpuBackend(len(devices), threads=each, memory=memory)


def usual_devices() -> list[str]:
    """Name the GPUs of this machine or, where there is none, a device for each of its cores."""
    import torch

    if torch.cuda.is_available():
        return [f"cuda:{gpu}" for gpu in range(torch.cuda.device_count())]
    return [f"cpu:{core}" for core in range(cores())]


def physical_devices(backend: Backend) -> tuple[torch.device, ...]:
    """Where the memory of each device of a backend is, as torch names it."""
    import torch

    devices: tuple[torch.device, ...] = getattr(
        backend, "devices", (torch.device("cpu"),) * len(backend.device_names)
    )
    return devices


def guessed_cluster(backend: Backend) -> Cluster:
    """Describe the devices of a backend by what such devices usually do."""
    kinds = [device.type for device in physical_devices(backend)]
    threads = getattr(backend, "threads", 1)
    devices = tuple(
        Device(
            name,
            "cpu" if kind == "cpu" else "gpu",
            _CORE_FLOPS * threads if kind == "cpu" else _GPU_FLOPS,
            _CORE_BANDWIDTH if kind == "cpu" else _GPU_BANDWIDTH,
            memory,
            0.0 if kind == "cpu" else _GPU_LAUNCH,
        )
        for name, kind, memory in zip(backend.device_names, kinds, backend.memory, strict=True)
    )
    links: list[Link] = []
    for source in range(len(devices)):
        for target in range(len(devices)):
            if source != target:
                local = kinds[source] == kinds[target] == "cpu"
                links.append(
                    Link(
                        source,
                        target,
                        _COPY_BANDWIDTH if local else _BUS_BANDWIDTH,
                        _COPY_LATENCY if local else _BUS_LATENCY,
                        len(links),
                    )
                )
    names = tuple(f"{devices[link.source].name} to {devices[link.target].name}" for link in links)
    return Cluster(f"{backend.name}x{len(devices)}", devices, tuple(links), names)


def _name(device: str) -> str:
    return "cuda:0" if device == "cuda" else "cpu" if device == "cpu:0" else device
