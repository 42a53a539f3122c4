"""The simulator's rules as a model for CP-SAT, the constraint solver of OR-Tools.

A schedule is one that the simulator can produce if and only if no device idles before an op that
was ready (a non-delay schedule, Baker, "Introduction to Sequencing and Scheduling", 1974). So each
op starts at time 0, or as another op of its device ends, or after a gap; and after a gap only at
the moment at which it becomes ready, when no op that its device runs later was ready before. With
the order of the starts as priorities the simulator then makes the same schedule, unless ops that
take no time make others ready within one moment, in which the simulator goes by device.

L. Perron and F. Didier, "CP-SAT", OR-Tools, Google, 2024.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from ortools.sat.python import cp_model

from doppler.exact.queues import Queues
from doppler.exact.whole_times import WholeTimes
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.schedule.ranks import rank_of
from doppler.simulator import simulate

IntArray = npt.NDArray[np.int32]

# Rounded down, an end that is the start of the next op, and a moment of readiness that is a start,
# may differ by so many units: one less than the numbers that were rounded.
_END_SLACK, _READY_SLACK = 1, 2


class Solved(NamedTuple):
    """What the solver found.

    Attributes
    ----------
    placement : Placement or None
        None if it found none that is as good as the start.
    bound : float
        Seconds; 0 if it proved nothing.
    """

    placement: Placement | None
    bound: float


def solve(
    problem: Problem,
    times: WholeTimes,
    *,
    start: Placement,
    longest: float,
    bound: float,
    budget: float,
    seed: int,
    threads: int,
) -> Solved:
    """Solve the problem.

    Parameters
    ----------
    problem : Problem
    times : WholeTimes
    start : Placement
        To begin with.
    longest, bound : float
        Its makespan, and one that none can beat, seconds.
    budget : float
        Seconds.
    seed, threads : int
    """
    model = _Model(problem, times, times.down(longest), times.down(bound))
    model.hint(start)
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.max_time_in_seconds = budget
    parameters.random_seed = seed
    parameters.num_workers = threads
    status = solver.solve(model.model)
    if status == cp_model.INFEASIBLE:
        # Cannot be, but for ops without time: the start itself is a solution.
        return Solved(None, 0.0)
    proven = max(0.0, float(solver.best_objective_bound)) * times.unit
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Solved(None, proven)
    devices = np.array(
        [
            next(d for d, chosen in enumerate(row) if chosen is not None and solver.value(chosen))
            for row in model.on
        ],
        np.int32,
    )
    position = np.empty(problem.n_ops, np.int64)
    position[problem.arrays.order] = np.arange(problem.n_ops)
    starts = np.array([solver.value(begin) for begin in model.start])
    order = np.lexsort((position, starts)).astype(np.int32)
    return Solved(Placement(devices, rank_of(order)), proven)


class _Model:
    """Variables and constraints; ``on[v][d]`` is None where op ``v`` cannot run on ``d``."""

    def __init__(self, problem: Problem, times: WholeTimes, horizon: int, bound: int) -> None:
        self.problem = problem
        self.times = times
        self.n_ops, self.n_devices = problem.n_ops, problem.n_devices
        self.model = model = cp_model.CpModel()
        self.edges = list(zip(problem.graph.src.tolist(), problem.graph.dst.tolist(), strict=True))
        self.edges = list(dict.fromkeys(self.edges))
        self.able = times.compute >= 0
        self.queued = bool((problem.arrays.channel >= 0).any())
        ops = range(self.n_ops)
        self.on: list[list[Any]] = [
            [model.new_bool_var("") if self.able[v, d] else None for d in range(self.n_devices)]
            for v in ops
        ]
        for row in self.on:
            model.add_exactly_one([chosen for chosen in row if chosen is not None])
        self.start = [model.new_int_var(0, horizon, f"start{v}") for v in ops]
        self.seconds = [self._chosen(v, times.compute[v]) for v in ops]
        self.end = [self.start[v] + self.seconds[v] for v in ops]
        self.makespan = model.new_int_var(min(bound, horizon), horizon, "makespan")
        for v in ops:
            model.add(self.end[v] <= self.makespan)
        self.same: dict[tuple[int, int], Any] = {}
        self.before: dict[tuple[int, int], Any] = {}
        self._pairs()
        self._no_overlap()
        self.ready = self._readiness(horizon)
        self._never_idle()
        self._interchangeable()
        model.minimize(self.makespan)

    def _chosen(self, v: int, values: npt.NDArray[np.int64]) -> Any:
        """Return the value of the device of an op."""
        return sum(
            int(values[d]) * chosen for d, chosen in enumerate(self.on[v]) if chosen is not None
        )

    def _pairs(self) -> None:
        """Say of every two ops whether they share a device, and if so which goes first."""
        model, group = self.model, self.problem.arrays.group
        reaches = _reachable(self.n_ops, self.problem.arrays.order, self.edges)
        for u, v in combinations(range(self.n_ops), 2):
            same: Any = 0
            if (self.able[u] & self.able[v]).any():
                same = model.new_bool_var("")
                for on_u, on_v in zip(self.on[u], self.on[v], strict=True):
                    for one, other in ((on_u, on_v), (on_v, on_u)):
                        if one is not None:
                            rest = [] if other is None else [other]
                            model.add_bool_or([*rest, ~one, ~same])
                    if on_u is not None and on_v is not None:
                        model.add_bool_or([same, ~on_u, ~on_v])
                if group[u] >= 0 and group[u] == group[v]:
                    model.add(same == 1)
            self.same[u, v] = self.same[v, u] = same
            if reaches[u, v] or reaches[v, u]:
                self.before[u, v], self.before[v, u] = int(reaches[u, v]), int(reaches[v, u])
            else:
                first = model.new_bool_var("")
                self.before[u, v], self.before[v, u] = first, ~first
        if (self.times.compute == 0).any():
            # Nothing else keeps ops that take no time from going round in a circle.
            for u, v, w in combinations(range(self.n_ops), 3):
                for a, b, c in ((u, v, w), (u, w, v)):
                    circle = [self.before[a, b], self.before[b, c], self.before[c, a]]
                    model.add(sum(circle) <= 2)

    def _no_overlap(self) -> None:
        model = self.model
        for d in range(self.n_devices):
            intervals = []
            for v in range(self.n_ops):
                if self.on[v][d] is not None:
                    length = int(self.times.compute[v, d])
                    intervals.append(
                        model.new_optional_fixed_size_interval_var(
                            self.start[v], length, self.on[v][d], ""
                        )
                    )
            model.add_no_overlap(intervals)
        for (u, v), same in self.same.items():
            terms = _literals(same, self.before[u, v])
            if terms is not None:
                model.add(self.start[v] >= self.end[u]).only_enforce_if(terms)

    def _readiness(self, horizon: int) -> list[Any]:
        """Define when each op becomes ready: when the last of its inputs has arrived."""
        model = self.model
        arrivals: list[list[Any]] = [[] for _ in range(self.n_ops)]
        queues = self._queues(horizon)
        for u, v in self.edges:
            arrivals[v].append(
                self.end[u] + self._moved(u, v) if queues is None else queues.arrival(u, v)
            )
        ready: list[Any] = []
        for v, inputs in enumerate(arrivals):
            if not inputs:
                ready.append(0)
                continue
            moment = model.new_int_var(0, horizon, "")
            model.add_max_equality(moment, inputs)
            model.add(self.start[v] >= moment)
            ready.append(moment)
        return ready

    def _queues(self, horizon: int) -> Queues | None:
        """Let transfers take turns, if any links do."""
        if not self.queued:
            return None
        slack = 0 if self.times.exact else _END_SLACK
        return Queues(
            self.model,
            self.problem,
            self.times,
            self.on,
            self.end,
            self.before,
            horizon,
            slack,
        )

    def _moved(self, u: int, v: int) -> Any:
        """Return the time that the output of ``u`` takes to reach ``v``."""
        model, moved = self.model, self.times.transfer[u]
        pairs = [
            (a, b)
            for a in range(self.n_devices)
            for b in range(self.n_devices)
            if self.able[u, a] and self.able[v, b]
        ]
        apart = {int(moved[a, b]) for a, b in pairs if a != b}
        if not apart:
            return 0
        if len(apart) == 1:
            (seconds,) = apart
            return seconds - seconds * self.same[u, v]
        values = sorted(apart | {0})
        taken = model.new_int_var_from_domain(cp_model.Domain.from_values(values), "")
        for a, b in pairs:
            model.add(taken == int(moved[a, b])).only_enforce_if([self.on[u][a], self.on[v][b]])
        return taken

    def _never_idle(self) -> None:
        """Let each op start at 0, as another ends, or at the moment at which a device gets work."""
        model = self.model
        ends = 0 if self.times.exact else _END_SLACK
        slack = 0 if self.times.exact else _READY_SLACK
        for w in range(self.n_ops):
            at_once, after_gap = model.new_bool_var(""), model.new_bool_var("")
            reasons = [at_once, after_gap]
            model.add(self.start[w] == 0).only_enforce_if(at_once)
            model.add(self.start[w] <= self.ready[w] + slack).only_enforce_if(after_gap)
            for v in range(self.n_ops):
                if v == w:
                    continue
                earlier = _literals(self.same[v, w], self.before[v, w])
                if earlier is not None:
                    follows = model.new_bool_var("")
                    for literal in earlier:
                        model.add_implication(follows, literal)
                    model.add(self.start[w] <= self.end[v] + ends).only_enforce_if(follows)
                    reasons.append(follows)
                later = _literals(self.same[v, w], self.before[w, v])
                if later is not None:
                    model.add(self.ready[v] + slack >= self.start[w]).only_enforce_if(
                        [after_gap, *later]
                    )
            model.add_bool_or(reasons)

    def _interchangeable(self) -> None:
        """Let an op use the next of devices that are all alike only after the last one was used."""
        moved = self.times.transfer[:, ~np.eye(self.n_devices, dtype=bool)]
        # Of transfers that are asked for at one moment, those of the lower device go first.
        self.alike = (
            self.n_devices > 1
            and not self.queued
            and bool(
                (self.times.compute == self.times.compute[:, :1]).all()
                and (moved == moved[:, :1]).all()
            )
        )
        order = self.problem.arrays.order.tolist() if self.alike else []
        for place, v in enumerate(order):
            for d in range(1, self.n_devices):
                used = [self.on[u][d - 1] for u in order[:place]]
                self.model.add_bool_or([~self.on[v][d], *used])

    def hint(self, placement: Placement) -> None:
        """Tell the solver a placement, as the simulator runs it."""
        trace = simulate(self.problem, placement).trace
        starts = np.empty(self.n_ops)
        starts[trace.op] = trace.start
        rank = np.empty(self.n_ops, np.int64)
        rank[trace.op] = np.arange(self.n_ops)
        devices = self._renamed(placement.devices)
        for v in range(self.n_ops):
            self.model.add_hint(self.start[v], self.times.down(float(starts[v])))
            for d, chosen in enumerate(self.on[v]):
                if chosen is not None:
                    self.model.add_hint(chosen, int(devices[v] == d))
        for u, v in combinations(range(self.n_ops), 2):
            if not isinstance(self.same[u, v], int):
                self.model.add_hint(self.same[u, v], int(devices[u] == devices[v]))
            if not isinstance(self.before[u, v], int):
                self.model.add_hint(self.before[u, v], int(rank[u] < rank[v]))

    def _renamed(self, devices: IntArray) -> IntArray:
        """Rename devices that are all alike as :meth:`_interchangeable` asks for."""
        if not self.alike:
            return devices
        ordered = devices[self.problem.arrays.order]
        first = {device: place for place, device in enumerate(dict.fromkeys(ordered.tolist()))}
        return np.array([first[device] for device in devices.tolist()], np.int32)


def _literals(same: Any, before: Any) -> list[Any] | None:
    """Return what must be true for a pair to share a device in that order; None: it never is."""
    conditions = (same, before)
    if any(isinstance(one, int) and not one for one in conditions):
        return None
    return [one for one in conditions if not isinstance(one, int)]


def _reachable(n_ops: int, order: IntArray, edges: list[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    """Say from which op a path leads to which, shape [ops, ops]."""
    consumers: list[list[int]] = [[] for _ in range(n_ops)]
    for u, v in edges:
        consumers[u].append(v)
    reaches = np.zeros((n_ops, n_ops), bool)
    for u in order[::-1].tolist():
        for v in consumers[u]:
            reaches[u] |= reaches[v]
            reaches[u, v] = True
    return reaches
