"""Simulated annealing on the compiled simulator: anytime, from any placement.

Kirkpatrick et al., "Optimization by simulated annealing", Science 1983. The state is a device for
every op and a total order of priorities; a move changes either, the simulator scores it. Under
jitter the score is the mean over runs whose durations are drawn anew before the search has learned
them by heart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.cores import cores
from doppler.errors import ParamsError, UnknownNameError
from doppler.heuristics.base import Deadline
from doppler.kernels import kernel
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.schedule.ranks import ranks
from doppler.schedule.urgency import urgencies, urgent_first
from doppler.search.draws import Draws, draw
from doppler.search.moves import (
    LARGE_REGION,
    NEAR,
    Log,
    landscape,
    make_log,
    move_op,
    move_rank,
    move_region,
    move_slice,
    move_walk,
    swap_slices,
    swap_window,
    target_of,
    undo,
)
from doppler.search.recreate import Recreation, make_recreation, ruin_and_recreate, sort_by_start
from doppler.simulator.kernel import Workspace, make_workspace, run, run_drawn
from doppler.simulator.memory import surely_fits
from doppler.simulator.score import score_of

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

# Temperatures as shares of the makespan. The first is what a step in a rugged start may cost, less
# where ops are many and each matters little; the last what still separates good orders of the same
# devices.
SMALL_HOT, LARGE_HOT = 2e-3, 1e-4
COLD = 2e-5
# From so many ops on, structures matter more than single ops.
LARGE_OPS = 600
# Compiled work between two looks at the clock and changes of the temperature.
SLICE_SECONDS = 0.02

# Under jitter: runs whose mean is the objective, as many as simulate this many ops, at most.
RUN_OPS, FEWEST_RUNS, MOST_RUNS = 2000, 4, 8
# Moves that are compared on the same draws before new ones are drawn.
RENEWED = 256
# Of the time, on runs without noise: one is worth several noisy ones while there is much to gain.
QUIET_SHARE = 0.5
# Standard deviations of its logarithm that no drawn duration is away, for all practical purposes.
FARTHEST = 6.0
# What comes out of a renewal is compared on so many times as many runs as a move.
CHECKS = 8

# What a free device takes of the ops that are ready: the first that was; the one of the smallest
# rank, which is searched, too; the one that most waits for, given the devices.
FIRST_READY, RANKED, URGENT = 0, 1, 2

# Kinds of moves, by their names and by their places among them.
MOVES = (
    *("op", "swap", "walk", "rank", "recreate"),
    *("region", "exchange", "slice", "slices", "window"),
)
OP, SWAP, WALK, RANK, RECREATE, REGION, EXCHANGE, SLICE, SLICES, WINDOW = range(len(MOVES))
# Single ops, pairs and walks; and the order.
PLAIN = {"op": 3, "swap": 2, "walk": 2, "rank": 3}
# Of every size.
SMALL_MOVES = {
    "op": 3,
    "swap": 2,
    "walk": 2,
    "rank": 3,
    "recreate": 8,
    "region": 0.5,
    "exchange": 0.5,
    "slice": 0.5,
    "slices": 0.3,
    "window": 0.3,
}
LARGE_MOVES = {
    "op": 0.5,
    "swap": 0.5,
    "walk": 1,
    "rank": 0.5,
    "recreate": 16,
    "region": 2,
    "exchange": 1,
    "slice": 0.5,
    "slices": 0.5,
    "window": 0.5,
}


def moves_for(problem: Problem) -> tuple[Mapping[str, float], float]:
    """Shares of the moves, and the first temperature, that suit the number of ops."""
    large = problem.n_ops >= LARGE_OPS
    return (LARGE_MOVES, LARGE_HOT) if large else (SMALL_MOVES, SMALL_HOT)


def check_shares(shares: Mapping[str, float]) -> FloatArray:
    """Share of each of ``MOVES``, summing to 1, shape [moves].

    Parameters
    ----------
    shares : mapping of str to float
        How often moves are tried, in any unit; those that are left out never.

    Raises
    ------
    UnknownNameError
        On a move that is none of ``MOVES``.
    ParamsError
        On a share that is no number >= 0, or if all are 0.
    """
    for name, share in shares.items():
        if name not in MOVES:
            raise UnknownNameError("move", name, MOVES)
        if not 0 <= share < float("inf"):
            raise ParamsError(f"the share of move {name!r} is {share}, must be a number >= 0")
    weights = np.array([float(shares.get(name, 0.0)) for name in MOVES])
    if not weights.any():
        raise ParamsError("no move has a share above 0")
    # The largest first: a sum of huge shares is beyond all numbers.
    weights /= weights.max()
    weights /= weights.sum()
    return weights


class AnnealingState(NamedTuple):
    """Where an annealing process is, and the best it has seen.

    Attributes
    ----------
    devices, priority, by_rank : int32 array, shape [ops]
        ``by_rank`` inverts ``priority``.
    cost : float64 array, shape [1]
        Objective of it, seconds.
    best_devices, best_priority : int32 array, shape [ops]
    best : float64 array, shape [1]
        Objective of the best.
    start, end : float64 array, shape [ops]
        When ops start and end in the last run that was looked at; see ``known``.
    known : int64 array, shape [1]
        0: they are of another state; 1: they are of this one; 2: and the recreation is sorted by
        them.
    level, urgency : float64, int32 array, shape [ops]
        Scratch, see :func:`doppler.schedule.urgency.urgencies`.
    tried, taken : int64 array, shape [moves]
        Moves of each kind that were simulated, and accepted.
    gained : float64 array, shape [moves]
        What moves of each kind took off the best, seconds.
    """

    devices: IntArray
    priority: IntArray
    by_rank: IntArray
    cost: FloatArray
    best_devices: IntArray
    best_priority: IntArray
    best: FloatArray
    start: FloatArray
    end: FloatArray
    known: npt.NDArray[np.int64]
    level: FloatArray
    urgency: IntArray
    tried: npt.NDArray[np.int64]
    taken: npt.NDArray[np.int64]
    gained: FloatArray


@kernel
def objective(arrays, devices, priority, draws, bounded, penalty, limit, work):  # type: ignore[no-untyped-def]
    """Mean makespan in seconds; where memory overflows, more than any placement that fits.

    Parameters
    ----------
    priority : int32 array, shape [ops] or [0]
        Empty: first ready, first run.
    draws : Draws
    bounded : bool
        Whether memory has to be looked at.
    penalty : float
        More than any makespan of the problem, seconds; see :func:`longest_makespan`.
    limit : float
        What exceeds it may be cut short and be infinite.
    """
    # A run is cheaper than a look at the memory, so that what is too slow is not looked at.
    if limit >= penalty and bounded:
        excess = _excess(arrays, devices, priority, penalty, work)
        if excess > 0.0:
            return excess
    runs = draws.op.shape[0]
    total = 0.0
    for index in range(runs):
        total += run_drawn(
            arrays,
            devices,
            priority,
            draws.op[index],
            draws.transfer[index],
            draws.below[index],
            limit * runs - total,
            work,
        )
        if total == np.inf:
            return total
    if limit < penalty and bounded:
        excess = _excess(arrays, devices, priority, penalty, work)
        if excess > 0.0:
            return excess
    return total / runs


@kernel
def _excess(arrays, devices, priority, penalty, work):  # type: ignore[no-untyped-def]
    """Objective of a placement that overflows memory; 0 for one that fits."""
    if surely_fits(arrays, devices, work.free, work.arrival_of):
        return 0.0
    score = score_of(arrays, devices, priority, np.bool_(True), work)
    return score.makespan + penalty * (1.0 + score.overflow) if score.overflow > 0.0 else 0.0


@kernel
def anneal(  # type: ignore[no-untyped-def]
    arrays,
    land,
    draws,
    bounded,
    penalty,
    order,
    seed,
    steps,
    temperature,
    shares,
    unit,
    state,
    log,
    scratch,
    work,
):
    """Try moves at one temperature, O(one simulation) each, less where one is soon seen to lose.

    Parameters
    ----------
    land : Landscape
    draws : Draws
        The durations that all these moves are compared on.
    bounded, penalty
        As for :func:`objective`.
    order : int
        ``FIRST_READY``, ``RANKED`` or ``URGENT``. Where it is not by rank, the ranks only say
        which ops are near.
    steps : int
    temperature : float
        Seconds.
    shares : float64 array, shape [moves]
        Of each of ``MOVES``, summing to 1.
    unit : float
        Mean time of an op, seconds.
    state : AnnealingState
        Changed in place.
    log : Log
    scratch : Recreation
    work : Workspace
    """
    np.random.seed(seed)
    devices, priority, by_rank = state.devices, state.priority, state.by_rank
    n_ops = len(devices)
    queue = priority
    if order == FIRST_READY:
        queue = priority[:0]
    elif order == URGENT:
        queue = state.urgency
    cost = state.cost[0]
    for _ in range(steps):
        count = np.int64(0)
        source = -1
        rank = -1
        kind = 0
        drawn = np.random.random() - shares[0]
        while drawn >= 0.0 and kind + 1 < len(shares):
            kind += 1
            drawn -= shares[kind]
        op = np.random.randint(0, n_ops)
        if kind == OP:
            count = move_op(arrays, land, devices, op, target_of(arrays, devices, op), log, count)
        elif kind == SWAP:
            other = np.random.randint(0, n_ops)
            if np.random.randint(0, 2) == 0:
                near = priority[op] + np.random.randint(-NEAR, NEAR + 1)
                other = by_rank[min(n_ops - 1, max(0, near))]
            here, there = np.int64(devices[op]), np.int64(devices[other])
            if here != there and (arrays.group[op] < 0 or arrays.group[op] != arrays.group[other]):
                count = move_op(arrays, land, devices, op, there, log, count)
                count = move_op(arrays, land, devices, other, here, log, count)
        elif kind == WALK:
            target = target_of(arrays, devices, op)
            count = move_walk(arrays, land, devices, op, target, log, count)
        elif kind == RANK:
            if order != RANKED:
                continue
            source = priority[op]
            rank = np.random.randint(0, n_ops)
            if np.random.randint(0, 2) == 0:
                rank = min(n_ops - 1, max(0, source + np.random.randint(-NEAR, NEAR + 1)))
            if rank != source:
                move_rank(priority, by_rank, np.int64(source), rank)
        elif kind == RECREATE:
            if state.known[0] == 0:
                if order == URGENT:
                    urgencies(arrays, devices, state.level, queue)
                run(arrays, devices, queue, 0.0, np.int64(0), np.bool_(False), work)
                state.start[:] = work.start
                state.end[:] = work.end
            if state.known[0] < 2:
                sort_by_start(arrays, state.start, scratch)
                state.known[0] = 2
            scratch.before[:] = devices
            begin, stop = ruin_and_recreate(
                arrays, unit, op, state.start, state.end, devices, scratch
            )
            for step in range(begin, stop):
                other = scratch.order[step]
                if devices[other] != scratch.before[other]:
                    log.op[count] = other
                    log.before[count] = scratch.before[other]
                    count += 1
        elif kind in (REGION, EXCHANGE):
            size = np.int64(2.0 ** np.random.uniform(2.0, np.log2(LARGE_REGION)))
            size = min(size, np.int64(n_ops))
            home = np.int64(devices[op])
            target = np.int64(target_of(arrays, devices, op))
            other = op
            if kind == EXCHANGE:
                # Something near that is there comes here in exchange.
                for _ in range(8):
                    near = priority[op] + np.random.randint(-8 * NEAR, 8 * NEAR + 1)
                    other = by_rank[min(n_ops - 1, max(0, near))]
                    if devices[other] == target:
                        break
                if devices[other] != target:
                    continue
            if target != home:
                count = move_region(arrays, land, devices, op, target, size, log, count)
                if kind == EXCHANGE and devices[other] == target:
                    size = min(size, np.int64(max(count, 1)))
                    count = move_region(arrays, land, devices, other, home, size, log, count)
        elif kind == SLICE:
            target = target_of(arrays, devices, op)
            count = move_slice(arrays, land, devices, op, target, log, count)
        elif kind == SLICES:
            count = swap_slices(arrays, land, devices, op, log, count)
        else:
            count = swap_window(
                arrays, land, devices, by_rank, op, np.int64(priority[op]), log, count
            )
        if count == 0 and rank == source:
            continue
        state.tried[kind] += 1
        limit = cost - temperature * np.log(max(np.random.random(), 1e-300))
        if order == URGENT:
            urgencies(arrays, devices, state.level, queue)
        new = objective(arrays, devices, queue, draws, bounded, penalty, limit, work)
        if new <= limit:
            state.taken[kind] += 1
            cost = new
            state.start[:] = work.start
            state.end[:] = work.end
            state.known[0] = 1
            if cost < state.best[0]:
                state.gained[kind] += state.best[0] - cost
                state.best[0] = cost
                state.best_devices[:] = devices
                state.best_priority[:] = priority
        else:
            undo(devices, log, count)
            if rank != source:
                move_rank(priority, by_rank, rank, source)
    state.cost[0] = cost


@dataclass
class Chain:
    """One annealing process.

    Attributes
    ----------
    state : AnnealingState
    draws : Draws
        What its moves are compared on at present.
    label : str
        Where it started, for people.
    reference : float
        Makespan of the start, memory aside, seconds.
    champion : tuple of int32 arrays, shape [ops]
        Devices and priority of the best that has stood a comparison on fresh draws.
    work : Workspace
    log : Log
    scratch : Recreation
    evaluations : int
    renewed : int
        Evaluations at the last renewal of the draws.
    steps : int
        Moves between two looks at the clock.
    """

    state: AnnealingState
    draws: Draws
    label: str
    reference: float
    champion: tuple[IntArray, IntArray]
    work: Workspace
    log: Log
    scratch: Recreation
    evaluations: int = 0
    renewed: int = 0
    steps: int = 1

    @property
    def best(self) -> float:
        """Objective of the best state so far, on the present draws, seconds."""
        return float(self.state.best[0])

    @property
    def placement(self) -> Placement:
        """The best state so far."""
        return Placement(self.state.best_devices, self.state.best_priority)


@dataclass(frozen=True, eq=False)
class Refined:
    """What annealing made of a start.

    Attributes
    ----------
    placement : Placement
    objective : float
        On the last draws, seconds; more than any makespan of the problem if memory overflows.
    label : str
        Where it started.
    """

    placement: Placement
    objective: float
    label: str


class Annealer:
    """Anneals one problem from given placements, on every core.

    Parameters
    ----------
    problem : Problem
    threads : int, optional
        Number of chains that run at once, by default one per core.
    runtime : {"priority", "fifo"}
        What the placements are for. Where the run-time ignores priorities, only devices change.
    shares : mapping of str to float
        How often each of ``MOVES`` is tried, in any unit.
    jitter : float
        Under which the expected makespan is minimized; 0: the makespan without noise.

    Attributes
    ----------
    evaluations : int
        Placements that :meth:`refine` has tried so far.

    Raises
    ------
    UnknownNameError, ParamsError
        As :func:`check_shares`.
    """

    def __init__(
        self,
        problem: Problem,
        threads: int | None = None,
        runtime: str = "priority",
        shares: Mapping[str, float] = PLAIN,
        jitter: float = 0.0,
    ) -> None:
        self.problem = problem
        self.threads = threads or cores()
        self.order = FIRST_READY
        if runtime == "priority":
            self.order = RANKED if jitter == 0.0 else URGENT
        self.jitter = jitter
        self.runs = max(FEWEST_RUNS, min(MOST_RUNS, RUN_OPS // problem.n_ops))
        self.evaluations = 0
        self._shares = check_shares(shares)
        self._land = landscape(problem)
        self._unit = float(problem.mean_compute.mean())
        self._bounded = problem.may_overflow
        # What overflows memory costs more than what takes longest, even under jitter.
        self._penalty = longest_makespan(problem) * float(np.exp(FARTHEST * jitter))
        # Without noise, a placement at the bound is as good as any.
        self._quiet = draw(problem, 0.0, 1, 0)
        self._floor = 0.0 if jitter > 0.0 else problem.lower_bound * (1 + 1e-9)

    def refine(
        self,
        starts: Sequence[tuple[Placement, str]],
        deadline: Deadline,
        seed: int,
        hot: float = SMALL_HOT,
        cold: float = COLD,
    ) -> list[Refined]:
        """Anneal until the deadline, each chain from one of the starts.

        All starts share the first tenth of the time, the better half of them the next, and as many
        as there are threads the rest (successive halving: Jamieson and Talwalkar, "Non-stochastic
        best arm identification and hyperparameter optimization", AISTATS 2016).

        Parameters
        ----------
        starts : sequence of (Placement, str)
            At least one, and what it is called; they may overflow memory.
        hot, cold : float
            First and last temperature as shares of the makespan; between them it falls
            geometrically with the time that has passed.

        Returns
        -------
        list of Refined
            The best first. Without jitter each is at least as good as its start; under jitter each
            is the best of its chain on the draws that it was compared on last.
        """
        draws = self._quiet if QUIET_SHARE > 0.0 else self._draw([seed, 0], self.runs)
        wanted = max(len(starts), self.threads)
        chains = [self.chain(*starts[i % len(starts)], draws) for i in range(wanted)]
        begin = deadline.elapsed
        span = max(deadline.budget - begin, 1e-9)
        alive = sorted(chains, key=lambda chain: chain.best)
        for turn, share in enumerate((0.1, 0.2, 1.0)):
            if turn > 0:
                alive.sort(key=lambda chain: chain.best)
                keep = self.threads if share == 1.0 else (len(alive) + 1) // 2
                del alive[max(self.threads, keep) :]
            end = begin + share * span

            def work(index: int, end: float = end, turn: int = turn) -> None:
                mine = alive[index :: self.threads]
                if self.jitter > 0.0 and turn > 0:
                    # The chains have just been compared on other draws than their own.
                    for chain in mine:
                        self._score(chain)
                for number, chain in enumerate(mine):
                    until = deadline.elapsed + (end - deadline.elapsed) / (len(mine) - number)
                    rng = np.random.default_rng([seed, 2, turn, index, number])
                    while deadline.elapsed < until and chain.best > self._floor:
                        cooled = min(1.0, (deadline.elapsed - begin) / span)
                        heat = hot * (cold / hot) ** cooled
                        self._slice(chain, rng, heat, cooled < QUIET_SHARE, deadline)

            if deadline.left > 0:
                with ThreadPoolExecutor(self.threads) as pool:
                    list(pool.map(work, range(self.threads)))
            if self.jitter > 0.0:
                draws = self._draw([seed, 1, turn], CHECKS * self.runs)
                for chain in alive:
                    self._compare(chain, draws)
        self.evaluations += sum(chain.evaluations for chain in chains)
        alive.sort(key=lambda chain: chain.best)
        return [
            Refined(
                Placement(
                    chain.state.best_devices,
                    self._queue(chain.state.best_devices, chain.state.best_priority)
                    if self.order != FIRST_READY
                    else chain.state.best_priority,
                ),
                chain.best,
                chain.label,
            )
            for chain in alive
        ]

    def _slice(
        self,
        chain: Chain,
        rng: np.random.Generator,
        heat: float,
        quiet: bool,
        deadline: Deadline,
    ) -> None:
        """Anneal for a moment; then see whether what was found holds on other draws."""
        scale = max(min(chain.best, chain.reference), 1e-300)
        started = deadline.elapsed
        self.advance(chain, int(rng.integers(2**31)), chain.steps, heat * scale)
        took = max(deadline.elapsed - started, 1e-9)
        chain.steps = int(max(1, min(4 * chain.steps, chain.steps * SLICE_SECONDS / took)))
        if self.jitter > 0.0 and chain.evaluations - chain.renewed >= RENEWED:
            chain.renewed = chain.evaluations
            self._compare(chain, self._draw(int(rng.integers(2**31)), CHECKS * self.runs))
            seed = int(rng.integers(2**31))
            chain.draws = self._quiet if quiet else self._draw(seed, self.runs)
            self._score(chain)

    def _draw(self, seed: int | list[int], runs: int) -> Draws:
        return draw(self.problem, self.jitter, runs, seed)

    def _compare(self, chain: Chain, draws: Draws) -> None:
        """Let the best of the last draws, the present state and the champion meet on new draws."""
        state = chain.state
        found = [
            (state.best_devices.copy(), state.best_priority.copy()),
            (state.devices.copy(), state.priority.copy()),
            chain.champion,
        ]
        costs = [self._objective(*each, draws, chain.work) for each in found]
        winner = int(np.argmin(costs))
        chain.champion = found[winner]
        state.best_devices[:], state.best_priority[:] = found[winner]
        state.best[0] = costs[winner]

    def _score(self, chain: Chain) -> None:
        """Put down what the state and the best cost on the present draws."""
        state = chain.state
        state.known[0] = 0
        state.cost[0] = self._objective(state.devices, state.priority, chain.draws, chain.work)
        state.best[0] = self._objective(
            state.best_devices, state.best_priority, chain.draws, chain.work
        )

    def _objective(
        self, devices: IntArray, priority: IntArray, draws: Draws, work: Workspace
    ) -> float:
        queue = self._queue(devices, priority)
        return float(
            objective(
                self.problem.arrays,
                devices,
                queue,
                draws,
                self._bounded,
                self._penalty,
                np.inf,
                work,
            )
        )

    def _queue(self, devices: IntArray, priority: IntArray) -> IntArray:
        if self.order == FIRST_READY:
            return priority[:0]
        return priority if self.order == RANKED else urgent_first(self.problem, devices)

    def advance(self, chain: Chain, seed: int, steps: int, temperature: float) -> None:
        """Try so many moves of a chain at one temperature, in seconds."""
        anneal(
            self.problem.arrays,
            self._land,
            chain.draws,
            self._bounded,
            self._penalty,
            self.order,
            seed,
            steps,
            temperature,
            self._shares,
            self._unit,
            chain.state,
            chain.log,
            chain.scratch,
            chain.work,
        )
        # Moves that change nothing are not simulated.
        chain.evaluations = int(chain.state.tried.sum())

    def chain(self, start: Placement, label: str = "", draws: Draws | None = None) -> Chain:
        """Begin a chain at a placement, which may overflow memory."""
        if draws is None:
            draws = self._draw(0, self.runs)
        n_ops = self.problem.n_ops
        devices = start.devices.copy()
        priority = ranks(self.problem, start)
        edges = self.problem.graph.n_edges if self._bounded else 0
        work = make_workspace(n_ops, self.problem.n_devices, edges)
        queue = self._queue(devices, priority)
        quiet = run(self.problem.arrays, devices, queue, 0.0, 0, False, work)[0]
        state = AnnealingState(
            devices,
            priority,
            np.argsort(priority).astype(np.int32),
            np.empty(1),
            devices.copy(),
            priority.copy(),
            np.empty(1),
            np.empty(n_ops),
            np.empty(n_ops),
            np.zeros(1, np.int64),
            np.empty(n_ops),
            np.empty(n_ops, np.int32),
            np.zeros(len(MOVES), np.int64),
            np.zeros(len(MOVES), np.int64),
            np.zeros(len(MOVES)),
        )
        chain = Chain(
            state,
            draws,
            label,
            float(quiet),
            (devices.copy(), priority.copy()),
            work,
            make_log(n_ops),
            make_recreation(self.problem.arrays),
        )
        self._score(chain)
        return chain


def longest_makespan(problem: Problem) -> float:
    """Seconds > 0 that no placement exceeds: every op and every transfer by itself, at its slowest.

    At any time before the end some op runs or some transfer is on its way.
    """
    arrays = problem.arrays
    copies = np.minimum(np.diff(arrays.succ_ptr), problem.n_devices - 1)
    moved = arrays.latency.max() + arrays.volume * arrays.factor.max()
    return float(problem.most_compute.sum() + (copies * moved).sum()) or 1.0
