"""Every method that learns by episodes, by name; and critical path, restarted as often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from doppler.baselines.doppler_paper import published_learner
from doppler.heuristics.critical_path import critical_path_schedule
from doppler.heuristics.whole_graph import whole_graph
from doppler.placement import Placement
from doppler.policy.checkpoint import PRETRAINED, load_policy
from doppler.policy.hint import make_hint
from doppler.problem import Problem
from doppler.schedule.ranks import rank_of
from doppler.training.case import new_policy
from doppler.training.dual_learner import DualLearner, DualSettings
from doppler.training.single import Batch, EpisodeCurve, EpisodeLearner, LearnedPlacement, costs_of

#: Hints that the pretrained policy's batches take turns with.
HINTS = 2
# What is learned already is not to be lost.
TRAINED_RATE = 3e-4


class Restarts:
    """Critical path, each episode a restart with other draws among equals: it learns nothing.

    Parameters
    ----------
    problem : Problem
    runtime : {"priority", "fifo"}
    """

    def __init__(self, problem: Problem, runtime: str = "priority") -> None:
        self.problem = problem
        self.honored = runtime == "priority"
        self._best: tuple[float, Placement] | None = None

    def update(self, seeds: Sequence[int], progress: float) -> Batch:
        """Make one list schedule for each seed."""
        made = [critical_path_schedule(self.problem, seed) for seed in seeds]
        devices = np.stack([placed for _, placed, _ in made])
        priority = np.stack([rank_of(order) for order, _, _ in made]) if self.honored else None
        costs = costs_of(self.problem, devices, priority)
        index = int(costs.argmin())
        if self._best is None or costs[index] < self._best[0]:
            rank = None if priority is None else priority[index]
            self._best = float(costs[index]), Placement(devices[index], rank)
        return Batch(devices, priority, costs)

    def greedy(self) -> Placement:
        """Return the best of all restarts."""
        if self._best is None:
            self.update([0], 0.0)
        assert self._best is not None
        return self._best[1]


def untrained(problem: Problem, seed: int) -> EpisodeLearner:
    """Start our own policy, without hints and search."""
    return DualLearner(problem, new_policy(seed))


def untrained_dual(name: str, problem: Problem, seed: int) -> DualLearner:
    """Start one of ``UNTRAINED``, to train it in stages or on several problems."""
    learner = LEARNERS[name](problem, seed)
    assert isinstance(learner, DualLearner)
    return learner


def trained(problem: Problem, seed: int) -> EpisodeLearner:
    """Go on from the policy of the package, with hints and without search."""
    hints = [make_hint(problem, devices) for devices, _ in whole_graph(problem, HINTS, seed)]
    settings = DualSettings(learning_rate=TRAINED_RATE)
    return DualLearner(problem, load_policy(PRETRAINED), settings, hints)


def _gdp(problem: Problem, seed: int) -> EpisodeLearner:
    from doppler.baselines.gdp import GdpLearner

    return GdpLearner(problem, seed=seed)


def _placeto(problem: Problem, seed: int) -> EpisodeLearner:
    from doppler.baselines.placeto import PlacetoLearner

    return PlacetoLearner(problem, seed=seed)


LEARNERS: dict[str, Callable[[Problem, int], EpisodeLearner]] = {
    "critical_path": lambda problem, seed: Restarts(problem),
    "critical_path, first ready": lambda problem, seed: Restarts(problem, "fifo"),
    "placeto": _placeto,
    "gdp": _gdp,
    "doppler-paper": published_learner,
    "doppler-policy": untrained,
    "doppler": trained,
}
#: Of them, the dual policies that start from scratch: as published, and our own, which begins as a
#: list scheduler.
UNTRAINED = ("doppler-paper", "doppler-policy")


def run_of(found: LearnedPlacement) -> dict[str, Any]:
    """Say as plain JSON what came of learning.

    ``first_s`` and ``last_s`` are means over the first and the last eighth of all batches.
    """
    some = max(1, len(found.curve.mean) // 8)
    return {
        "makespan_s": found.makespan,
        "greedy_s": found.greedy,
        "first_s": float(found.curve.mean[:some].mean()),
        "last_s": float(found.curve.mean[-some:].mean()),
        "seconds": float(found.curve.seconds[-1]),
        "curve": curve_of(found.curve),
    }


def curve_of(curve: EpisodeCurve) -> dict[str, list[float]]:
    """Say a curve as plain JSON, to six digits."""
    return {
        "episodes": curve.episodes.tolist(),
        "seconds": [round(value, 4) for value in curve.seconds.tolist()],
        "mean_s": _rounded(curve.mean),
        "best_s": _rounded(curve.best),
    }


def _rounded(values: Any) -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]
