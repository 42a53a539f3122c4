"""Devices to be measured: a thread each, which runs work there and times it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from doppler.cores import cores
from doppler.torch_threads import set_torch_threads

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class Worker:
    """One device and the only thread that computes on it.

    Parameters
    ----------
    name : str
        Of the device, for people.
    device : str
        What torch calls it: ``"cpu"`` or ``"cuda:0"``.
    threads : int
        Threads of torch for each op, where the device is a CPU.
    clock : callable
        Times a CPU.
    stop : Event
        Set when nothing more is to be timed.

    Attributes
    ----------
    name, device : str
    elapsed, counted : float
        Seconds of all calls that were timed on a CPU, by the wall clock and by ``clock``.
    """

    def __init__(
        self,
        name: str,
        device: str,
        threads: int,
        clock: Callable[[], float],
        stop: threading.Event,
    ) -> None:
        self.name = name
        self.device = device
        self._stop = stop
        self.elapsed = 0.0
        self.counted = 0.0
        self._clock = clock
        self._cuda = device.startswith("cuda")
        self._stream: Any = None
        self._executor = ThreadPoolExecutor(
            1, f"profile-{name}", initializer=self._begin, initargs=(threads,)
        )

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run a function in the thread of the device."""
        return self._executor.submit(function)

    def check(self) -> None:
        """Go on, from whatever thread, unless the measuring has been given up.

        Raises
        ------
        CancelledError
            If it has, so that the thread ends.
        """
        if self._stop.is_set():
            raise CancelledError

    def seconds(self, function: Callable[[], object]) -> float:
        """Time a call, on the clock of the device; for use in its thread.

        Raises
        ------
        CancelledError
            If the measuring has been given up, so that the thread ends.
        """
        self.check()
        if not self._cuda:
            begin, before = time.perf_counter(), self._clock()
            function()
            seconds = self._clock() - before
            self.elapsed += time.perf_counter() - begin
            self.counted += seconds
            return seconds
        import torch

        event: Any = torch.cuda.Event
        start, end = event(enable_timing=True), event(enable_timing=True)
        self._stream.synchronize()
        start.record(self._stream)
        function()
        end.record(self._stream)
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    def tensor(self, shape: Sequence[int], pool: Tensor) -> Tensor:
        """Make a tensor on the device, filled from a pool of numbers that lies there."""
        import torch

        made = torch.empty(tuple(shape), device=self.device)
        flat = made.view(-1)
        for start in range(0, flat.numel(), pool.numel()):
            part = flat[start : start + pool.numel()]
            part.copy_(pool[: part.numel()])
        return made

    def like(self, meta: Tensor, pool: Tensor) -> Tensor:
        """Make a tensor of the shape and dtype of another; one of whole numbers is zero."""
        import torch

        if meta.is_floating_point():
            return self.tensor(meta.shape, pool).to(meta.dtype)
        return torch.zeros(meta.shape, dtype=meta.dtype, device=self.device)

    def pool(self, elements: int = 1 << 20) -> Tensor:
        """Make numbers to fill tensors with: normal, the same on every device."""
        import torch

        return torch.randn(elements, generator=torch.Generator().manual_seed(0)).to(self.device)

    def close(self) -> None:
        """End the thread, after the work that it has."""
        self._executor.shutdown(cancel_futures=True)

    def _begin(self, threads: int) -> None:
        import torch

        # Otherwise the devices would fight over every core.
        set_torch_threads(threads)
        torch.set_grad_enabled(False)
        if self._cuda:
            torch.cuda.set_device(self.device)
            stream: Any = torch.cuda.Stream
            self._stream = stream(self.device)
            torch.cuda.set_stream(self._stream)


