"""The doppler method: many starts, learned and not, and search from the best of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np

from doppler.cluster import Cluster
from doppler.errors import MemoryLimitError, MissingPackageError, UnknownNameError
from doppler.graph import Graph
from doppler.heuristics.base import Deadline, Heuristic, Solution
from doppler.heuristics.critical_path import critical_path, critical_path_schedule
from doppler.heuristics.heft import heft
from doppler.heuristics.kahypar import available
from doppler.heuristics.partition import BANDS, IMBALANCES, Partitioner
from doppler.heuristics.pipeline import pipelines
from doppler.heuristics.random import random
from doppler.heuristics.round_robin import round_robin
from doppler.heuristics.sibling_affinity import hinted_schedule, sibling_affinity
from doppler.heuristics.single_device import single_device
from doppler.heuristics.spmd import SymmetricMaps
from doppler.heuristics.stages import stages
from doppler.placement import Placement
from doppler.policy.features import FeatureSet
from doppler.policy.frozen import FrozenPolicy, Sizes
from doppler.policy.hint import Hint, make_hint
from doppler.policy.rollout import GREEDY, SAMPLE, Roller
from doppler.problem import Problem
from doppler.schedule.ranks import rank_of
from doppler.search.anneal import LARGE_OPS, SMALL_MOVES, Annealer, check_shares, moves_for
from doppler.search.pool import Pool
from doppler.simulator import DEFAULT_JITTER

if TYPE_CHECKING:
    from doppler.policy.network import DualPolicy

# Where placements come from before the annealing; an ablation leaves some out.
STARTS = ("policy", "partition", "spmd", "schedules")
# Those of them that become the hints of the policy's episodes.
HINTING = ("partition", "spmd")
# Of the budget, before the annealing, at most: hinted list schedules, symmetric maps, partitions,
# sampled episodes.
HINTED_SHARE, SPMD_SHARE, PARTITION_SHARE, SAMPLING_SHARE = 0.2, 0.25, 0.05, 0.1
# Seconds that an op costs in a partition of four bands, and a band however small, about; and the
# seconds for partitions that no budget is asked for.
PARTITION_SECONDS, BAND_SECONDS = 3e-5, 5e-3
FREE_SECONDS = 0.2
# Beyond so many ops, looking at the whole graph takes too long without a budget, and with one.
MOST_FREE_OPS, MOST_STRUCTURED_OPS = 60_000, 200_000
# Episodes between two looks at the clock.
BATCH = 8
# Hints that episodes are conditioned on, the best first.
HINTS = 3
# How much a hinted list schedule shuns other devices, in mean op times.
HINT_WEIGHTS = (3.0, 10.0, 30.0)
# For the search of something that fits in memory, whatever the budget.
RESCUE_SECONDS = 1.0
# Of what is left of the budget, for each method in turn until something fits.
RESCUE_SHARE = 0.15
SCHEDULES: tuple[Heuristic, ...] = (
    heft,
    sibling_affinity,
    critical_path,
    round_robin,
    single_device,
)
# Tried with restarts until something fits in memory.
RESCUERS: tuple[Heuristic, ...] = (stages, *SCHEDULES, random)
# Placements that the search starts from.
STARTED = 6


class Play(Protocol):
    """Plays episodes, and offers the best of them."""

    def __call__(self, mode: int, count: int, hint: Hint | None, spread: float = 0.0) -> None:
        """Play so many with a hint; ``spread``: of the style, see :class:`Roller`."""


def search(
    problem: Problem,
    policy: FrozenPolicy | DualPolicy,
    *,
    budget: float = 2.0,
    seed: int = 0,
    runtime: str = "priority",
    jitter: float = DEFAULT_JITTER,
    samples: int | None = None,
    starts: Collection[str] = STARTS,
    moves: Mapping[str, float] | None = None,
    alone: bool = False,
) -> Solution:
    """Place a problem with a policy.

    Symmetric maps and partitions of the whole graph are made first: they are starts, and the best
    of them are the hints that the policy's episodes follow or leave. List schedules and sampled
    episodes are more starts, and annealing goes on from the best of all. A budget of 0 is a few
    maps and partitions, the list schedules and the greedy episodes, the same every time; for more
    than ``MOST_FREE_OPS`` the greedy episode alone. Where nothing fits in memory, the rest is tried
    as well, for a second.

    Parameters
    ----------
    problem : Problem
    policy : FrozenPolicy or DualPolicy
    budget : float
        Seconds.
    seed : int
    runtime : {"priority", "fifo"}
        The run-time that the placement is for; the solution states its makespan.
    jitter : float
        Under which the expected makespan is minimized; 0: the makespan without noise.
    samples : int, optional
        Sample exactly so many episodes besides the greedy ones and search no further, whatever the
        budget and whether anything fits in memory.
    starts : collection of str
        Which of ``STARTS`` to use, for ablations.
    moves : mapping of str to float, optional
        Shares of the search's moves (:data:`doppler.search.anneal.MOVES`), for ablations.
    alone : bool
        Whether only the policy's episodes count, and not what their hints are made of.

    Raises
    ------
    MemoryLimitError
        If no placement was found that fits in memory; says how much is missing where.
    UnknownNameError, ParamsError
        On other starts, or on moves that :func:`doppler.search.anneal.check_shares` refuses.
    """
    for name in starts:
        if name not in STARTS:
            raise UnknownNameError("start", name, STARTS)
    if moves is not None:
        check_shares(moves)
    warm_up(policy, searching=samples is None and budget > 0)
    one = _Search(problem, policy.frozen(), budget, seed, runtime, jitter, starts, moves)
    return one.run(samples, alone)


class _Search:
    def __init__(
        self,
        problem: Problem,
        policy: FrozenPolicy,
        budget: float,
        seed: int,
        runtime: str,
        jitter: float,
        starts: Collection[str],
        moves: Mapping[str, float] | None,
    ) -> None:
        self.problem = problem
        self.policy = policy
        self.deadline = Deadline(budget)
        self.seed = seed
        self.runtime = runtime
        self.jitter = jitter
        self.used = starts
        self.moves = moves
        self.pool = Pool(problem, runtime, jitter, seed)
        self.hints: list[Hint | None] = []
        self.bands = list(BANDS)
        self.cutter: Partitioner | None = None

    def run(self, samples: int | None = None, alone: bool = False) -> Solution:
        deadline, pool = self.deadline, self.pool
        if self.problem.n_ops <= MOST_FREE_OPS:
            self.maps(Deadline(0.0))
            self.partitions()
            self.hints = [
                make_hint(self.problem, placement.devices) for placement, _ in pool.starts(HINTS)
            ]
            self.schedules()
        self.hints.append(None)
        if alone:
            pool.clear()
        play = self.episodes() if "policy" in self.used else None
        if play is not None:
            for hint in {id(hint): hint for hint in (self.hints[0], None)}.values():
                play(GREEDY, 1, hint)
        if pool.empty:
            # Annealing may get from there to what fits.
            order, devices, _ = critical_path_schedule(self.problem, self.seed)
            pool.offer(Placement(devices, rank_of(order)), "critical-path list schedule")
        if samples is not None:
            if play is not None:
                for first in range(0, samples, BATCH):
                    turn = first // BATCH % len(self.hints)
                    play(SAMPLE, min(BATCH, samples - first), self.hints[turn])
            return pool.solution(deadline.elapsed)
        if not pool.fits:
            warm_up(self.policy)
            deadline.budget = max(deadline.budget, deadline.elapsed + RESCUE_SECONDS)
        if deadline.left > 0 and not pool.settled:
            self.more_starts(play)
        if deadline.left > 0 and not pool.settled:
            self.anneal()
        return pool.solution(deadline.elapsed, at_once=deadline.budget == 0.0)

    def maps(self, until: Deadline) -> None:
        """Offer symmetric maps, and pipelines where chains share parameters."""
        if "spmd" in self.used:
            for placement in pipelines(self.problem):
                self.pool.offer(placement, "pipeline")
            for placement in SymmetricMaps(self.problem).descend(until, self.seed):
                self.pool.offer(placement, "symmetric map")

    def partitions(self, until: Deadline | None = None) -> None:
        """Offer partitions of the whole graph, as many as there is time for.

        Without a deadline it is what they cost by rule of thumb that counts, so that their number
        is the same on every machine.
        """
        if "partition" not in self.used or not available():
            return
        left, took = FREE_SECONDS, 0.0
        while self.bands:
            bands = self.bands[0]
            expected = BAND_SECONDS * bands
            expected += PARTITION_SECONDS * self.problem.n_ops * (4 + bands) / 8
            if until is not None:
                left = until.left - max(took, expected)
            else:
                left -= expected
            if left < 0:
                break
            if self.cutter is None:
                try:
                    self.cutter = Partitioner(self.problem)
                except MissingPackageError:
                    # Installed, but it does not load here; the other starts remain.
                    self.bands.clear()
                    break
            began = self.deadline.elapsed
            placement = self.cutter.cut(bands, IMBALANCES[0], self.seed)
            took = self.deadline.elapsed - began
            self.pool.offer(placement, f"partition, {bands} band{'s' if bands > 1 else ''}")
            del self.bands[0]

    def schedules(self) -> None:
        """Offer the list schedules, which cost next to nothing, and those that lean to hints."""
        if "schedules" in self.used:
            # List schedules scatter ops that could share what they hold.
            crowded = self.problem.may_overflow and self.problem.arrays.tile_bytes.size
            for heuristic in (*SCHEDULES, stages) if crowded else SCHEDULES:
                with suppress(MemoryLimitError):
                    found = heuristic(self.problem, budget=0.0, seed=self.seed)
                    self.pool.offer(found.placement, found.origin)

    def episodes(self) -> Play:
        """Encode the problem; return what plays episodes and offers their placements."""
        weigh = self.policy.encode(self.problem)
        roller = Roller(self.problem)
        rng = np.random.default_rng([self.seed, 1])

        def play(mode: int, count: int, hint: Hint | None, spread: float = 0.0) -> None:
            seeds = rng.integers(2**31, size=count).tolist()
            episodes = roller.play(
                weigh(hint), mode, seeds, runtime=self.runtime, hint=hint, spread=spread
            )
            origin = "sampled episode" if mode == SAMPLE or spread > 0.0 else "greedy episode"
            if hint is not None:
                origin += ", hinted"
            self.pool.evaluations += count
            # Those that lose without noise are not worth the runs that noise takes.
            for index in sorted(range(count), key=episodes.score)[: max(1, count // 4)]:
                placement = Placement(episodes.devices(index), episodes.priority(index))
                self.pool.offer(placement, origin)

        return play

    def more_starts(self, play: Play | None) -> None:
        """Offer what takes a part of the budget; where nothing fits in memory, whatever may fit."""
        deadline, pool, problem = self.deadline, self.pool, self.problem
        budget = deadline.left
        if not pool.fits:
            for heuristic in RESCUERS:
                with suppress(MemoryLimitError):
                    # Only restarts hit on what fills the memory to the last byte.
                    share = 0.0 if pool.fits else RESCUE_SHARE * deadline.left
                    found = heuristic(problem, budget=share, seed=self.seed)
                    pool.offer(found.placement, found.origin)
        if problem.n_ops > MOST_FREE_OPS:
            self.schedules()
        if "schedules" in self.used:
            for hint in self.hints:
                if hint is None:
                    continue
                for weight in HINT_WEIGHTS:
                    if deadline.left > (1 - HINTED_SHARE) * budget:
                        placement = hinted_schedule(problem, hint.devices, weight)
                        pool.offer(placement, "hinted list schedule")
        if problem.n_ops <= MOST_STRUCTURED_OPS:
            self.maps(Deadline(min(SPMD_SHARE * budget, deadline.left)))
        # Of small graphs more partitions find little that single moves do not.
        if LARGE_OPS <= problem.n_ops <= MOST_STRUCTURED_OPS:
            self.partitions(Deadline(min(PARTITION_SHARE * budget, deadline.left)))
        if play is not None:
            until = Deadline(min(SAMPLING_SHARE * budget, deadline.left))
            turn = 0
            while until.left > 0 and not pool.settled:
                hint = self.hints[turn // 2 % len(self.hints)]
                # By turns, every choice is drawn, or the style of greedy choices alone.
                if turn % 2 == 0:
                    play(GREEDY, BATCH, hint, 1.0)
                else:
                    play(SAMPLE, BATCH, hint)
                turn += 1

    def anneal(self) -> None:
        """Search from the best starts until the deadline."""
        moves, hot = moves_for(self.problem)
        annealer = Annealer(
            self.problem, runtime=self.runtime, shares=self.moves or moves, jitter=self.jitter
        )
        found = annealer.refine(self.pool.starts(STARTED), self.deadline, self.seed, hot)
        self.pool.evaluations += annealer.evaluations
        for each in found:
            self.pool.offer(each.placement, f"annealing from {each.label}")


def _smallest_problem() -> Problem:
    """Four ops of which a device can hold three, so that memory has to be looked at."""
    graph = Graph.from_arrays(
        [0, 0, 1, 2], [1, 2, 3, 3], np.ones(4), np.ones(4), param_bytes=np.ones(4)
    )
    return Problem(graph, Cluster.uniform(2, memory=3.0))


@lru_cache(maxsize=1)
def _compile_starts(sizes: Sizes) -> None:
    weights = {name: np.zeros(shape, np.float32) for name, shape in sizes.shapes().items()}
    policy = FrozenPolicy(sizes, FeatureSet.named("full"), weights)
    # Without noise, which takes drawing but no kernel of its own.
    one = _Search(_smallest_problem(), policy, 0.0, 0, "priority", 0.0, STARTS, None)
    one.run()
    hinted_schedule(one.problem, np.zeros(4, np.int32), 1.0)


@lru_cache(maxsize=1)
def _compile_search() -> None:
    problem = _smallest_problem()
    start = sibling_affinity(problem).placement
    # Only with a budget are maps improved by simulation.
    SymmetricMaps(problem).descend(Deadline(0.1), threads=1)
    for jitter in (0.0, DEFAULT_JITTER):
        annealer = Annealer(problem, 1, shares=SMALL_MOVES, jitter=jitter)
        annealer.advance(annealer.chain(start), 0, 200, 1.0)


def warm_up(policy: FrozenPolicy | DualPolicy, searching: bool = True) -> None:
    """Compile, or load from the cache, what a search runs, so that its budget is for searching.

    Parameters
    ----------
    policy : FrozenPolicy or DualPolicy
    searching : bool
        False: only what a budget of 0 runs; the rest takes as long again to compile.
    """
    _compile_starts(policy.sizes)
    if searching:
        _compile_search()
