"""Symmetric maps: for each kind of meta-op, device = f(tile coordinates)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from doppler.cores import cores
from doppler.graph.structure import structure
from doppler.heuristics.attempts import answer_once
from doppler.heuristics.base import Deadline, Solution
from doppler.heuristics.heft import upward_order
from doppler.heuristics.map_descent import (
    FOLLOW,
    MapProblem,
    MapState,
    begin,
    improve,
    improve_simulated,
    make_map_problem,
    make_map_state,
    repair,
    simulated,
)
from doppler.heuristics.symmetric_maps import Layout, make_layout, merged_kinds, stage_counts
from doppler.kernels import kernel
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.schedule.free_memory import FreeMemory, choices, clear, take
from doppler.schedule.ranks import rank_of
from doppler.simulator import simulate
from doppler.simulator.kernel import Workspace, make_workspace, run

IntArray = npt.NDArray[np.int32]

# What a second of communication costs in the model, in seconds of computation: much of it happens
# while something else computes. Starts are ranked by the first, since a start that shuns all
# communication leaves devices idle, and descents take turns with the others.
START_WEIGHT = 0.05
WEIGHTS = (0.3, 1.0, 0.1)
# Descents that are always made, whatever the budget, and those made before any is continued.
QUICK = 3
EXPLORED = 15
# Passes over all kinds of one descent, at most; ops and edges that it looks at, about; and maps of
# a kind that are weighed however large the graph.
SWEEPS = 8
EFFORT = 50_000_000
FEWEST = 4
# A descent that ends within that much of the best of those is continued by simulation, which tries
# that many choices of each kind.
PROMISING = 1.02
SIMULATED = 4
# A mixture begins with one of that many best maps, and gives that share of the kinds another.
MIXED = 10
OTHER = 0.3
# Placements that are kept.
KEPT = 8


@dataclass(frozen=True, eq=False)
class _Start:
    """Where a descent begins: the choice of every kind in a layout, and the model's weight."""

    layout: Layout
    choice: IntArray
    weight: float


@dataclass(frozen=True, eq=False)
class _Found:
    makespan: float
    attempt: int
    devices: IntArray


