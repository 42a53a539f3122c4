"""Links between devices: copies of several sizes, and the line through their times."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from doppler.graph import Graph
from doppler.profiling.rates import busy_work
from doppler.profiling.timing import Timing
from doppler.profiling.workers import Worker, Workers

if TYPE_CHECKING:
    from torch import Tensor

#: Bytes of the copies, where no graph tells which are wanted.
SIZES = tuple(2**power for power in range(12, 27, 2))
_LARGEST = 2**28
# Copies of so many tensors stay, as those of a graph wait for their consumers.
_ALIVE = 4
# So often a copier that sleeps looks whether the measuring has been given up.
_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class LinkRates:
    """What a link achieves while all devices compute.

    Attributes
    ----------
    bandwidth : float
        Bytes/s.
    latency : float
        Seconds, ``wake`` included.
    copies : mapping of int to Timing
        By bytes, without ``wake``.
    wake : float
        Seconds from the moment in which a copy is asked for until it is under way.
    """

    bandwidth: float
    latency: float
    copies: dict[int, Timing]
    wake: float


def measure_link(
    workers: Workers, source: int, target: int, sizes: Sequence[int], repeats: int
) -> LinkRates:
    """Measure copies from one device to another, by a thread that sleeps until it is asked.

    The sender asks for a copy between two ops: while all cores compute, waking up may take longer
    than to copy a small tensor. Copies between CPUs are timed by the processor time of their
    thread, so the rest of the time until they are done is that of waking up; its lower quartile
    counts, which other work on the machine moves least. Sizes take turns, what is copied was
    written just before, and copies stay for a while: a copy of what was copied before, to where
    that went, would be several times as fast.

    Parameters
    ----------
    workers : Workers
    source, target : int
        Indices of the devices.
    sizes : sequence of int
        Bytes of the copies, at least two that differ.
    repeats : int
        Copies of each size, after one that warms up; more where there are few sizes.
    """
    sender, receiver = workers.all[source], workers.all[target]
    repeats = max(repeats, repeats * len(SIZES) // len(sizes))
    request = _Request(sender)

    def busy(worker: Worker) -> Callable[[], object]:
        work = busy_work(worker)
        if worker is not sender:
            return work

        def work_and_ask() -> None:
            work()
            request.answer()

        return work_and_ask

    clock = time.thread_time if sender.device == receiver.device == "cpu" else time.perf_counter

    def measure() -> tuple[dict[int, Timing], float]:
        numbers = sender.pool()
        alive: list[object] = [None] * _ALIVE
        samples: dict[int, list[float]] = {size: [] for size in sizes}
        delays: list[float] = []
        for turn in range(repeats + 1):
            for place, size in enumerate(sizes):
                data = sender.tensor((max(1, size // 4),), numbers)
                asked = request.wait()
                begin = clock()
                alive[place % _ALIVE] = _copy(data, receiver.device)
                seconds = clock() - begin
                if turn:
                    samples[size].append(seconds)
                    delays.append(max(0.0, time.perf_counter() - asked - seconds))
        copies = {size: Timing.of(taken) for size, taken in samples.items()}
        return copies, float(np.quantile(delays, 0.25))

    copies, wake = workers.beside(measure, busy)
    latency, bandwidth = fit_line(list(copies), [timing.seconds for timing in copies.values()])
    return LinkRates(bandwidth, latency + wake, copies, wake)


def fit_line(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Fit ``seconds = latency + size / bandwidth``, neither below 0, by least relative squares.

    Relative, so that microseconds of small copies count as much as milliseconds of large ones.

    Parameters
    ----------
    sizes : sequence of int
        Bytes, at least two that differ.
    seconds : sequence of float

    Returns
    -------
    latency : float
        Seconds.
    bandwidth : float
        Bytes/s; infinite where the size does not matter.
    """
    from scipy.optimize import nnls

    times = np.asarray(seconds, np.float64)
    bytes_ = np.asarray(sizes, np.float64)
    largest = bytes_.max()
    rows = np.stack([1.0 / times, bytes_ / largest / times], axis=1)
    (latency, whole), _ = nnls(rows, np.ones(len(times)))
    return float(latency), float(largest / whole) if whole > 0 else np.inf


def copy_sizes(graphs: Sequence[Graph]) -> tuple[int, ...]:
    """Choose the bytes to copy: what the ops of the graphs put out, or a wide range."""
    found = np.unique(np.concatenate([[0.0], *(graph.output_bytes for graph in graphs)]))
    wanted = found[(found > 0) & (found <= _LARGEST)].astype(np.int64)
    if wanted.size < 2:
        return SIZES
    places = np.unique(np.linspace(0, wanted.size - 1, len(SIZES)).round().astype(np.int64))
    return tuple(wanted[places].tolist())


class _Request:
    """A copier asks to be woken; a device does so between two ops, and notes the time."""

    def __init__(self, device: Worker) -> None:
        self._device = device
        self._wanted = threading.Event()
        self._given = threading.Event()
        self._asked = 0.0

    def wait(self) -> float:
        """Sleep until the device has an op behind it; returns when that was.

        Raises
        ------
        CancelledError
            If the measuring has been given up: then nobody wakes the copier any more.
        """
        self._given.clear()
        self._wanted.set()
        while not self._given.wait(_LOOK_SECONDS):
            self._device.check()
        return self._asked

    def answer(self) -> None:
        """Wake the copier, if it sleeps."""
        if self._wanted.is_set():
            self._wanted.clear()
            self._asked = time.perf_counter()
            self._given.set()


def _copy(data: Tensor, target: str) -> Tensor:
    """Copy a tensor to a device, where it is when this returns.

    Between GPUs that cannot reach each other, and to and from the host, by way of pinned memory, as
    the engine does.
    """
    import torch

    arriving = torch.device(target)
    if not data.is_cuda and arriving.type == "cpu":
        return data.clone()
    peers = (
        data.is_cuda
        and arriving.type == "cuda"
        and torch.cuda.can_device_access_peer(data.device, arriving)
    )
    if data.is_cuda and not peers:
        held = torch.empty_like(data, device="cpu", pin_memory=True)
        held.copy_(data, non_blocking=True)
        # Of this stream alone: on the others the device computes.
        torch.cuda.current_stream(data.device).synchronize()
        data = held
    if arriving.type == "cuda":
        pinned = data if peers or data.is_pinned() else data.pin_memory()
        data = pinned.to(arriving, non_blocking=True)
        torch.cuda.current_stream(arriving).synchronize()
    return data
