"""Stage II: reinforcement learning on the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field

from doppler.policy.likelihood import style_density
from doppler.policy.network import DualPolicy
from doppler.policy.rollout import GREEDY, SAMPLE, Episodes
from doppler.settings import Count, Fraction, NotNegative, Positive, Share, Whole
from doppler.training.case import TrainingCase, pick_case, run_digest
from doppler.training.demonstrations import Demonstrations
from doppler.training.gradient import Gradient
from doppler.training.incumbent import Incumbents
from doppler.training.loop import CHECKPOINT_SECONDS, Loop, MetricSink, Progress, Schedule
from doppler.training.objectives import PolicyGradient, advantages


class ReinforceSettings(Schedule):
    """Settings of Stage II, beside those of its schedule.

    Attributes
    ----------
    episodes : int
        Episodes of a case in each update; they are one another's baseline.
    entropy : float
        Weight of PLC's mean entropy in the objective.
    runtime : {"priority", "fifo"}
        Whether the simulated run-time honors SEL's order.
    validate_every : int
        Updates between two looks at the greedy episodes of all cases, the best of which decide on
        the weights to end with; 0: end with the last weights.
    cases : int
        Cases in each update.
    self_imitation : bool
        Whether the incumbent of a case takes part in its batches, with the advantage that its
        makespan has there (after Oh et al., "Self-imitation learning", ICML 2018). Each hint of a
        case has its own.
    most_advantage : float
        Standard deviations by which an episode counts as better than its batch, at most.
    jitter : float
        Of the runs that an episode is judged by, as for :func:`doppler.simulate`.
    draws : int
        Runs with jitter of each episode; 0: one without.
    styles : int
        The first so many updates learn the style alone, by greedy episodes.
    style_spread : float
        How far those episodes' styles lie from the policy's: factor on the standard deviation of
        each weight's logarithm.
    unhinted : float
        Share of the batches that see no hint, of the cases that have some.
    first_hint : float
        Share of the others that see the best; the rest draw any.
    """

    episodes: Annotated[int, Field(ge=2)] = 32
    entropy: NotNegative = 0.0
    runtime: Literal["priority", "fifo"] = "priority"
    validate_every: Whole = 0
    cases: Count = 1
    self_imitation: bool = False
    most_advantage: Positive = 3.0
    jitter: Fraction = 0.0
    draws: Whole = 0
    styles: Whole = 0
    style_spread: Positive = 1.0
    unhinted: Share = 0.0
    first_hint: Share = 0.5


def reinforce(
    policy: DualPolicy,
    cases: Sequence[TrainingCase],
    settings: ReinforceSettings,
    *,
    known: Sequence[Demonstrations] | None = None,
    validation: Sequence[TrainingCase] | None = None,
    seed: int = 0,
    state: str | Path | None = None,
    tracker: MetricSink | None = None,
    progress: Progress | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    threads: int | None = None,
) -> Incumbents:
    """Lower the simulated makespan of the policy's episodes by REINFORCE.

    Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement
    learning", 1992, with the batch as its own baseline: the advantage of an episode is
    (mean cost of the batch - its cost) / standard deviation. An episode that overflows memory
    costs more than its makespan. On request the incumbent of a case joins its batch, and the policy
    ends with the weights whose greedy episodes were the best, by geometric mean over the cases.

    Parameters
    ----------
    policy : DualPolicy
        Changed in place.
    cases : sequence of TrainingCase
        Each update plays some of them; all have their turn before any has its next.
    settings : ReinforceSettings
    known : sequence of Demonstrations, optional
        Of each case: episodes that are offered as its incumbents before the first update.
    validation : sequence of TrainingCase, optional
        Whose greedy episodes, with their first hints, decide on the weights to end with; by
        default the cases trained on.
    seed : int
    state : path-like, optional
        Checkpoint file, by which a killed run goes on where it was.
    tracker : MetricSink, optional
        Receives ``ratio_to_bound`` (mean makespan over the case's lower bound),
        ``ratio_to_incumbent``, with validation ``best_score`` (the best greedy episodes
        so far over the lower bounds, geometric mean over the cases), and others.
    progress : callable, optional
        See :class:`Loop`.
    checkpoint_seconds : float
        Time between two checkpoints.
    threads : int, optional
        That differentiate; by default one per core. The result does not depend on it.

    Returns
    -------
    Incumbents
        The best placement of each case and the episode that found it.

    Raises
    ------
    DopplerError
        If there is no case, or two have one name.
    CheckpointError
        If ``state`` is not a training checkpoint; nothing is changed.
    """
    parts = [trace.choice.tobytes() for trace in known or ()]
    parts += [case.problem.fingerprint.encode() for case in validation or ()]
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

    judged: dict[str, Any] = {
        "runtime": settings.runtime,
        "jitter": settings.jitter,
        "draws": settings.draws,
    }

    def offer(case: TrainingCase, number: int, episodes: Episodes) -> None:
        loop.incumbents.offer(case.name, episodes)
        if number >= 0:
            loop.incumbents.offer(_key(case, number), episodes)

    def begin() -> None:
        for case, shown in zip(cases, known or (), strict=known is not None):
            weights = policy.weights(policy(case.inputs))
            for index in range(len(shown.order)):
                part = slice(index, index + 1)
                order, choice = shown.order[part], shown.choice[part]
                again = case.roller.follow(weights, order, choice, runtime=settings.runtime)
                offer(case, int(shown.hint[index]), again)

    def improve(case: TrainingCase, rng: np.random.Generator) -> dict[str, float]:
        number = case.draw_hint(rng, settings.unhinted, settings.first_hint)
        how = {**judged, "hint": case.hint(number)}
        seeds = rng.integers(2**31, size=settings.episodes).tolist()
        heads = policy(case.inputs, case.hint(number))
        weights = policy.weights(heads)
        episodes = case.roller.play(weights, SAMPLE, seeds, recorded=True, **how)
        offer(case, number, episodes)
        cost = episodes.costs
        record, incumbent = episodes.record, loop.incumbents.best.get(_key(case, number))
        compared = cost
        if settings.self_imitation and incumbent is not None:
            order = np.argsort(incumbent.priority).astype(np.int32)[None]
            again = case.roller.follow(weights, order, incumbent.devices[order], **how)
            record = record.joined(again.record)
            compared = np.append(cost, again.costs)
        # An incumbent far below a batch that hardly varies would drown the batch's own lesson.
        objective = PolicyGradient(
            advantages(cost, compared, settings.most_advantage),
            1.0 / (settings.episodes * settings.cases),
            settings.entropy,
            1.0 / settings.cases,
        )
        metrics = gradient.add(heads, case.problem, record, objective)
        best = incumbent.makespan if incumbent is not None else float(cost.min())
        mean = float(episodes.makespans.mean())
        return {
            "ratio_to_bound": mean / max(case.problem.lower_bound, 1e-300),
            "ratio_to_incumbent": mean / max(best, 1e-300),
            **metrics,
        }

    def vary(case: TrainingCase, rng: np.random.Generator) -> dict[str, float]:
        """Learn from greedy episodes of several styles."""
        number = case.draw_hint(rng, settings.unhinted, settings.first_hint)
        hint = case.hint(number)
        seeds = rng.integers(2**31, size=settings.episodes).tolist()
        with torch.no_grad():
            weights = policy.weights(policy(case.inputs, hint))
        how = {**judged, "hint": hint}
        episodes = case.roller.play(weights, GREEDY, seeds, spread=settings.style_spread, **how)
        offer(case, number, episodes)
        cost = np.log(np.maximum(episodes.costs, 1e-300))
        deviation = float(cost.std())
        scale = 1.0 / deviation if deviation > 1e-9 else 0.0
        advantage = torch.from_numpy((cost.mean() - cost) * scale).float()
        style = torch.from_numpy(episodes.record.style).float()
        density = style_density(policy.style(case.inputs, hint), style)
        loss = -(advantage * density).sum() / (settings.episodes * settings.cases)
        torch.autograd.backward(loss)
        best = loop.incumbents.best.get(_key(case, number))
        floor = best.makespan if best is not None else float(episodes.makespans.min())
        mean = float(episodes.makespans.mean())
        return {
            "ratio_to_bound": mean / max(case.problem.lower_bound, 1e-300),
            "ratio_to_incumbent": mean / max(floor, 1e-300),
            "style_spread": deviation,
        }

    def update(number: int) -> dict[str, float]:
        rng = np.random.default_rng([seed, 3, number])
        count = settings.cases
        play = vary if number < settings.styles else improve
        metrics: dict[str, float] = {}
        for turn in range(number * count, (number + 1) * count):
            for name, value in play(cases[pick_case(seed, turn, len(cases))], rng).items():
                metrics[name] = metrics.get(name, 0.0) + value / count
        return metrics

    def validate() -> float:
        logs = []
        with torch.no_grad():
            for case in cases if validation is None else validation:
                hint = case.hint(0 if case.hints else -1)
                weights = policy.weights(policy(case.inputs, hint))
                cost = case.roller.play(weights, GREEDY, [seed], hint=hint, **judged).costs[0]
                logs.append(np.log(max(cost, 1e-300) / max(case.problem.lower_bound, 1e-300)))
        return float(np.exp(np.mean(logs)))

    try:
        with torch.no_grad():
            begin()
        loop.run(update, validate if settings.validate_every else None, settings.validate_every)
    finally:
        gradient.close()
    return loop.incumbents


def _key(case: TrainingCase, number: int) -> str:
    """Name of the incumbents of a case that were found with a hint."""
    return case.name if number < 0 else f"{case.name} with hint {number}"