class SymmetricMaps:
    """The symmetric placements of a problem, and a search among them.

    Parameters
    ----------
    problem : Problem

    Attributes
    ----------
    evaluations : int
        Placements simulated so far.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.evaluations = 0
        self._structure = structure(problem.graph)
        self._kind = merged_kinds(self._structure, problem.mean_compute)
        self._plan: MapProblem = make_map_problem(problem, self._structure.meta, self._kind)
        self._priority = rank_of(upward_order(problem))
        self._lock = threading.Lock()
        self._layouts: dict[int, tuple[Layout, IntArray]] = {}

    def descend(
        self, deadline: Deadline, seed: int = 0, *, threads: int | None = None
    ) -> list[Placement]:
        """Search until the deadline, at least for the time of three descents.

        A descent begins with one map for all kinds, or a mixture, and gives kind after kind the
        choice of least cost by a model that takes meta-ops one after another: the largest load of a
        device plus the largest of a channel. Kinds may follow their producers, and then move with
        them. The best are improved further, kind by kind, by simulation. Descent ``i`` of a seed
        is the same whichever thread makes it, unless the deadline cuts it short.

        Parameters
        ----------
        deadline : Deadline
        seed : int
        threads : int, optional
            By default one per core.

        Returns
        -------
        list of Placement
            Best simulated makespan first, all different, at least one. They suit the problem, but
            are not held against the devices' memory. The priority is the rank by b-level, or none
            (first ready, first run) where that is faster.
        """
        state, work = make_map_state(self._plan), self._workspace()
        found = [self._attempt(i, self._start(i, seed), None, state, work) for i in range(QUICK)]
        if deadline.left > 0:
            workers = max(1, threads or cores())
            pairs = [(state, work)]
            pairs += [(make_map_state(self._plan), self._workspace()) for _ in range(workers - 1)]
            with ThreadPoolExecutor(workers) as pool:
                self._repeat(pool, pairs, deadline, seed, found)
        found.sort(key=lambda one: (one.makespan, one.attempt))
        return self._placements(found, work)

    def _repeat(
        self,
        pool: ThreadPoolExecutor,
        pairs: list[tuple[MapState, Workspace]],
        deadline: Deadline,
        seed: int,
        found: list[_Found],
    ) -> None:
        """Explore, then continue the best of what was found and all that come near it."""
        number = itertools.count(QUICK)
        starts: Iterator[int] = iter(range(QUICK, EXPLORED))
        limit = 0.0

        def work_off(pair: tuple[MapState, Workspace]) -> None:
            while deadline.left > 0:
                with self._lock:
                    start, attempt = next(starts, None), next(number)
                if start is None:
                    return
                one = self._attempt(attempt, self._start(start, seed), deadline, *pair, limit)
                with self._lock:
                    found.append(one)
                    found.sort(key=lambda one: (one.makespan, one.attempt))
                    del found[KEPT:]

        list(pool.map(work_off, pairs))
        best = min(found, key=lambda one: (one.makespan, one.attempt))
        limit = PROMISING * best.makespan
        number = itertools.count(EXPLORED)
        # Until here the number of an attempt is that of its start.
        starts = itertools.chain([best.attempt], itertools.count(EXPLORED))
        list(pool.map(work_off, pairs))

    def _attempt(
        self,
        attempt: int,
        start: _Start,
        deadline: Deadline | None,
        state: MapState,
        work: Workspace,
        limit: float = 0.0,
    ) -> _Found:
        """Descend from a start by the model; where that ends within ``limit``, by simulation."""
        layout, weight = start.layout, start.weight
        maps = layout.table, layout.pointers, layout.choices
        begin(self._plan, layout.table, state, start.choice, weight)
        kinds = range(start.choice.size)

        def late() -> bool:
            return deadline is not None and deadline.left <= 0

        # One pass over all maps if they are too many to be weighed more often, or over a part.
        effort = self._plan.effort
        whole = int((effort * (self._plan.ways + np.diff(layout.pointers))).sum())
        most = max(FEWEST, EFFORT // int(effort.sum()) - self._plan.ways)
        for _ in range(min(SWEEPS, max(1, EFFORT // whole))):
            moved = False
            for kind in kinds:
                if late():
                    break
                moved |= improve(self._plan, *maps, state, kind, weight, most)
            if not moved:
                break
        arrays = self.problem.arrays
        makespan = simulated(arrays, self._plan, state, self._priority, work)
        evaluations = 1
        improving = makespan <= limit
        while improving and not late():
            before = makespan
            for kind in kinds:
                if late():
                    break
                makespan, count = improve_simulated(
                    arrays, self._plan, *maps, state, kind, weight, most, SIMULATED, self._priority,
                    makespan, work,
                )  # fmt: skip
                evaluations += count
            improving = makespan < before
        repair(self._plan, state.devices, state.repaired)
        with self._lock:
            self.evaluations += evaluations
        return _Found(makespan, attempt, state.repaired.copy())

    def _start(self, number: int, seed: int) -> _Start:
        """Return the start of a number: the best ranked first, then mixtures and other layouts."""
        layout, ranked = self._layout(1)
        n_kinds = self._plan.kind_ptr.size - 1
        if number < QUICK:
            row = ranked[number % ranked.size]
            return _Start(layout, np.full(n_kinds, row, np.int32), WEIGHTS[0])
        turn, place = divmod(number - QUICK, 4)
        staged = stage_counts(self._structure.n_layers, self.problem.nodes)[1:]
        if place == 0 and staged:
            layout, ranked = self._layout(staged[turn % len(staged)])
            turn //= len(staged)
        elif place < 2:
            turn += QUICK
        rng = np.random.default_rng([seed, number])
        weight = WEIGHTS[(turn + place) % len(WEIGHTS)]
        if place < 2 and turn < ranked.size:
            return _Start(layout, np.full(n_kinds, ranked[turn], np.int32), weight)
        choice = np.full(n_kinds, rng.choice(ranked[:MIXED]), np.int32)
        for kind in np.flatnonzero(rng.random(n_kinds) < OTHER):
            own = layout.choices[layout.pointers[kind] : layout.pointers[kind + 1]]
            choice[kind] = rng.choice(np.append(own, FOLLOW) if self._plan.ways else own)
        return _Start(layout, choice, weight)

    def _layout(self, stages: int) -> tuple[Layout, IntArray]:
        """Return a layout and its maps, ranked by what one map for all kinds costs."""
        with self._lock:
            if stages not in self._layouts:
                layout = make_layout(self._structure, self._kind, self.problem.nodes, stages)
                state = make_map_state(self._plan)
                costs = []
                for row in range(len(layout.table)):
                    same = np.full(state.choice.size, row, np.int32)
                    begin(self._plan, layout.table, state, same, START_WEIGHT)
                    costs.append(state.total[0])
                ranked = np.argsort(costs, kind="stable").astype(np.int32)
                self._layouts[stages] = layout, ranked
            return self._layouts[stages]

    def _placements(self, found: list[_Found], work: Workspace) -> list[Placement]:
        arrays = self.problem.arrays
        none = np.empty(0, np.int32)
        placed: list[tuple[float, Placement]] = []
        for one in found:
            if any(np.array_equal(one.devices, other.devices) for _, other in placed):
                continue
            makespan, _ = run(arrays, one.devices, none, 0.0, 0, False, work)
            self.evaluations += 1
            priority = self._priority if one.makespan <= makespan else None
            placed.append((min(makespan, one.makespan), Placement(one.devices, priority)))
        placed.sort(key=lambda pair: pair[0])
        return [placement for _, placement in placed]

    def _workspace(self) -> Workspace:
        return make_workspace(self.problem.n_ops, self.problem.n_devices, 0)


@kernel
def _fit(arrays, wish, memory, devices):  # type: ignore[no-untyped-def]
    """Put each op where it is wished or, where there is no room, on the least loaded device."""
    clear(memory)
    load = np.zeros(len(memory.usable))
    found = np.empty(len(memory.usable), np.int32)
    compute = arrays.compute
    for op in arrays.order:
        best = np.int32(-1)
        for index in range(choices(memory, op, found)):
            device = found[index]
            if device == wish[op]:
                best = device
                break
            if best < 0 or load[device] + compute[op, device] < load[best] + compute[op, best]:
                best = device
        load[best] += compute[op, best]
        take(memory, op, best)
        devices[op] = best


def spmd(problem: Problem, *, budget: float = 0.0, seed: int = 0) -> Solution:
    """Place by symmetric maps: for each kind of meta-op, device = f(tile coordinates).

    What an engineer writes by hand, or a partitioner for single programs on multiple data finds
    (Xu et al., "GSPMD: General and Scalable Parallelization for ML Computation Graphs", 2021): one
    coordinate over the devices, two over nodes and devices within, layers over pipeline stages;
    see :meth:`SymmetricMaps.descend`. Where the graph has neither meta-ops nor tiles they are found
    (:func:`doppler.graph.structure.structure`). Three descents, then restarts until the budget
    ends. If none of the best fits in memory, the best one is changed as little as possible.

    Raises
    ------
    MemoryLimitError
        If no placement fits in memory.
    """
    deadline = Deadline(budget)
    maps = SymmetricMaps(problem)
    placements = maps.descend(deadline, seed)
    origin = "symmetric maps"
    for placement in placements:
        result = simulate(problem, placement)
        if (result.peak_memory <= problem.arrays.capacity).all():
            return Solution(placement, result.makespan, maps.evaluations, deadline.elapsed, origin)
    wish = placements[0]
    priority = np.empty(0, np.int32) if wish.priority is None else wish.priority.copy()

    def construct(memory: FreeMemory) -> tuple[IntArray, IntArray]:
        devices = np.empty(problem.n_ops, np.int32)
        _fit(problem.arrays, wish.devices, memory, devices)
        return devices, priority

    repaired = answer_once(
        problem, construct, budget=budget, origin=f"{origin}, changed to fit in memory"
    )
    return replace(
        repaired,
        evaluations=repaired.evaluations + maps.evaluations,
        seconds=deadline.elapsed,
    )
