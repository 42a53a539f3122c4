"""Devices that are worker threads of this process, each with memory of its own."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from doppler.cluster.device import MAX_DEVICES
from doppler.cores import core_ids
from doppler.engine.allocator import keep_freed_memory, return_freed_memory
from doppler.engine.backend import Backend, Times
from doppler.engine.compiled_graph import CompiledGraph, TileCache, each_tensor
from doppler.engine.plan import ExecutionPlan
from doppler.errors import DeviceMemoryError, EngineError
from doppler.graph import Graph
from doppler.torch_threads import set_torch_threads

if TYPE_CHECKING:
    from torch import Tensor

_NANO = 1e-9
# Copied in some 2 us; to wake a thread takes 5 to 50 us, and then both want the interpreter.
_SMALL_BYTES = 16_384.0


class CpuBackend:
    """Devices that compute on the cores of this machine.

    A device is a worker thread; what one device computes another sees only after a real copy.
    Where the devices take all cores that the process may use, each keeps to cores of its own.
    From the first engine on, the process keeps the memory of freed tensors for the next ones (with
    glibc); it goes back to the system when an engine is closed.

    Parameters
    ----------
    n_devices : int
    threads : int
        Torch threads of each device. Devices times threads should not exceed the cores.
    memory : float
        Bytes that each device may hold.

    Raises
    ------
    EngineError
        If a number is out of range.
    """

    name = "cpu"

    def __init__(self, n_devices: int = 2, *, threads: int = 1, memory: float = math.inf) -> None:
        if not (1 <= n_devices <= MAX_DEVICES and 1 <= threads <= MAX_DEVICES and memory > 0):
            raise EngineError(
                f"cpu backend: {n_devices} devices of {threads} threads and {memory} B; devices "
                f"and threads must be from 1 to {MAX_DEVICES}, the memory above 0"
            )
        self.device_names = tuple(f"cpu{device}" for device in range(n_devices))
        self.memory = (float(memory),) * n_devices
        self.threads = threads

    def open(
        self,
        graph: Graph,
        tensors: Mapping[str, Tensor] | None,
        seed: int,
        share: bool = False,
    ) -> CpuDeployment:
        """Compile the ops of a graph."""
        keep_freed_memory()
        devices = ("cpu",) * len(self.device_names)
        return CpuDeployment(self, CompiledGraph(graph, tensors, seed, devices), share)

    def fault(self, error: BaseException) -> type[EngineError] | None:
        """Recognize what torch says when an allocation fails."""
        return DeviceMemoryError if is_out_of_memory(error) else None


class CpuDeployment:
    """A graph on CPU devices."""

    def __init__(self, backend: CpuBackend, compiled: CompiledGraph, share: bool) -> None:
        self._backend = backend
        self._compiled = compiled
        self._share = share
        self._tiles = TileCache(compiled, backend.device_names, backend.memory, self._place)

    def start(self, plan: ExecutionPlan) -> CpuSession:
        """Place the tiles that the plan reads."""
        held, resident = self._tiles.arrange(plan)
        return CpuSession(self._compiled, held, resident, self._backend.threads)

    def replace(self, tensors: Mapping[str, Tensor]) -> None:
        """Take other whole tensors, and forget the tiles of the old ones."""
        self._compiled.replace(tensors)
        self._tiles.forget(tensors)

    def close(self) -> None:
        """Give the memory of the tiles back."""
        self._tiles.clear()
        return_freed_memory()

    def _place(self, tensor: Tensor, device: int) -> Tensor:
        import torch

        tile = tensor.detach()
        if self._share and tile.is_contiguous() and tile.device.type == "cpu":
            return tile
        with known_faults(self._backend):
            return tile.to("cpu", memory_format=torch.contiguous_format, copy=True)


class CpuSession:
    """One run on CPU devices; see :class:`doppler.engine.backend.Session`."""

    def __init__(
        self,
        compiled: CompiledGraph,
        held: list[dict[int, Tensor]],
        resident: list[float],
        threads: int,
    ) -> None:
        n_ops = compiled.graph.n_ops
        self.held = held
        self.resident = resident
        self.sizes = compiled.sizes
        self.depth = [1] * len(held)
        self.at_once = _SMALL_BYTES
        self.in_order = True
        self._threads = threads
        self._cores = _cores_of_devices(len(held), threads)
        self._outputs = compiled.graph.outputs
        self._functions = compiled.functions
        self._sources = compiled.sources
        self._start = [0] * n_ops
        self._end = [0] * n_ops
        self._sent: list[tuple[int, int, int, int, int]] = []
        self._zero = 0

    @contextmanager
    def on_device(self, device: int) -> Iterator[None]:
        """Give the thread its share of the cores."""
        import torch

        set_torch_threads(self._threads)
        if self._cores:
            os.sched_setaffinity(0, self._cores[device])
        with torch.no_grad():
            yield

    @contextmanager
    def in_caller(self, device: int) -> Iterator[None]:
        """Compute with the threads of the device, and as a new thread would: without autocast."""
        import torch

        usual = self._threads
        if torch.get_num_threads() != usual:
            usual = set_torch_threads(self._threads)
        try:
            with torch.no_grad(), no_autocast():
                yield
        finally:
            if usual != self._threads:
                set_torch_threads(usual)

    @contextmanager
    def on_link(self, source: int, target: int) -> Iterator[None]:
        """Copy in one thread."""
        import torch

        set_torch_threads(1)
        with torch.no_grad():
            yield

    def lane(self, source: int, target: int) -> tuple[int, int]:
        """Every link has its own copier."""
        return source, target

    def begin(self) -> None:
        """Start the clock."""
        self._zero = perf_counter_ns()

    def launch(self, op: int, device: int) -> Any:
        """Compute an op."""
        self._start[op] = perf_counter_ns()
        held = self.held[device]
        value = self._functions[device][op]([held[source] for source in self._sources[op]])
        self._end[op] = perf_counter_ns()
        return value

    def wait(self, op: int, device: int, value: Any) -> None:
        """Do nothing: a launched op has ended."""

    def request(self, op: int, source: int, target: int) -> float:
        """Let the copier come to it."""
        return 0.0

    def copy(self, op: int, source: int, target: int, value: Any) -> Any:
        """Copy a value to another device's memory."""
        start = perf_counter_ns()
        copied = each_tensor(value, _clone)
        self._sent.append((op, source, target, start, perf_counter_ns()))
        return copied

    def abort(self) -> None:
        """Do nothing: what computes cannot be stopped."""

    def close(self) -> None:
        """Drop the tensors of the run."""
        for held in self.held:
            held.clear()

    def times(self) -> Times:
        """Seconds since the start."""
        zero = self._zero
        start, end = np.array(self._start, np.int64), np.array(self._end, np.int64)
        return Times(
            np.asarray((start - zero) * _NANO, np.float64),
            np.asarray((end - zero) * _NANO, np.float64),
            [
                (op, source, target, -1, (start - zero) * _NANO, (end - zero) * _NANO)
                for op, source, target, start, end in self._sent
            ],
        )

    def results(self) -> dict[int, Tensor]:
        """Find the outputs of the ops that hold results."""
        return {
            op: next(held[op] for held in self.held if op in held) for op in sorted(self._outputs)
        }


def _cores_of_devices(n_devices: int, threads: int) -> list[tuple[int, ...]]:
    """Divide the cores among the devices; empty where the system had better place the threads.

    A worker that wakes on the core of another waits there for the other's time slice to end, some
    milliseconds, even if a core falls idle meanwhile. Where there are more cores than workers that
    is rare, and to keep to some would collide with whoever else keeps to the same.
    """
    cores = core_ids()
    if len(cores) != n_devices * threads:
        return []
    return [cores[device * threads : (device + 1) * threads] for device in range(n_devices)]


def no_autocast() -> AbstractContextManager[object]:
    """Compute in the types that the ops name, whatever the calling thread has asked for."""
    import torch

    scope = ExitStack()
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            scope.enter_context(torch.autocast(kind, enabled=False))
    return scope


def _clone(tensor: Tensor) -> Tensor:
    return tensor.clone()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that the host has too little memory."""
    return isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error)


@contextmanager
def known_faults(backend: Backend) -> Iterator[None]:
    """Raise as what it means an exception that a backend knows, outside of any op.

    Raises
    ------
    EngineError
        In place of what :meth:`Backend.fault` recognizes.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        kind = backend.fault(error)
        if kind is None:
            raise
        raise kind(str(error).split("\n")[0]) from error
