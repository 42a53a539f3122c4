"""GPUs of this machine, and its CPU beside them, in one process.

Every GPU computes on one stream, and every link to or from a GPU has copy streams of its own, so
copies overlap with computing. An op or a transfer counts as done when its event has completed, and
only then is anything launched that needs it: no stream ever waits for another, and no memory is
reused while a kernel may still read it. So that a GPU does not idle while its worker learns that an
op has ended, the worker launches one op ahead.

Ops of GPUs are timed by events on the GPU; ops of the CPU and transfers by the clock of the host.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from doppler.cores import cores
from doppler.engine.allocator import keep_freed_memory, return_freed_memory
from doppler.engine.backend import Backend, Times
from doppler.engine.compiled_graph import CompiledGraph, TileCache, each_tensor
from doppler.engine.cpu import CpuSession, is_out_of_memory, known_faults, no_autocast
from doppler.engine.plan import ExecutionPlan
from doppler.errors import DeviceLostError, DeviceMemoryError, EngineError
from doppler.graph import Graph

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_LAUNCH_AHEAD = 2
_NANO_PER_MILLI = 1e6
_OUT_OF_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def local_devices(n_devices: int | None = None) -> tuple[str, ...]:
    """Name devices of this machine, by default all: its GPUs, and its CPU if one more is needed.

    Raises
    ------
    EngineError
        If this machine has no GPU, or fewer devices.
    """
    n_gpus = _count_gpus()
    if n_devices is None:
        n_devices = n_gpus + 1
    if n_devices > n_gpus + 1:
        raise EngineError(
            f"cuda backend: {n_devices} devices are named, and this machine has the CPU "
            f"and {n_gpus} GPU{'s' if n_gpus > 1 else ''}"
        )
    gpus = tuple(f"cuda:{gpu}" for gpu in range(min(n_devices, n_gpus)))
    return gpus if n_devices <= n_gpus else (*gpus, "cpu")


class CudaBackend:
    """GPUs of this machine, and its CPU if it is named.

    Parameters
    ----------
    devices : sequence of str
        ``"cuda:0"``, ``"cuda:1"``, ... and ``"cpu"``, each at most once.
    threads : int, optional
        Torch threads of the CPU; by default the cores that no worker of a GPU keeps busy.

    Raises
    ------
    EngineError
        If this machine has no GPU, or not those that are named.
    """

    name = "cuda"

    def __init__(
        self, devices: Sequence[str] = ("cuda:0", "cpu"), *, threads: int | None = None
    ) -> None:
        n_gpus = _count_gpus()
        known = [f"cuda:{gpu}" for gpu in range(n_gpus)] + ["cpu"]
        for device in devices:
            if device not in known:
                raise EngineError(
                    f"cuda backend: no device {device!r}; this machine has {', '.join(known)}"
                )
        if not devices or len(set(devices)) < len(devices):
            raise EngineError(f"cuda backend: devices {list(devices)} are none, or repeated")
        if threads is not None and threads < 1:
            raise EngineError(f"cuda backend: threads is {threads}, must be at least 1")
        import torch

        self.device_names = tuple(devices)
        self.devices = tuple(torch.device(device) for device in devices)
        self.memory = tuple(
            float(torch.cuda.get_device_properties(device).total_memory)
            if device.type == "cuda"
            else math.inf
            for device in self.devices
        )
        n_used = sum(device.type == "cuda" for device in self.devices)
        self.threads = threads or max(1, cores() - n_used)
        # A worker that polls learns soonest that an op has ended, if there is a core for it.
        self.polls = cores() > 2 * n_used

    def open(
        self,
        graph: Graph,
        tensors: Mapping[str, Tensor] | None,
        seed: int,
        share: bool = False,
    ) -> CudaDeployment:
        """Compile the ops of a graph and make the streams."""
        keep_freed_memory()
        most = max(each for each in (0.0, *self.memory) if each < math.inf)
        compiled = CompiledGraph(graph, tensors, seed, self.device_names, most)
        with known_faults(self):
            return CudaDeployment(self, compiled, share)

    def fault(self, error: BaseException) -> type[EngineError] | None:
        """Recognize exhausted memory and every other error of the CUDA run-time.

        After most of the latter the process cannot use the GPU any more.
        """
        text = str(error)
        if is_out_of_memory(error) or any(words in text for words in _OUT_OF_MEMORY):
            return DeviceMemoryError
        if "CUDA error" in text or "CUDA driver error" in text or "CUBLAS_STATUS" in text:
            return DeviceLostError
        return None


class CudaDeployment:
    """A graph on GPUs: tiles, and streams that all runs share, as memory belongs to streams."""

    def __init__(self, backend: CudaBackend, compiled: CompiledGraph, share: bool) -> None:
        self._backend = backend
        self._compiled = compiled
        self._share = share
        self._tiles = TileCache(compiled, backend.device_names, backend.memory, self._place)
        self._streams = Streams(backend.devices)

    def start(self, plan: ExecutionPlan) -> CudaSession:
        """Place the tiles that the plan reads."""
        held, resident = self._tiles.arrange(plan)
        return CudaSession(self._backend, self._compiled, held, resident, self._streams)

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
        target = self._backend.devices[device]
        if self._share and tile.is_contiguous() and tile.device == target:
            return tile
        with known_faults(self._backend):
            return tile.to(target, memory_format=torch.contiguous_format, copy=True)


class Streams:
    """The streams of a set of devices.

    Attributes
    ----------
    compute : list of torch.cuda.Stream or None, length devices
        None for the CPU.
    """

    def __init__(self, devices: tuple[torch.device, ...]) -> None:
        self._devices = devices
        self.compute = [self._stream(device) for device in devices]
        self._copy: dict[tuple[int, int], tuple[Any, Any, bool]] = {}
        self._lock = threading.Lock()

    def copy(self, source: int, target: int) -> tuple[Any, Any, bool]:
        """Return the streams of a link at both ends, and whether its GPUs reach each other."""
        import torch

        with self._lock:
            if (source, target) not in self._copy:
                ends = self._devices[source], self._devices[target]
                peers = all(
                    end.type == "cuda" for end in ends
                ) and torch.cuda.can_device_access_peer(*ends)
                leaving, arriving = map(self._stream, ends)
                self._copy[source, target] = leaving, arriving, peers
            return self._copy[source, target]

    def _stream(self, device: torch.device) -> Any:
        import torch

        make: Any = torch.cuda.Stream
        return make(device) if device.type == "cuda" else None


class CudaSession(CpuSession):
    """One run on GPUs and, as in a :class:`CpuSession`, on the CPU."""

    def __init__(
        self,
        backend: CudaBackend,
        compiled: CompiledGraph,
        held: list[dict[int, Tensor]],
        resident: list[float],
        streams: Streams,
    ) -> None:
        super().__init__(compiled, held, resident, backend.threads)
        self._backend: Backend = backend
        self._devices = backend.devices
        self._streams = streams
        self._blocking = not backend.polls
        self.at_once = -1.0  # A copy needs the streams of its link.
        self.depth = [1 if stream is None else _LAUNCH_AHEAD for stream in streams.compute]
        self._device_of = [0] * compiled.graph.n_ops
        self._events: list[tuple[Any, Any] | None] = [None] * compiled.graph.n_ops
        # Of each GPU: an event, and what the clock of the host showed when it completed.
        self._bases: list[tuple[Any, int] | None] = [None] * len(self._devices)

    @contextmanager
    def on_device(self, device: int) -> Iterator[None]:
        """Compute on the stream of the device."""
        import torch

        stream = self._streams.compute[device]
        if stream is None:
            with super().on_device(device):
                yield
            return
        with torch.no_grad(), torch.cuda.stream(stream):
            yield

    @contextmanager
    def in_caller(self, device: int) -> Iterator[None]:
        """Compute on the stream of the device."""
        import torch

        stream = self._streams.compute[device]
        if stream is None:
            with super().in_caller(device):
                yield
            return
        with torch.no_grad(), no_autocast(), torch.cuda.stream(stream):
            yield

    @contextmanager
    def on_link(self, source: int, target: int) -> Iterator[None]:
        """Copy on the streams of the link, one at each GPU that it touches."""
        import torch

        with ExitStack() as scope:
            scope.enter_context(super().on_link(source, target))
            for stream in self._streams.copy(source, target)[:2]:
                if stream is not None:
                    scope.enter_context(torch.cuda.stream(stream))
            yield

    def begin(self) -> None:
        """Wait for all placing, then start the clock and tie the clocks of the GPUs to it."""
        import torch

        with known_faults(self._backend):
            for device, stream in enumerate(self._streams.compute):
                if stream is not None:
                    torch.cuda.synchronize(self._devices[device])
                    base = _event(timed=True)
                    base.record(stream)
                    base.synchronize()
                    self._bases[device] = base, perf_counter_ns()
        super().begin()

    def launch(self, op: int, device: int) -> Any:
        """Launch an op, on a GPU without waiting for its end."""
        stream = self._streams.compute[device]
        if stream is None:
            return super().launch(op, device)
        start = _event(timed=True)
        end = _event(timed=True, blocking=self._blocking)
        held = self.held[device]
        start.record(stream)
        value = self._functions[device][op]([held[source] for source in self._sources[op]])
        end.record(stream)
        self._device_of[op] = device
        self._events[op] = start, end
        return value

    def wait(self, op: int, device: int, value: Any) -> None:
        """Wait for the event at the end of an op."""
        events = self._events[op]
        if events is not None:
            events[1].synchronize()

    def copy(self, op: int, source: int, target: int, value: Any) -> Any:
        """Copy from GPU to GPU, or by way of pinned memory of the host."""
        start = perf_counter_ns()
        copied = each_tensor(value, lambda tensor: self._copy(tensor, source, target))
        self._sent.append((op, source, target, start, perf_counter_ns()))
        return copied

    def _copy(self, tensor: Tensor, source: int, target: int) -> Tensor:
        leaving, arriving, peers = self._streams.copy(source, target)
        device = self._devices[target]
        if leaving is not None:
            tensor.record_stream(leaving)
        if leaving is not None and not peers:
            import torch

            # Waited for before it is used: by the host, and by the copy to the next GPU.
            tensor = torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(
                tensor, non_blocking=True
            )
            self._synchronize(leaving)
        if arriving is not None:
            if not (peers or tensor.is_pinned()):
                tensor = tensor.pin_memory()
            tensor = tensor.to(device, non_blocking=True)
            tensor.record_stream(self._streams.compute[target])
            self._synchronize(arriving)
        return tensor

    def close(self) -> None:
        """Drop the tensors of the run, and the events."""
        super().close()
        self._events = []

    def times(self) -> Times:
        """Seconds since the start; events are read here, after the run."""
        for op, events in enumerate(self._events):
            base = self._bases[self._device_of[op]]
            if events is not None and base is not None:
                event, zero = base
                start, end = (zero + event.elapsed_time(each) * _NANO_PER_MILLI for each in events)
                # The clocks agree but to some microseconds.
                self._start[op] = max(self._zero, round(start))
                self._end[op] = max(self._start[op], round(end))
        return super().times()

    def _synchronize(self, stream: Any) -> None:
        event = _event(blocking=self._blocking)
        event.record(stream)
        event.synchronize()


def _event(*, timed: bool = False, blocking: bool = False) -> Any:
    import torch

    make: Any = torch.cuda.Event
    return make(enable_timing=timed, blocking=blocking)


def _count_gpus() -> int:
    import torch

    if not torch.cuda.is_available():
        raise EngineError(
            "cuda backend: torch finds no GPU on this machine; use the cpu or the emulated backend"
        )
    return torch.cuda.device_count()