class Workers:
    """All devices of a machine; a context manager that ends their threads.

    Parameters
    ----------
    devices : sequence of str
        What torch calls each: ``("cpu", "cpu")`` are two devices of a thread each.
    threads : int
        Threads of torch for each op on a CPU.

    Attributes
    ----------
    all : tuple of Worker

    Notes
    -----
    A CPU that computes in one thread is timed by the processor time of that thread: then it does
    not matter what else the machine does. Where there are more threads than cores they take turns,
    so that the wall clock tells what an op takes.
    """

    def __init__(self, devices: Sequence[str], threads: int = 1) -> None:
        self._stop = threading.Event()
        spread = threads > 1 or sum(device == "cpu" for device in devices) > cores()
        clock = time.perf_counter if spread else time.thread_time
        kinds = [device.partition(":")[0] for device in devices]
        self.all = tuple(
            Worker(
                device.replace(":", "") if kind != "cpu" else _numbered(kinds, place),
                device,
                threads,
                clock,
                self._stop,
            )
            for place, (device, kind) in enumerate(zip(devices, kinds, strict=True))
        )

    @property
    def disturbance(self) -> float:
        """Share of the time on CPUs that went to other work, at least 0."""
        elapsed = sum(worker.elapsed for worker in self.all)
        counted = sum(worker.counted for worker in self.all)
        return max(0.0, 1.0 - counted / elapsed) if elapsed else 0.0

    def together(
        self,
        work: Callable[[Worker], T],
        meanwhile: Callable[[Worker], Callable[[], object]],
    ) -> list[T]:
        """Do the work on all devices at once, and keep those busy that are done before others.

        Devices share memory and its bandwidth, so that each is measured as it is when the others
        compute as well.

        Parameters
        ----------
        work : callable
            Called once for each device, in its thread.
        meanwhile : callable
            Makes, in the thread of the device, what it does over and over until all are done.

        Returns
        -------
        list
            What the work returned on each device.

        Raises
        ------
        Exception
            The first that the work raised; all devices are idle then.
        """
        left = len(self.all)
        lock = threading.Lock()
        finished = threading.Event()
        start = threading.Barrier(len(self.all))

        def run(worker: Worker) -> T:
            nonlocal left
            try:
                busy = meanwhile(worker)
                start.wait()
                result = work(worker)
                with lock:
                    left -= 1
                    if not left:
                        finished.set()
                while not finished.is_set():
                    worker.seconds(busy)
                return result
            except BaseException:
                start.abort()
                raise

        futures = [worker.submit(partial(run, worker)) for worker in self.all]
        return self._results(futures)

    def beside(
        self, work: Callable[[], T], meanwhile: Callable[[Worker], Callable[[], object]]
    ) -> T:
        """Do work in a thread of its own, as a copier does, while every device is busy.

        Raises
        ------
        Exception
            The first that the work or a device raised; all devices are idle then.
        """
        finished = threading.Event()
        ready = threading.Barrier(len(self.all) + 1)

        def keep_busy(worker: Worker) -> None:
            try:
                busy = meanwhile(worker)
                ready.wait()
                while not finished.is_set():
                    worker.seconds(busy)
            except BaseException:
                ready.abort()
                raise

        def run() -> T:
            ready.wait()
            result = work()
            finished.set()
            return result

        futures = [worker.submit(partial(keep_busy, worker)) for worker in self.all]
        with ThreadPoolExecutor(1, "profile-copier") as copier:
            result = copier.submit(run)
            self._results(cast(list[Future[Any]], [*futures, result]))
        return result.result()

    def _results(self, futures: Sequence[Future[T]]) -> list[T]:
        """Wait for all; after an error or an interrupt nothing more is timed.

        Raises
        ------
        BaseException
            The first error that is not the echo of another.
        """
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            if any(future.done() and future.exception() for future in futures):
                self._stop.set()
            errors = [error for future in futures if (error := future.exception())]
        except BaseException:
            self._stop.set()
            raise
        echoes = (threading.BrokenBarrierError, CancelledError)
        for error in sorted(errors, key=lambda error: isinstance(error, echoes)):
            raise error
        return [future.result() for future in futures]

    def close(self) -> None:
        """End every thread, after what it is timing now."""
        self._stop.set()
        for worker in self.all:
            worker.close()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _numbered(kinds: Sequence[str], place: int) -> str:
    """Name a CPU: the only one has no number."""
    if kinds.count("cpu") == 1:
        return "cpu"
    return f"cpu{kinds[:place].count('cpu')}"
