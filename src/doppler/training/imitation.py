"""Stage I: imitate a teacher's traces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import numpy as np

from doppler.errors import DopplerError
from doppler.policy.network import DualPolicy
from doppler.policy.rollout import Record
from doppler.settings import Count
from doppler.training.case import TrainingCase, pick_case, run_digest
from doppler.training.demonstrations import Demonstrations
from doppler.training.gradient import Gradient
from doppler.training.loop import CHECKPOINT_SECONDS, Loop, MetricSink, Progress, Schedule
from doppler.training.objectives import Imitation


class ImitationSettings(Schedule):
    """Settings of Stage I, beside those of its schedule.

    Attributes
    ----------
    traces : int
        Demonstrations in each update.
    """

    traces: Count = 4


def imitate(
    policy: DualPolicy,
    cases: Sequence[TrainingCase],
    traces: Sequence[Demonstrations],
    settings: ImitationSettings,
    *,
    seed: int = 0,
    state: str | Path | None = None,
    tracker: MetricSink | None = None,
    progress: Progress | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    threads: int | None = None,
) -> None:
    """Raise the likelihood of a teacher's choices.

    Each update takes some traces of one case. SEL learns the teacher's order; PLC learns the set
    of devices that the teacher held for equally good: its loss is -log of their total probability.

    Parameters
    ----------
    policy : DualPolicy
        Changed in place.
    cases : sequence of TrainingCase
    traces : sequence of Demonstrations
        Of each case.
    settings : ImitationSettings
    seed : int
    state : path-like, optional
        Checkpoint file, by which a killed run goes on where it was.
    tracker : MetricSink, optional
        Receives ``select_loss`` and ``place_loss`` (per step), ``place_accuracy``, and others.
    progress : callable, optional
        See :class:`Loop`.
    checkpoint_seconds : float
        Time between two checkpoints.
    threads : int, optional
        That differentiate; by default one per core. The result does not depend on it.

    Raises
    ------
    DopplerError
        If there is no case, or two have one name, or traces are not those of their case.
    CheckpointError
        If ``state`` is not a training checkpoint; nothing is changed.
    """
    if len(traces) != len(cases):
        raise DopplerError(f"{len(cases)} training cases need as many traces, not {len(traces)}")
    for case, trace in zip(cases, traces, strict=True):
        if trace.fingerprint != case.problem.fingerprint:
            raise DopplerError(f"{case.name}: its traces are of another problem; record them again")
        if len(trace.hints) != len(case.hints):
            raise DopplerError(f"{case.name}: its traces are of other hints; record them again")
    parts = [trace.fingerprint.encode() + trace.choice.tobytes() for trace in traces]
    digest = run_digest(policy, cases, {"seed": seed, **settings.model_dump()}, *parts)
    loop = Loop(
        policy,
        settings,
        digest,
        state=state,
        tracker=tracker,
        progress=progress,
        checkpoint_seconds=checkpoint_seconds,
    )
    gradient = Gradient(policy, threads)

    def update(number: int) -> dict[str, float]:
        rng = np.random.default_rng([seed, 1, number])
        index = pick_case(seed, number, len(cases))
        case, shown = cases[index], traces[index]
        count = min(settings.traces, len(shown.order))
        picked = rng.choice(len(shown.order), count, replace=False)
        heads = policy(case.inputs)
        seen = []
        for index in picked:
            hint = case.hint(int(shown.hint[index]))
            weights = policy.weights(heads._replace(style=policy.style(case.inputs, hint)))
            order, choice = shown.order[index : index + 1], shown.choice[index : index + 1]
            seen.append(case.roller.follow(weights, order, choice, hint=hint).record)
        followed = reduce(Record.joined, seen)
        return gradient.add(heads, case.problem, followed, Imitation(shown.tied[picked]))

    try:
        loop.run(update)
    finally:
        gradient.close()
