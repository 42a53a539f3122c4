"""Links between devices: copies of several sizes, and the line through their times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from doppler.profiling.rates import busy_work
from doppler.profiling.timing import Timing
from doppler.profiling.workers import Worker, Workers

#: Bytes of the copies.
SIZES = tuple(2**power for power in range(12, 26, 2))


@dataclass(frozen=True, slots=True)
class LinkRates:
    """What a link achieves while all devices compute.

    Attributes
    ----------
    bandwidth : float
        Bytes/s.
    latency : float
        Seconds.
    copies : mapping of int to Timing
        By bytes.
    """

    bandwidth: float
    latency: float
    copies: dict[int, Timing]


def measure_link(workers: Workers, source: int, target: int, repeats: int) -> LinkRates:
    """Measure copies from one device to another, in a thread of its own.

    Parameters
    ----------
    workers : Workers
    source, target : int
        Indices of the devices.
    repeats : int
        Copies of each size, after one that warms up.
    """
    sender, receiver = workers.all[source], workers.all[target]

    def measure() -> dict[int, Timing]:
        return {size: _copies(sender, receiver, size, repeats) for size in SIZES}

    copies = workers.beside(measure, busy_work)
    latency, bandwidth = fit_line(list(copies), [timing.seconds for timing in copies.values()])
    return LinkRates(bandwidth, latency, copies)


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


def _copies(sender: Worker, receiver: Worker, size: int, repeats: int) -> Timing:
    import time

    import torch

    data = sender.tensor((size // 4,), sender.pool(size // 4))

    def copy() -> float:
        begin = time.perf_counter()
        copied = data.to(receiver.device, copy=True)
        if copied.is_cuda or data.is_cuda:
            torch.cuda.synchronize(copied.device if copied.is_cuda else data.device)
        return time.perf_counter() - begin

    copy()
    return Timing.of([copy() for _ in range(repeats)])
