"""Stage II: reinforcement learning on the simulator."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from doppler.policy.likelihood import LogProbabilities
from doppler.policy.network import DualPolicy
from doppler.policy.rollout import GREEDY, SAMPLE, Record
from doppler.training.case import TrainingCase, pick_case, run_digest
from doppler.training.gradient import Gradient, taken
from doppler.training.incumbent import Incumbents
from doppler.training.loop import CHECKPOINT_SECONDS, Loop, Progress, Schedule, Tracker

# What memory beyond the capacity costs, as makespans per capacity.
OVERFLOW_WEIGHT = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class ReinforceSettings:
    """Settings of Stage II.

    Attributes
    ----------
    schedule : Schedule
    episodes : int
        Episodes of a case in each update; they are one another's baseline.
    entropy : float
        Weight of PLC's mean entropy in the objective.
    runtime : {"priority", "fifo"}
        Whether the simulated run-time honours SEL's order.
    validate_every : int
        Updates between two looks at the greedy episodes of all cases, the best of which decide on
        the weights to end with; 0: end with the last weights.
    cases : int
        Cases in each update.
    self_imitation : bool
        Whether the incumbent of a case takes part in its batches, with the advantage that its
        makespan has there (after Oh et al., "Self-imitation learning", ICML 2018).
    """

    schedule: Schedule
    episodes: int = 32
    entropy: float = 0.0
    runtime: str = "priority"
    validate_every: int = 0
    cases: int = 1
    self_imitation: bool = False


def reinforce(
    policy: DualPolicy,
    cases: Sequence[TrainingCase],
    settings: ReinforceSettings,
    *,
    seed: int = 0,
    state: str | Path | None = None,
    tracker: Tracker | None = None,
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
    seed : int
    state : path-like, optional
        Checkpoint file, by which a killed run goes on where it was.
    tracker : Tracker, optional
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
    digest = run_digest(policy, cases, {"seed": seed, **dataclasses.asdict(settings)})
    loop = Loop(
        policy,
        settings.schedule,
        digest,
        state=state,
        tracker=tracker,
        progress=progress,
        checkpoint_seconds=checkpoint_seconds,
    )
    gradient = Gradient(policy, threads)

    def play(case: TrainingCase, rng: np.random.Generator) -> dict[str, float]:
        seeds = rng.integers(2**31, size=settings.episodes).tolist()
        heads = policy(case.inputs)
        weights = policy.weights(heads)
        episodes = case.roller.play(weights, SAMPLE, seeds, recorded=True, runtime=settings.runtime)
        loop.incumbents.offer(case.name, episodes)
        cost = episodes.makespans * (1.0 + OVERFLOW_WEIGHT * episodes.overflow)
        deviation = float(cost.std())
        scale = 1.0 / deviation if deviation > 1e-9 * float(cost.mean()) else 0.0
        record, incumbent = episodes.record, loop.incumbents.best.get(case.name)
        compared = cost
        if settings.self_imitation and incumbent is not None:
            order = np.argsort(incumbent.priority).astype(np.int32)[None]
            again = case.roller.follow(weights, order, incumbent.devices[order])
            both = zip(record, again.record, strict=True)
            record = Record(*(np.concatenate(arrays) for arrays in both))
            compared = np.append(cost, incumbent.makespan)
        advantage = torch.from_numpy((cost.mean() - compared) * scale)
        share = 1.0 / (settings.episodes * settings.cases)

        def objective(
            found: LogProbabilities, record: Record, chunk: slice
        ) -> tuple[Tensor, dict[str, float]]:
            loss = -(advantage[chunk] * taken(found, record).sum(dim=1)).sum() * share
            finite = found.place.masked_fill(found.place == -torch.inf, 0.0)
            entropy = -(finite.exp() * finite).sum() / (len(compared) * case.problem.n_ops)
            if settings.entropy > 0:
                loss = loss - settings.entropy * case.problem.n_ops * entropy / settings.cases
            return loss, {"place_entropy": entropy.item()}

        metrics = gradient.add(heads, case.problem, record, objective)
        best = incumbent.makespan if incumbent is not None else float(cost.min())
        mean = float(episodes.makespans.mean())
        return {
            "ratio_to_bound": mean / max(case.problem.lower_bound, 1e-300),
            "ratio_to_incumbent": mean / max(best, 1e-300),
            **metrics,
        }

    def update(number: int) -> dict[str, float]:
        rng = np.random.default_rng([seed, 3, number])
        count = settings.cases
        metrics: dict[str, float] = {}
        for turn in range(number * count, (number + 1) * count):
            for name, value in play(cases[pick_case(seed, turn, len(cases))], rng).items():
                metrics[name] = metrics.get(name, 0.0) + value / count
        return metrics

    def validate() -> float:
        logs = []
        with torch.no_grad():
            for case in cases:
                weights = policy.weights(policy(case.inputs))
                episodes = case.roller.play(weights, GREEDY, [seed], runtime=settings.runtime)
                cost = episodes.makespans[0] * (1.0 + OVERFLOW_WEIGHT * episodes.overflow[0])
                logs.append(np.log(max(cost, 1e-300) / max(case.problem.lower_bound, 1e-300)))
        return float(np.exp(np.mean(logs)))

    try:
        loop.run(update, validate if settings.validate_every else None, settings.validate_every)
    finally:
        gradient.close()
    return loop.incumbents
