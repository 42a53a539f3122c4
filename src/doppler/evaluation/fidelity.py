"""Fidelity: simulated against measured makespans, over placements of many kinds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from doppler.engine import Backend, Engine
from doppler.errors import DopplerError
from doppler.evaluation.diversity import Candidate
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.profiling.load import OtherLoad
from doppler.simulator import simulate

#: A placement is balanced if its busiest device has at most so many times its fair share.
BALANCED = 1.15
#: Cores that other processes may use while a run counts as calm.
CALM = 0.1
_OFFENDERS = 5


@dataclass(frozen=True, slots=True)
class Point:
    """One placement, simulated and measured.

    Attributes
    ----------
    kind : str
    simulated_s, measured_s : float
        Makespans; the measured one is the median of the runs.
    spread_s : float
        Median absolute deviation of the runs.
    balance : float
        Work of the busiest device over its fair share; 1 is even.
    calm : int
        Runs that count during which the machine did nothing else; with 0, other runs count.
    """

    kind: str
    simulated_s: float
    measured_s: float
    spread_s: float
    balance: float
    calm: int = 0

    @property
    def ratio(self) -> float:
        """Measured over simulated."""
        return self.measured_s / self.simulated_s


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How well the simulator tells the makespans of one graph.

    Attributes
    ----------
    name : str
        Of the graph.
    ops, devices : int
    points : tuple of Point
    """

    name: str
    ops: int
    devices: int
    points: tuple[Point, ...]

    @property
    def balanced(self) -> tuple[Point, ...]:
        """The placements that give no device much more than its share.

        Single devices and skewed placements make the spread wide and a correlation easy; these are
        what one chooses from.
        """
        return tuple(point for point in self.points if point.balance <= BALANCED)

    @property
    def ratio(self) -> float:
        """Median of measured over simulated."""
        return median(point.ratio for point in self.points)

    @property
    def noise(self) -> float:
        """Median of the deviation of the runs of a placement over their median."""
        return median(point.spread_s / point.measured_s for point in self.points)

    @property
    def error(self) -> float:
        """Median of ``|measured / simulated - 1|``."""
        return median(abs(point.ratio - 1.0) for point in self.points)

    def offenders(self, count: int = _OFFENDERS) -> tuple[Point, ...]:
        """Return the placements whose ratio is farthest from the usual one, the worst first."""
        usual = self.ratio
        ranked = sorted(self.points, key=lambda p: -abs(math.log(p.ratio / usual)))
        return tuple(ranked[:count])

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form: correlations, counts and every point."""
        pearson, spearman = correlations(self.points)
        balanced = self.balanced
        among_pearson, among_spearman = correlations(balanced)
        return {
            "pearson": pearson,
            "spearman": spearman,
            "placements": len(self.points),
            "balanced": {
                "pearson": among_pearson,
                "spearman": among_spearman,
                "placements": len(balanced),
            },
            "ratio": self.ratio,
            "error": self.error,
            "noise": self.noise,
            "disturbed": sum(not point.calm for point in self.points),
            "ops": self.ops,
            "devices": self.devices,
            "worst": [_point(point) for point in self.offenders()],
            "points": [_point(point) for point in self.points],
        }


def correlations(points: Sequence[Point]) -> tuple[float | None, float | None]:
    """Pearson's and Spearman's coefficient of simulated and measured makespans.

    Returns
    -------
    pearson, spearman : float or None
        None where fewer than three points, or equal ones, tell nothing.
    """
    from scipy import stats

    simulated = [point.simulated_s for point in points]
    measured = [point.measured_s for point in points]
    if len(points) < 3 or len(set(simulated)) < 2 or len(set(measured)) < 2:
        return None, None
    return (
        float(stats.pearsonr(simulated, measured).statistic),
        float(stats.spearmanr(simulated, measured).statistic),
    )


def measure_fidelity(
    problem: Problem,
    backend: Backend,
    candidates: Sequence[Candidate],
    *,
    rounds: int = 5,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Fidelity:
    """Simulate and measure every placement.

    The placements are run in turns, in another order each round, so that what the machine does
    meanwhile hits all of them; two runs warm up and do not count. A run during which other
    processes took more than ``CALM`` of a core is repeated in further rounds, at most as many
    again; runs that were disturbed count only where a placement has no other.

    Parameters
    ----------
    problem : Problem
        Of an executable graph, on a cluster that stands for the backend.
    backend : Backend
    candidates : sequence of Candidate
        At least one.
    rounds : int
        Runs of each placement.
    seed : int
        Of the orders.
    progress : callable, optional
        Told how many runs of how many are done.

    Raises
    ------
    DopplerError
        If the graph cannot run, or rounds is below 1 or there is no placement.
    """
    if rounds < 1 or not candidates:
        raise DopplerError(f"fidelity: {rounds} rounds of {len(candidates)} placements; give more")
    simulated = [simulate(problem, candidate.placement).makespan for candidate in candidates]
    taken = _run_all(problem, backend, candidates, rounds, seed, progress)
    points = []
    for candidate, seconds, (calm, others) in zip(candidates, simulated, taken, strict=True):
        runs = calm or others
        middle = median(runs)
        spread = median(abs(run - middle) for run in runs)
        balance = _balance(problem, candidate.placement)
        points.append(Point(candidate.kind, seconds, middle, spread, balance, len(calm)))
    return Fidelity(problem.graph.name, problem.n_ops, problem.n_devices, tuple(points))


def _run_all(
    problem: Problem,
    backend: Backend,
    candidates: Sequence[Candidate],
    rounds: int,
    seed: int,
    progress: Callable[[int, int], None],
) -> list[tuple[list[float], list[float]]]:
    """Return the makespans of the calm and of the other runs of each placement."""
    taken: list[tuple[list[float], list[float]]] = [([], []) for _ in candidates]
    mix = random.Random(seed)
    load = OtherLoad()
    with Engine(problem.graph, backend, seed=seed) as engine:
        for candidate in (candidates[0], candidates[-1]):
            engine.run(candidate.placement)
        for turn in range(2 * rounds):
            order = [index for index, (calm, _) in enumerate(taken) if len(calm) < rounds]
            if turn == rounds and not any(calm for calm, _ in taken):
                break  # Never calm: more of the same tells no more.
            mix.shuffle(order)
            done = sum(len(calm) + len(others) for calm, others in taken)
            of = max(rounds * len(candidates), done + len(order))
            for place, index in enumerate(order, start=1):
                load.look()
                makespan = engine.run(candidates[index].placement).makespan
                taken[index][load.look() > CALM].append(makespan)
                progress(done + place, of)
    return taken


def _balance(problem: Problem, placement: Placement) -> float:
    seconds = problem.arrays.compute[np.arange(problem.n_ops), placement.devices]
    loads = np.bincount(placement.devices, seconds, problem.n_devices)
    return float(loads.max() / loads.mean())


def _point(point: Point) -> dict[str, Any]:
    return {
        "kind": point.kind,
        "simulated_s": point.simulated_s,
        "measured_s": point.measured_s,
        "spread_s": point.spread_s,
        "ratio": point.ratio,
        "balance": point.balance,
        "calm_runs": point.calm,
    }
