"""Simulate one placement, with its trace, or many at once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.checks import (
    check_indices,
    check_items,
    check_jitter,
    check_runtime,
    check_seed,
    check_type,
    check_whole,
)
from doppler.cores import cores
from doppler.errors import MemoryLimitError, PlacementError
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.simulator.kernel import make_workspace, run, run_many
from doppler.simulator.memory import peak_memory
from doppler.trace import Trace

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

# Durations of ops on real devices vary by about that much from run to run.
DEFAULT_JITTER = 0.1


@dataclass(frozen=True, eq=False)
class Result:
    """Outcome of one run.

    Attributes
    ----------
    makespan : float
        Seconds.
    trace : Trace
    peak_memory : float64 array, shape [devices]
        Bytes.
    """

    makespan: float
    trace: Trace
    peak_memory: FloatArray


def simulate(
    problem: Problem,
    placement: Placement,
    *,
    runtime: str = "priority",
    jitter: float = 0.0,
    seed: int = 0,
) -> Result:
    """Simulate a placement on the work-conserving runtime.

    Parameters
    ----------
    problem : Problem
    placement : Placement
    runtime : {"priority", "fifo"}
        Whether ready ops go by the placement's priority, or first ready, first run.
    jitter : float
        Standard deviation of the logarithm of every duration; 0.1 is about 10%.
    seed : int
        Of the jitter.

    Returns
    -------
    Result

    Raises
    ------
    PlacementError
        If the placement does not suit the problem.
    ParamsError
        On a jitter or a seed out of range.
    UnknownNameError
        On another run-time.
    """
    check_type(placement, Placement, "placement").validate(problem)
    arrays = problem.arrays
    work = make_workspace(problem.n_ops, problem.n_devices, problem.graph.n_edges)
    devices = placement.devices.copy()
    priority = _priority(placement, runtime)
    makespan, n_sent = run(
        arrays, devices, priority, check_jitter(jitter), check_seed(seed) % 2**32, True, work
    )
    order = np.argsort(work.start, kind="stable").astype(np.int32)
    sent = np.argsort(work.sent_start[:n_sent], kind="stable")
    trace = Trace(
        op=order,
        device=devices[order],
        start=work.start[order],
        end=work.end[order],
        transfer_op=work.sent_op[sent],
        transfer_source=work.sent_source[sent],
        transfer_target=work.sent_target[sent],
        transfer_start=work.sent_start[sent],
        transfer_end=work.sent_end[sent],
        transfer_channel=work.sent_channel[sent],
        device_names=tuple(device.name for device in problem.cluster.devices),
    )
    return Result(float(makespan), trace, peak_memory(arrays, devices, work, n_sent))


def simulate_many(
    problem: Problem,
    devices: npt.ArrayLike,
    priority: npt.ArrayLike | None = None,
    *,
    jitter: float = 0.0,
    seeds: Sequence[int] | None = None,
    threads: int | None = None,
) -> FloatArray:
    """Simulate many placements of one problem.

    The placements are trusted: an op on a device that cannot run it makes the makespan infinite.

    Parameters
    ----------
    devices : int32 array, shape [placements, ops]
    priority : int32 array, shape [placements, ops], optional
        Left out: first ready, first run.
    jitter : float
        As in :func:`simulate`.
    seeds : sequence of int, length placements, optional
        Of the jitter; by default 0, 1, 2, ...
    threads : int, optional
        By default one per core.

    Returns
    -------
    float64 array, shape [placements]
        Makespans in seconds.

    Raises
    ------
    PlacementError
        If the arrays are not whole numbers of the problem's shape, name a missing device, or lack
        a seed.
    ParamsError
        On a jitter, a seed or a number of threads out of range.
    """
    check_type(problem, Problem, "problem")
    placed = check_indices(devices, "placements: devices", PlacementError, axes=2)
    count = len(placed)
    if placed.shape[1] != problem.n_ops:
        raise PlacementError(
            f"placements: shape {placed.shape}, expected [placements, {problem.n_ops}]"
        )
    if placed.size and not 0 <= placed.min() <= placed.max() < problem.n_devices:
        raise PlacementError(f"placements: devices must lie in 0 to {problem.n_devices - 1}")
    if priority is None:
        ranks = np.empty((count, 0), np.int32)
    else:
        ranks = check_indices(priority, "placements: priority", PlacementError, axes=2)
        if ranks.shape != placed.shape:
            raise PlacementError(
                f"placements: priority has shape {ranks.shape}, devices {placed.shape}"
            )
    drawn: Sequence[object] = range(count)
    if seeds is not None:
        drawn = check_items(seeds, object, "seeds")
    if len(drawn) != count:
        raise PlacementError(f"placements: {len(drawn)} seeds for {count} placements")
    seeded = np.array([check_seed(seed) % 2**32 for seed in drawn], np.int64)
    makespans = np.empty(count)
    workers = cores() if threads is None else check_whole(threads, "threads", 1)
    workers = max(1, min(workers, count))
    jitter = check_jitter(jitter)

    def part(index: int) -> None:
        chunk = slice(index * count // workers, (index + 1) * count // workers)
        work = make_workspace(problem.n_ops, problem.n_devices, 0)
        run_many(
            problem.arrays,
            placed[chunk],
            ranks[chunk],
            jitter,
            seeded[chunk],
            work,
            makespans[chunk],
        )

    if workers == 1:
        part(0)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(part, range(workers)))
    return makespans


def makespan_of(problem: Problem, placement: Placement, runtime: str = "priority") -> float:
    """Simulate one run without noise, for its seconds alone.

    Raises
    ------
    PlacementError
        As :func:`simulate`.
    """
    return spread(problem, placement, runtime=runtime, jitter=0.0, threads=1).mean


class Spread(NamedTuple):
    """What repeated runs of a placement take when durations vary; seconds.

    Attributes
    ----------
    mean, std : float
        Mean and standard deviation of the makespans.
    """

    mean: float
    std: float


def spread(
    problem: Problem,
    placement: Placement,
    *,
    runtime: str = "priority",
    jitter: float = DEFAULT_JITTER,
    seeds: Sequence[int] = range(64),
    threads: int | None = None,
) -> Spread:
    """Estimate the expected makespan of a placement and how much single runs differ.

    O(seeds x one simulation), on every core.

    Parameters
    ----------
    problem, placement, runtime, jitter
        As in :func:`simulate`.
    seeds : sequence of int
        One run each. Of a placement that was chosen for its makespan on some seeds, only others
        tell the truth.
    threads : int, optional
        By default one per core.

    Raises
    ------
    PlacementError
        If the placement does not suit the problem, or there is no seed.
    """
    check_type(placement, Placement, "placement").validate(problem)
    check_jitter(jitter)
    drawn: tuple[Any, ...] = check_items(seeds, object, "seeds")
    if len(drawn) == 0:
        raise PlacementError("no seed to run a placement with; give at least one")
    if jitter == 0.0:
        drawn = drawn[:1]
    ranks = _priority(placement, runtime)
    makespans = simulate_many(
        problem,
        np.broadcast_to(placement.devices, (len(drawn), problem.n_ops)),
        np.broadcast_to(ranks, (len(drawn), problem.n_ops)) if ranks.size else None,
        jitter=jitter,
        seeds=drawn,
        threads=threads,
    )
    # Of shares of the longest, since the squares of huge seconds are beyond all numbers.
    longest = float(makespans.max()) or 1.0
    shares = makespans / longest
    return Spread(float(shares.mean()) * longest, float(shares.std()) * longest)


def check_memory(problem: Problem, placement: Placement, runtime: str = "priority") -> None:
    """Raise if a placement does not fit in the devices' memory.

    Raises
    ------
    MemoryLimitError
        Names every device that overflows and how many bytes are missing there.
    """
    if not check_type(problem, Problem, "problem").may_overflow:
        return
    peak = simulate(problem, placement, runtime=runtime).peak_memory
    over = peak - problem.arrays.capacity
    if (over > 0).any():
        raise MemoryLimitError(f"{problem.graph.name}: {describe_overflow(problem, peak)}")


def describe_overflow(problem: Problem, peak: FloatArray) -> str:
    """Say which devices lack how many bytes."""
    capacity = problem.arrays.capacity
    parts = [
        f"device {problem.cluster.devices[d].name!r} lacks {_size(peak[d] - capacity[d])} "
        f"(needs {_size(peak[d])}, has {_size(capacity[d])})"
        for d in np.flatnonzero(peak > capacity)
    ]
    return "does not fit in memory: " + "; ".join(parts)


def _size(n_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.4g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.4g} TB"


def _priority(placement: Placement, runtime: str) -> IntArray:
    check_runtime(runtime)
    if placement.priority is None or runtime == "fifo":
        return np.empty(0, np.int32)
    return placement.priority.copy()
