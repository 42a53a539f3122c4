"""Simulated annealing on the compiled simulator: anytime, from any placement.

Kirkpatrick et al., "Optimization by simulated annealing", Science 1983. The state is a device for
every op and a total order of priorities; a move changes either, the simulator scores it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from doppler.cores import cores
from doppler.errors import MemoryLimitError
from doppler.heuristics.base import Deadline, Solution, fitting_solution
from doppler.heuristics.critical_path import critical_path, critical_path_trace
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.schedule.ranks import rank_of, ranks
from doppler.search.recreate import Recreation, make_recreation, ruin_and_recreate
from doppler.simulator.kernel import Workspace, make_workspace, run
from doppler.simulator.memory import peak_memory

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

# As shares of the makespan: the first is what a step in a rugged start may cost, the last what
# still separates good orders of the same devices.
HOT = 2e-3
COLD = 2e-5
# Compiled work between two looks at the clock and changes of the temperature.
SLICE_SECONDS = 0.02
# Ranks apart that two ops may be for a short move in the order.
NEAR = 20
# Ops that follow to one device at most.
REGION = 8


@njit(cache=True, nogil=True)
def objective(arrays, devices, priority, bounded, penalty, work):  # type: ignore[no-untyped-def]
    """Makespan in seconds; where memory overflows, more than any placement that fits.

    Parameters
    ----------
    priority : int32 array, shape [ops] or [0]
        Empty: first ready, first run.
    bounded : bool
        Whether memory has to be looked at.
    penalty : float
        More than any makespan of the problem, seconds; see :func:`longest_makespan`.
    """
    makespan, n_sent = run(arrays, devices, priority, 0.0, np.int64(0), bounded, work)
    if not bounded:
        return makespan
    peak = peak_memory(arrays, devices, work, n_sent)
    over = 0.0
    for device in range(len(peak)):
        if peak[device] > arrays.capacity[device]:
            over += (peak[device] - arrays.capacity[device]) / arrays.capacity[device]
    if over > 0.0:
        return makespan + penalty * (1.0 + over)
    return makespan


@njit(cache=True, nogil=True)
def _move_rank(priority, by_rank, source, target):  # type: ignore[no-untyped-def]
    """Take the op at one rank to another; those between move up by one."""
    op = by_rank[source]
    step = 1 if target > source else -1
    rank = source
    while rank != target:
        by_rank[rank] = by_rank[rank + step]
        priority[by_rank[rank]] = rank
        rank += step
    by_rank[target] = op
    priority[op] = target


@njit(cache=True, nogil=True)
def _neighbour(arrays, op):  # type: ignore[no-untyped-def]
    """Return a random producer or consumer of an op, or -1."""
    n_out = arrays.succ_ptr[op + 1] - arrays.succ_ptr[op]
    n_in = arrays.pred_ptr[op + 1] - arrays.pred_ptr[op]
    if n_in + n_out == 0:
        return -1
    pick = np.random.randint(0, n_in + n_out)
    if pick < n_out:
        return arrays.succ[arrays.succ_ptr[op] + pick]
    return arrays.pred[arrays.pred_ptr[op] + pick - n_out]


@njit(cache=True, nogil=True)
def _target(arrays, devices, op):  # type: ignore[no-untyped-def]
    """Return a device to move an op to: any, a neighbour's, or, half the time, a sibling's."""
    kind = np.random.randint(0, 4)
    near = _neighbour(arrays, op)
    if kind == 0 or near < 0:
        return np.random.randint(0, arrays.compute.shape[1])
    if kind == 1:
        return devices[near]
    return devices[_neighbour(arrays, near)]


@njit(cache=True, nogil=True)
def _move(arrays, members_ptr, members, devices, op, target, changed, before, count):  # type: ignore[no-untyped-def]
    """Move an op, with its colocation group; returns how many changes are noted by now."""
    if devices[op] == target or not arrays.compute[op, target] < np.inf:
        return count
    group = arrays.group[op]
    if group < 0:
        changed[count] = op
        before[count] = devices[op]
        devices[op] = target
        return count + 1
    for index in range(members_ptr[group], members_ptr[group + 1]):
        member = members[index]
        changed[count] = member
        before[count] = devices[member]
        devices[member] = target
        count += 1
    return count


@njit(cache=True, nogil=True)
def anneal(  # type: ignore[no-untyped-def]
    arrays,
    members_ptr,
    members,
    bounded,
    penalty,
    ordered,
    seed,
    steps,
    temperature,
    devices,
    priority,
    by_rank,
    cost,
    best_devices,
    best_priority,
    best,
    work,
    unit,
    recreate_share,
    scratch,
):
    """Try moves at one temperature, O(one simulation) each.

    Moves: one op to the device of a neighbour, a sibling or a random one; two ops swap devices; a
    connected region of up to eight ops follows to one device; one op changes its rank; and, once in
    a while, a larger part is ruined and recreated.

    Parameters
    ----------
    members_ptr, members : int32 array
        CSR of the colocation groups' ops.
    bounded, penalty
        As for :func:`objective`.
    ordered : bool
        Whether the run-time goes by priority; if not, the ranks only say which ops are near.
    steps : int
    temperature : float
        Seconds.
    devices, priority, by_rank : int32 array, shape [ops]
        The state, changed in place; ``by_rank`` inverts ``priority``.
    cost : float
        Objective of the state.
    best_devices, best_priority : int32 array, shape [ops]
        The best state so far, changed in place.
    best : float
        Its objective.
    work : Workspace
    unit : float
        Mean time of an op, seconds.
    recreate_share : float
        Share of the moves that ruin and recreate.
    scratch : Recreation

    Returns
    -------
    cost, best : float
    """
    np.random.seed(seed)
    n_ops = len(devices)
    # No op is noted twice within a move: two that swap are of different groups, and a region takes
    # only ops that are still at its home.
    changed = np.empty(n_ops, np.int32)
    before = np.empty(n_ops, np.int32)
    queue = priority if ordered else priority[:0]
    for _ in range(steps):
        count = np.int64(0)
        source = -1
        rank = -1
        kind = np.random.randint(0, 10 if ordered else 7)
        op = np.random.randint(0, n_ops)
        if np.random.random() < recreate_share:
            scratch.before[:] = devices
            objective(arrays, devices, queue, np.bool_(False), penalty, work)
            ruin_and_recreate(arrays, unit, op, work.start, devices, scratch)
            for other in range(n_ops):
                if devices[other] != scratch.before[other]:
                    changed[count] = other
                    before[count] = scratch.before[other]
                    count += 1
        elif kind < 3:
            target = _target(arrays, devices, op)
            count = _move(arrays, members_ptr, members, devices, op, target, changed, before, count)
        elif kind < 5:
            other = np.random.randint(0, n_ops)
            if np.random.randint(0, 2) == 0:
                near = priority[op] + np.random.randint(-NEAR, NEAR + 1)
                other = by_rank[min(n_ops - 1, max(0, near))]
            here, there = np.int64(devices[op]), np.int64(devices[other])
            if here != there and (arrays.group[op] < 0 or arrays.group[op] != arrays.group[other]):
                count = _move(
                    arrays, members_ptr, members, devices, op, there, changed, before, count
                )
                count = _move(
                    arrays, members_ptr, members, devices, other, here, changed, before, count
                )
        elif kind < 7:
            target = _target(arrays, devices, op)
            home = devices[op]
            for _ in range(np.random.randint(2, REGION + 1)):
                if devices[op] != home:
                    break
                count = _move(
                    arrays, members_ptr, members, devices, op, target, changed, before, count
                )
                op = _neighbour(arrays, op)
                if op < 0:
                    break
        else:
            source = priority[op]
            rank = np.random.randint(0, n_ops)
            if np.random.randint(0, 2) == 0:
                rank = min(n_ops - 1, max(0, source + np.random.randint(-NEAR, NEAR + 1)))
            if rank != source:
                _move_rank(priority, by_rank, np.int64(source), rank)
        if count == 0 and rank == source:
            continue
        new = objective(arrays, devices, queue, bounded, penalty, work)
        if new <= cost or np.random.random() < np.exp((cost - new) / temperature):
            cost = new
            if cost < best:
                best = cost
                best_devices[:] = devices
                best_priority[:] = priority
        else:
            for index in range(count - 1, -1, -1):
                devices[changed[index]] = before[index]
            if rank != source:
                _move_rank(priority, by_rank, rank, source)
    return cost, best


@dataclass
class Chain:
    """One annealing process.

    Attributes
    ----------
    devices, priority, by_rank : int32 array, shape [ops]
        The state; ``by_rank`` inverts ``priority``.
    cost : float
        Its objective, seconds.
    best_devices, best_priority : int32 array, shape [ops]
        The best state so far.
    best : float
        Its objective.
    reference : float
        Makespan of the start, memory aside.
    work : Workspace
    scratch : Recreation
    evaluations : int
    """

    devices: IntArray
    priority: IntArray
    by_rank: IntArray
    cost: float
    best_devices: IntArray
    best_priority: IntArray
    best: float
    reference: float
    work: Workspace
    scratch: Recreation
    evaluations: int = 0


class Annealer:
    """Anneals one problem from given placements, on every core.

    Parameters
    ----------
    problem : Problem
    threads : int, optional
        Number of independent chains, by default one per core.
    runtime : {"priority", "fifo"}
        What the placements are for. Where the run-time ignores priorities, only devices change.
    recreate_share : float
        Share of the moves that ruin and recreate a part of the placement; one costs as much as
        five to ten plain moves. 0: plain simulated annealing.
    """

    def __init__(
        self,
        problem: Problem,
        threads: int | None = None,
        runtime: str = "priority",
        recreate_share: float = 0.0,
    ) -> None:
        self.problem = problem
        self.threads = threads or cores()
        self.ordered = runtime == "priority"
        self.recreate_share = recreate_share
        group = problem.arrays.group
        grouped = np.flatnonzero(group >= 0)
        self._members = grouped[np.argsort(group[grouped], kind="stable")].astype(np.int32)
        self._members_ptr = np.zeros(problem.arrays.n_groups + 1, np.int32)
        np.cumsum(
            np.bincount(group[grouped], minlength=problem.arrays.n_groups),
            out=self._members_ptr[1:],
        )
        self._unit = float(problem.mean_compute.mean())
        self._bounded = problem.may_overflow
        self._penalty = longest_makespan(problem)

    def refine(
        self,
        starts: list[Placement],
        deadline: Deadline,
        seed: int,
        hot: float = HOT,
        cold: float = COLD,
    ) -> tuple[Placement, float, int]:
        """Anneal until the deadline, each chain from one of the starts in turn.

        Parameters
        ----------
        starts : list of Placement
            At least one; they may overflow memory.
        hot, cold : float
            First and last temperature as shares of the makespan; between them it falls
            geometrically with the time that has passed.

        Returns
        -------
        placement : Placement
            The best of all chains, never worse than the best start.
        objective : float
            Its makespan; more than any makespan of the problem if it overflows memory.
        evaluations : int
        """
        chains = [
            self.chain(starts[index % len(starts)])
            for index in range(max(self.threads, len(starts)))
        ]
        chains = sorted(chains, key=lambda chain: chain.best)[: self.threads]
        begin = deadline.elapsed

        def work(index: int) -> None:
            self._run(chains[index], deadline, begin, [seed, index], hot, cold)

        if deadline.left > 0:
            with ThreadPoolExecutor(len(chains)) as pool:
                list(pool.map(work, range(len(chains))))
        winner = min(chains, key=lambda chain: chain.best)
        placement = Placement(winner.best_devices, winner.best_priority)
        return placement, winner.best, sum(chain.evaluations for chain in chains)

    def _run(
        self,
        chain: Chain,
        deadline: Deadline,
        begin: float,
        seed: list[int],
        hot: float,
        cold: float,
    ) -> None:
        rng = np.random.default_rng(seed)
        span = max(deadline.budget - begin, 1e-9)
        steps = 1
        floor = self.problem.lower_bound * (1 + 1e-9)
        while deadline.left > 0 and chain.best > floor:
            share = min(1.0, max(0.0, (deadline.elapsed - begin) / span))
            scale = max(min(chain.best, chain.reference), 1e-300)
            temperature = hot * (cold / hot) ** share * scale
            started = deadline.elapsed
            self.advance(chain, int(rng.integers(2**31)), steps, temperature)
            took = max(deadline.elapsed - started, 1e-9)
            steps = int(max(1, min(4 * steps, steps * SLICE_SECONDS / took)))

    def advance(self, chain: Chain, seed: int, steps: int, temperature: float) -> None:
        """Try so many moves of a chain at one temperature, in seconds."""
        chain.cost, chain.best = anneal(
            self.problem.arrays,
            self._members_ptr,
            self._members,
            self._bounded,
            self._penalty,
            self.ordered,
            seed,
            steps,
            temperature,
            chain.devices,
            chain.priority,
            chain.by_rank,
            chain.cost,
            chain.best_devices,
            chain.best_priority,
            chain.best,
            chain.work,
            self._unit,
            self.recreate_share,
            chain.scratch,
        )
        chain.evaluations += steps

    def chain(self, start: Placement) -> Chain:
        """Begin a chain at a placement, which may overflow memory."""
        devices = start.devices.copy()
        priority = ranks(self.problem, start)
        work = self._workspace()
        cost, reference = (
            float(
                objective(
                    self.problem.arrays,
                    devices,
                    priority if self.ordered else priority[:0],
                    bounded,
                    self._penalty,
                    work,
                )
            )
            for bounded in (self._bounded, False)
        )
        return Chain(
            devices,
            priority,
            np.argsort(priority).astype(np.int32),
            cost,
            devices.copy(),
            priority.copy(),
            cost,
            reference,
            work,
            make_recreation(self.problem.arrays),
        )

    def _workspace(self) -> Workspace:
        edges = self.problem.graph.n_edges if self._bounded else 0
        return make_workspace(self.problem.n_ops, self.problem.n_devices, edges)


def longest_makespan(problem: Problem) -> float:
    """Seconds > 0 that no placement exceeds: every op and every transfer by itself, at its slowest.

    At any time before the end some op runs or some transfer is on its way.
    """
    arrays = problem.arrays
    slowest = np.where(np.isfinite(arrays.compute), arrays.compute, 0.0).max(axis=1)
    copies = np.minimum(np.diff(arrays.succ_ptr), problem.n_devices - 1)
    moved = arrays.latency.max() + arrays.volume * arrays.factor.max()
    return float(slowest.sum() + (copies * moved).sum()) or 1.0


def local_search(problem: Problem, *, budget: float = 0.0, seed: int = 0) -> Solution:
    """Anneal from a critical-path schedule until the budget ends, one chain per core.

    Raises
    ------
    MemoryLimitError
        If nothing that fits in memory was found.
    """
    deadline = Deadline(budget)
    try:
        found = critical_path(problem, seed=seed)
        start, tried = found.placement, found.evaluations
    except MemoryLimitError:
        # A move at a time, annealing may get to what fits.
        order, devices, _ = critical_path_trace(problem, seed)
        start, tried = Placement(devices, rank_of(order)), 1
    placement, _, evaluations = Annealer(problem).refine([start], deadline, seed)
    return fitting_solution(
        problem,
        placement,
        tried + evaluations,
        deadline.elapsed,
        "annealing from a critical-path schedule",
    )
