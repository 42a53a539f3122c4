"""The doppler method: the policy's greedy episode, sampled episodes, then local search."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from doppler.cluster import Cluster
from doppler.errors import MemoryLimitError
from doppler.graph import Graph
from doppler.heuristics.base import Deadline, Heuristic, Solution, fitting_solution
from doppler.heuristics.critical_path import critical_path
from doppler.heuristics.heft import heft
from doppler.heuristics.random import random
from doppler.heuristics.sibling_affinity import sibling_affinity
from doppler.heuristics.single_device import single_device
from doppler.placement import Placement
from doppler.policy.network import DualPolicy, Sizes, policy_inputs
from doppler.policy.rollout import GREEDY, SAMPLE, Roller
from doppler.policy.threads import one_torch_thread
from doppler.problem import Problem
from doppler.search.local_search import Annealer
from doppler.simulator import DEFAULT_JITTER, simulate

# Share of the budget that goes into sampled episodes before the local search.
SAMPLING_SHARE = 0.1
# Episodes between two looks at the clock.
BATCH = 16
# Of the moves of the local search. More serves where devices share few links, plain moves serve
# where every pair has one of its own; this does well on both.
RECREATE_SHARE = 0.15
# From so many ops on, a layer is worth sharing among cores that other processes may hold.
THREADED_OPS = 50_000
# What a greedy episode that does not fit in memory is worth, whatever the budget.
RESCUE_SECONDS = 1.0
# Of what is left of the budget, for each method in turn until something fits.
RESCUE_SHARE = 0.15
# Placements that the local search may start from: one for each of as many cores.
KEPT = 8
SCHEDULES: tuple[Heuristic, ...] = (sibling_affinity, critical_path)
# Tried as well as long as nothing fits in memory.
RESCUERS: tuple[Heuristic, ...] = (heft, single_device, random)


@dataclass(frozen=True, eq=False)
class _Entry:
    placement: Placement
    overflow: float
    makespan: float
    origin: str


class _Pool:
    """The best few placements so far; those that fit in memory come before those that do not."""

    def __init__(self, problem: Problem, runtime: str) -> None:
        self.problem = problem
        self.runtime = runtime
        self.evaluations = 0
        self._entries: list[_Entry] = []

    def offer(self, placement: Placement, makespan: float, overflow: float, origin: str) -> None:
        self.evaluations += 1
        self._entries.append(_Entry(placement, overflow, makespan, origin))
        self._entries.sort(key=lambda entry: (entry.overflow, entry.makespan))
        del self._entries[KEPT:]

    def try_out(self, placement: Placement, origin: str) -> None:
        """Simulate a placement and offer it."""
        result = simulate(self.problem, placement, runtime=self.runtime)
        capacity = self.problem.arrays.capacity
        over = np.maximum(result.peak_memory - capacity, 0.0) / capacity
        self.offer(placement, result.makespan, float(over.sum()), origin)

    @property
    def fits(self) -> bool:
        return self._entries[0].overflow == 0.0

    @property
    def best(self) -> float:
        return self._entries[0].makespan if self.fits else np.inf

    def placements(self, count: int) -> list[Placement]:
        return [entry.placement for entry in self._entries[:count]]

    def solution(self, seconds: float) -> Solution:
        winner = self._entries[0]
        return fitting_solution(
            self.problem,
            winner.placement,
            self.evaluations,
            seconds,
            winner.origin,
            self.runtime,
        )


def search(
    problem: Problem,
    policy: DualPolicy,
    *,
    budget: float = 2.0,
    seed: int = 0,
    runtime: str = "priority",
    jitter: float = DEFAULT_JITTER,
    samples: int | None = None,
) -> Solution:
    """Place a problem with a policy.

    The best of the greedy episode, of sampled episodes and two list schedules (a tenth of the
    budget), and of annealing from the best of them (the rest). A budget of 0 is the greedy episode
    alone, unless that does not fit in memory: then the others are tried as well, for a second.

    Parameters
    ----------
    problem : Problem
    policy : DualPolicy
    budget : float
        Seconds.
    seed : int
    runtime : {"priority", "fifo"}
        The run-time that the placement is for: the search minimises its makespan, and the solution
        states it.
    samples : int, optional
        Sample exactly so many episodes besides the greedy one and search no further, whatever the
        budget.

    Raises
    ------
    MemoryLimitError
        If no placement was found that fits in memory; says how much is missing where.
    """
    warm_up(policy, searching=samples is None and budget > 0)
    deadline = Deadline(budget)
    small = problem.n_ops < THREADED_OPS
    with torch.no_grad(), one_torch_thread() if small else nullcontext():
        weights = policy.weights(policy(policy_inputs(problem)))
    roller = Roller(problem)
    pool = _Pool(problem, runtime)
    rng = np.random.default_rng([seed, 1])

    def play(mode: int, count: int, origin: str) -> None:
        seeds = rng.integers(2**31, size=count).tolist()
        episodes = roller.play(weights, mode, seeds, runtime=runtime)
        for index in range(count):
            placement = Placement(episodes.devices(index), episodes.priority(index))
            cost = float(episodes.makespans[index])
            pool.offer(placement, cost, float(episodes.overflow[index]), origin)

    play(GREEDY, 1, "greedy episode")
    if samples is not None:
        while pool.evaluations <= samples:
            play(SAMPLE, min(BATCH, samples + 1 - pool.evaluations), "sampled episode")
        return pool.solution(deadline.elapsed)
    if not pool.fits:
        warm_up(policy)
        deadline.budget = max(deadline.budget, deadline.elapsed + RESCUE_SECONDS)
    if deadline.left <= 0:
        return pool.solution(deadline.elapsed)
    floor = problem.lower_bound * (1 + 1e-9)
    while deadline.elapsed < SAMPLING_SHARE * deadline.budget and pool.best > floor:
        play(SAMPLE, BATCH, "sampled episode")
    if deadline.left > 0 and pool.best > floor:
        annealer = Annealer(problem, runtime=runtime, recreate_share=RECREATE_SHARE)
        for heuristic in SCHEDULES if pool.fits else SCHEDULES + RESCUERS:
            # If none fits, annealing starts from the episode that overflows least.
            with suppress(MemoryLimitError):
                # Only restarts hit on what fills the memory to the last byte.
                share = 0.0 if pool.fits else RESCUE_SHARE * deadline.left
                found = heuristic(problem, budget=share, seed=seed)
                pool.try_out(found.placement, found.origin)
        starts = pool.placements(annealer.threads)
        placement, _, evaluations = annealer.refine(starts, deadline, seed)
        pool.evaluations += evaluations
        pool.try_out(placement, "local search from the policy's episodes")
    return pool.solution(deadline.elapsed)


def _smallest_problem() -> Problem:
    graph = Graph.from_arrays([0, 0, 1, 2], [1, 2, 3, 3], np.ones(4), np.ones(4))
    return Problem(graph, Cluster.uniform(2))


@lru_cache(maxsize=1)
def _compile_episodes(sizes: Sizes) -> None:
    problem = _smallest_problem()
    policy = DualPolicy(sizes)
    weights = policy.weights(policy(policy_inputs(problem)))
    Roller(problem).play(weights, GREEDY, [0])


@lru_cache(maxsize=1)
def _compile_search() -> None:
    problem = _smallest_problem()
    critical_path(problem)
    start = sibling_affinity(problem).placement
    annealer = Annealer(problem, threads=1, recreate_share=0.5)
    seconds = 0.05
    # No evaluation: compiling what comes before the first took all of that.
    while annealer.refine([start], Deadline(seconds), 0)[2] == 0:
        seconds *= 2.0


def warm_up(policy: DualPolicy, searching: bool = True) -> None:
    """Compile, or load from the cache, what a search runs, so that its budget is for searching.

    Parameters
    ----------
    policy : DualPolicy
    searching : bool
        False: only what an episode runs; the rest takes as long again to compile.
    """
    _compile_episodes(policy.sizes)
    if searching:
        _compile_search()
