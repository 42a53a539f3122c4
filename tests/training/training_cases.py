"""Small problems and policies to train, and what a run of training leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from random_problems import equal_cluster, untied_graph

from doppler import Problem
from doppler.policy.frozen import LOGIT_RANGE, SCORE_SCALE, Sizes
from doppler.policy.network import DualPolicy
from doppler.training.case import TrainingCase, new_policy
from doppler.training.demonstrations import Demonstrations
from doppler.training.teaching import TraceSettings, record

SMALL = Sizes(embedding=16, layers=2, hidden=8, code=4)


def small_case(
    seed: int = 0, n_ops: int = 12, n_devices: int = 3, threads: int = 1
) -> TrainingCase:
    problem = Problem(untied_graph(seed, n_ops), equal_cluster(n_devices))
    return TrainingCase(f"graph{seed}@equal{n_devices}", problem, threads)


def mixed_cases(threads: int = 1) -> list[TrainingCase]:
    """Cases with 2, 3 and 5 devices."""
    return [small_case(seed, 8 + 2 * seed, k, threads) for seed, k in ((0, 2), (1, 3), (2, 5))]


def taught(
    problem: Problem, teacher: str, count: int, seed: int = 0, hints: Sequence[Any] = ()
) -> Demonstrations:
    """Let a teacher show a problem ``count`` times."""
    return record(problem, TraceSettings(teacher=teacher, count=count), seed, hints)


def small_policy(seed: int = 0) -> DualPolicy:
    return new_policy(seed, sizes=SMALL)


def blank_policy(seed: int = 0) -> DualPolicy:
    """A policy that does not begin near a list schedule: its choices are close to even."""
    policy = small_policy(seed)
    with torch.no_grad():
        policy.direct.weight.zero_()
        policy.select_direct.weight.zero_()
        policy.select_direct.bias.zero_()
        policy.second.weight /= SCORE_SCALE
        policy.select_out.weight /= LOGIT_RANGE
        policy.select_out.bias /= LOGIT_RANGE  # type: ignore[misc]
    return policy


def weights_of(policy: DualPolicy) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in policy.state_dict().items()}


class Rows:
    """Keeps all metrics in memory."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def begin(self, after: int) -> None:
        self.rows = [row for row in self.rows if row[0] <= after]

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.rows.append((step, dict(metrics)))

    def column(self, name: str) -> list[float]:
        return [row[name] for _, row in self.rows]
