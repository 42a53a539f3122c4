"""What the system says about the machine: devices of torch, memory, processor."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from doppler.cluster.device import MAX_DEVICES
from doppler.cores import cores
from doppler.engine.cuda import local_devices
from doppler.errors import ClusterError, UnknownNameError
from doppler.installed_memory import installed_memory

BACKENDS = ("cpu", "cuda")


def find_devices(backend: str, count: int | None) -> tuple[str, ...]:
    """List the devices of a backend, by the names that torch gives them.

    Parameters
    ----------
    backend : {"cpu", "cuda"}
    count : int, optional
        How many. Of ``cpu`` by default two, each a thread; of ``cuda`` every GPU and the CPU
        beside them.

    Raises
    ------
    UnknownNameError
        On another backend.
    ClusterError
        On a number of devices out of range.
    EngineError
        If this machine has no GPU, or fewer devices.
    """
    if backend not in BACKENDS:
        raise UnknownNameError("backend", backend, BACKENDS)
    if count is not None and not 1 <= count <= MAX_DEVICES:
        raise ClusterError(f"{backend}: {count} devices, must be from 1 to {MAX_DEVICES}")
    if backend == "cpu":
        return ("cpu",) * (2 if count is None else count)
    return local_devices(count)


def memory_of(devices: Sequence[str]) -> list[float]:
    """Bytes of each device; CPU devices share what the machine has equally."""
    import torch

    shared = installed_memory() / max(1, sum(device == "cpu" for device in devices))
    return [
        shared if device == "cpu" else float(torch.cuda.get_device_properties(device).total_memory)
        for device in devices
    ]


def free_memory_of(devices: Sequence[str]) -> list[float]:
    """Bytes of each device that nothing uses now."""
    import torch

    shared = _available_memory() / max(1, sum(device == "cpu" for device in devices))
    return [
        shared if device == "cpu" else float(torch.cuda.mem_get_info(device)[0])
        for device in devices
    ]


def processor() -> str:
    """Name the processor, as well as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def describe(devices: Sequence[str]) -> str:
    """Name the system, its processor and GPUs, and the versions that matter."""
    import torch

    gpus = sorted({torch.cuda.get_device_name(d) for d in devices if d.startswith("cuda")})
    hardware = ", ".join([processor(), f"{cores()} cores", *gpus])
    return (
        f"{platform.system()} {platform.release()} on {hardware}; "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )


def _available_memory() -> float:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        kilobytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
        return min(installed_memory(), float(kilobytes) * 1024)
    except (OSError, StopIteration, IndexError, ValueError):
        return installed_memory() / 2
