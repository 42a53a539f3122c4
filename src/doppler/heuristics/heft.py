"""HEFT: heterogeneous earliest finish time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.heuristics.attempts import answer_once
from doppler.heuristics.base import Solution
from doppler.kernels import kernel
from doppler.problem import Problem
from doppler.schedule.free_memory import FreeMemory, choices, clear, make_free_memory, take
from doppler.schedule.ranks import rank_of

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

# Gaps that a device remembers, the latest. Ops come in order of urgency, so that old gaps lie in
# the past of almost all of them; without a bound the search could take time quadratic in the ops.
MOST_GAPS = 512


@kernel
def _schedule(arrays, order, memory, devices, start, finish):  # type: ignore[no-untyped-def]
    """Fill in the device, start and end of every op. O(E devices + V devices MOST_GAPS) at worst.

    Invariant: the gaps of a device are disjoint and ascend; after ``busy_until`` it is free.
    """
    clear(memory)
    compute, volume, factor = arrays.compute, arrays.volume, arrays.factor
    latency, pred_ptr, pred = arrays.latency, arrays.pred_ptr, arrays.pred
    n_devices = compute.shape[1]
    opens = np.empty((n_devices, MOST_GAPS))
    closes = np.empty((n_devices, MOST_GAPS))
    n_gaps = np.zeros(n_devices, np.int64)
    busy_until = np.zeros(n_devices)
    found = np.empty(n_devices, np.int32)
    for op in order:
        best = np.inf
        best_start = np.inf
        best_device = np.int32(-1)
        best_gap = -1
        for index in range(choices(memory, op, found)):
            device = found[index]
            ready = 0.0
            for edge in range(pred_ptr[op], pred_ptr[op + 1]):
                producer = pred[edge]
                source = devices[producer]
                arrives = finish[producer]
                if source != device:
                    arrives += latency[source, device] + volume[producer] * factor[source, device]
                ready = max(ready, arrives)
            duration = compute[op, device]
            gap = _first_fit(opens[device], closes[device], n_gaps[device], ready, duration)
            if gap < n_gaps[device]:
                begins = max(ready, opens[device, gap])
            else:
                begins = max(ready, busy_until[device])
            if begins + duration < best:
                best, best_start = begins + duration, begins
                best_device, best_gap = device, gap
        take(memory, op, best_device)
        devices[op] = best_device
        start[op] = best_start
        finish[op] = best
        begins = best_start
        if begins == best:
            continue  # what takes no time leaves the gaps as they are
        opened, closed = opens[best_device], closes[best_device]
        count = n_gaps[best_device]
        if best_gap == count:
            if begins > busy_until[best_device]:
                count = _insert(opened, closed, count, count, busy_until[best_device], begins)
            busy_until[best_device] = best
        else:
            before, after = opened[best_gap], closed[best_gap]
            if before < begins:
                closed[best_gap] = begins
                if best < after:
                    count = _insert(opened, closed, count, best_gap + 1, best, after)
            elif best < after:
                opened[best_gap] = best
            else:
                opened[best_gap : count - 1] = opened[best_gap + 1 : count]
                closed[best_gap : count - 1] = closed[best_gap + 1 : count]
                count -= 1
        n_gaps[best_device] = count


@kernel
def _first_fit(opens, closes, count, ready, duration):  # type: ignore[no-untyped-def]
    """Index of the first gap that takes an op, ``count`` if there is none."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if closes[middle] < ready + duration:
            low = middle + 1
        else:
            high = middle
    while low < count and max(ready, opens[low]) + duration > closes[low]:
        low += 1
    return low


@kernel
def _insert(opens, closes, count, at, opened, closed):  # type: ignore[no-untyped-def]
    """Insert a gap before index ``at``, forgetting the oldest half if full; return the count."""
    if count == len(opens):
        half = count // 2
        if at < half:
            return count
        opens[: count - half] = opens[half:count].copy()
        closes[: count - half] = closes[half:count].copy()
        count -= half
        at -= half
    for slot in range(count, at, -1):
        opens[slot] = opens[slot - 1]
        closes[slot] = closes[slot - 1]
    opens[at] = opened
    closes[at] = closed
    return count + 1


def upward_order(problem: Problem) -> IntArray:
    """Ops by upward rank, highest first, of equal ones the producer first, shape [ops]."""
    rank = problem.b_level(problem.mean_compute, transfers=True)
    position = np.empty(problem.n_ops, np.int32)
    position[problem.arrays.order] = np.arange(problem.n_ops, dtype=np.int32)
    return np.lexsort((position, -rank)).astype(np.int32)


class HeftSchedule(NamedTuple):
    """The schedule that HEFT plans.

    Attributes
    ----------
    order : int32 array, shape [ops]
        The ops in the order of their planned starts; a producer always before its consumers.
    devices : int32 array, shape [ops]
    start, finish : float64 array, shape [ops]
        Planned start and end of each op, seconds.
    """

    order: IntArray
    devices: IntArray
    start: FloatArray
    finish: FloatArray


def heft_schedule(problem: Problem, memory: FreeMemory | None = None) -> HeftSchedule:
    """Plan with HEFT. O(E devices + V (log V + devices x 512 gaps)) at worst."""
    by_rank = upward_order(problem)
    devices = np.full(problem.n_ops, -1, np.int32)
    start = np.zeros(problem.n_ops)
    finish = np.zeros(problem.n_ops)
    _schedule(
        problem.arrays, by_rank, memory or make_free_memory(problem.arrays), devices, start, finish
    )
    # Of equal starts, those of ops that take no time, the higher rank first.
    order = by_rank[np.argsort(start[by_rank], kind="stable")]
    return HeftSchedule(order, devices, start, finish)


def heft(problem: Problem, *, budget: float = 0.0, seed: int = 0) -> Solution:
    """Place ops by upward rank on the device on which they end first, filling gaps.

    The upward rank is the b-level with mean compute and transfer times; an op may start in a gap
    that is long enough, and links are taken as never contended (Topcuoglu, Hariri and Wu,
    "Performance-effective and low-complexity task scheduling for heterogeneous computing", IEEE
    TPDS 2002). A device looks at its 512 latest gaps. The order in which the plan starts the ops
    is the priority. Deterministic: budget and seed are not used.

    Raises
    ------
    MemoryLimitError
        If the placement does not fit in memory.
    """

    def construct(memory: FreeMemory) -> tuple[IntArray, IntArray]:
        plan = heft_schedule(problem, memory)
        return plan.devices, rank_of(plan.order)

    return answer_once(problem, construct, budget=budget, origin="HEFT")
