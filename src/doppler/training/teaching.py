"""Let a heuristic place problems, for a policy to imitate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, field_validator

from doppler.errors import UnknownNameError
from doppler.heuristics.critical_path import critical_path_schedule
from doppler.heuristics.sibling_affinity import sibling_affinity_schedule
from doppler.policy.features import DEVICE_FEATURES
from doppler.policy.hint import Hint, make_hint
from doppler.policy.network import list_scheduler, policy_inputs
from doppler.policy.rollout import GREEDY, Roller
from doppler.problem import Problem
from doppler.settings import Count, Fraction, Positive, Settings, Whole
from doppler.training.demonstrations import Demonstrations

IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]
Teacher = Callable[[Problem, int], tuple[IntArray, IntArray, BoolArray]]

TEACHERS: dict[str, Teacher] = {
    "critical_path": critical_path_schedule,
    "sibling_affinity": sibling_affinity_schedule,
}


class TraceSettings(Settings):
    """What the teacher shows.

    Attributes
    ----------
    teacher : str
        Name of the heuristic.
    count : int
        Demonstrations of each problem.
    hints : int
        Maps and partitions of each problem that are kept, at most.
    strengths : list of float
        Weights of a hint, beside the -4 of what the list schedule minimizes, that a trace may have.
    jitter : float
    draws : int
        Runs with jitter that decide between them.
    """

    teacher: str = "sibling_affinity"
    count: Count = 2
    hints: Whole = 0
    strengths: list[Positive] = Field([1.0, 4.0, 16.0, 64.0], min_length=1)
    jitter: Fraction = 0.1
    draws: Whole = 4

    @field_validator("teacher")
    @classmethod
    def _teacher_exists(cls, teacher: str) -> str:
        if teacher not in TEACHERS:
            raise ValueError(UnknownNameError("teacher", teacher, TEACHERS))
        return teacher


def record(
    problem: Problem,
    settings: TraceSettings,
    seed: int = 0,
    hints: Sequence[tuple[IntArray, float]] = (),
) -> Demonstrations:
    """Let a teacher place a problem a few times, breaking ties anew each time.

    For each hint there is one trace more: the best of list schedules that follow it more or less
    strictly, with jitter.

    Parameters
    ----------
    problem : Problem
    settings : TraceSettings
    seed : int
    hints : sequence of (int32 array, float)
        Device of each op, and the seconds that it takes; the best first.
    """
    seeds = np.random.default_rng(seed).integers(2**32, size=settings.count).tolist()
    shown = [TEACHERS[settings.teacher](problem, each) for each in seeds]
    order = [order for order, _, _ in shown]
    choice = [devices[order] for order, devices, _ in shown]
    tied = [tied for _, _, tied in shown]
    for devices, _ in hints:
        best = _followed(problem, make_hint(problem, devices), settings)
        order.append(best[0])
        choice.append(best[1])
        tied.append(np.arange(problem.n_devices) == best[1][:, None])
    return Demonstrations(
        np.stack(order),
        np.stack(choice),
        np.stack(tied),
        np.array([*[-1] * settings.count, *range(len(hints))], np.int32),
        np.array([devices for devices, _ in hints], np.int32).reshape(-1, problem.n_ops),
        np.array([seconds for _, seconds in hints], np.float64),
        problem.fingerprint,
    )


def _followed(problem: Problem, hint: Hint, settings: TraceSettings) -> tuple[IntArray, IntArray]:
    """Order and choices of the best list schedule that follows a hint."""
    policy = list_scheduler()
    roller = Roller(problem, 1)
    jitter, draws = settings.jitter, settings.draws
    column = DEVICE_FEATURES.index("on_hint")
    best: tuple[float, IntArray, IntArray] | None = None
    with torch.no_grad():
        heads = policy(policy_inputs(problem))
        for strength in settings.strengths:
            policy.direct.weight[0, column] = strength
            weights = policy.weights(heads)
            played = roller.play(weights, GREEDY, [0], hint=hint, jitter=jitter, draws=draws)
            cost = float(played.costs[0])
            if best is None or cost < best[0]:
                best = cost, played.record.order[0], played.record.choice[0]
    assert best is not None
    return best[1], best[2]
