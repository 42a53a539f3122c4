"""What is promoted of a refinement: the parts that won their comparison.

What is promoted is what was tested. The placements are compared in paired runs on the devices, the
policies by their answers on problems that neither has seen, in simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from doppler.errors import MemoryLimitError
from doppler.policy.network import DualPolicy
from doppler.portfolio import search
from doppler.problem import Problem
from doppler.refinement.budget import Spent
from doppler.refinement.paired_test import Measure, PairedResult, compare_paired
from doppler.refinement.signed_rank import smallest_sample
from doppler.refinement.trial import LOOKS
from doppler.registry import Event

# Numbers of the problems on which policies are compared are from here on: no training draws them.
HELD_OUT = 2_000_000
# Ops of these problems, and the episodes of a policy on each, besides the greedy one.
HELD_OUT_OPS = (200, 800)
SAMPLES = 8
# Seconds of an answer that does not fit in memory: worse than any that does.
UNFIT = 1e6


@dataclass(frozen=True)
class PartResult:
    """What came of comparing a part of a version with the champion's.

    Attributes
    ----------
    text : str
        One line.
    result : PairedResult or None
        None: nothing was compared, ``text`` says why.
    """

    text: str
    result: PairedResult | None = None

    @property
    def promote(self) -> bool:
        """Whether the new part won."""
        return self.result is not None and self.result.promote

    def to_json(self) -> dict[str, Any]:
        """Return the evidence."""
        return {"reason": self.text} if self.result is None else self.result.to_json()


@dataclass(frozen=True)
class Promotion:
    """What is promoted: the parts that won.

    Attributes
    ----------
    placement, policy : PartResult
    """

    placement: PartResult
    policy: PartResult

    @property
    def promote(self) -> bool:
        """Whether there is a new champion."""
        return self.placement.promote or self.policy.promote

    @property
    def text(self) -> str:
        """The decision in one line."""
        return f"placement: {self.placement.text}; policy: {self.policy.text}"

    @property
    def metrics(self) -> dict[str, float]:
        """The figures of what was measured: of a part that was not compared there are none."""
        found = {"promoted": float(self.promote)}
        for prefix, comparison in (("", self.placement), ("policy_", self.policy)):
            result = comparison.result
            if result is None:
                continue
            for name in ("ratio", "low", "high"):
                value = getattr(result, name)
                found |= {} if value is None else {f"{prefix}{name}": value}
        return found

    @property
    def evidence(self) -> dict[str, Any]:
        """What the registry keeps of it: of the placement, and under ``policy`` of the policy."""
        return {**self.placement.to_json(), "text": self.text, "policy": self.policy.to_json()}


def errors_spent(events: Iterable[Event]) -> list[Spent]:
    """Return what the comparisons behind the decisions of a registry have spent."""
    return [
        Spent(event.time, float(part["error"]))
        for event in events
        for part in (event.evidence, event.evidence.get("policy"))
        if isinstance(part, Mapping) and isinstance(part.get("error"), int | float)
    ]


def compare_policies(
    champion: DualPolicy,
    challenger: DualPolicy,
    draw: Callable[[int], Problem],
    *,
    pairs: int,
    error: float,
    seed: int = 0,
    samples: int = SAMPLES,
) -> PairedResult:
    """Compare the answers of two policies, in simulation; a pair is a problem drawn at random.

    Parameters
    ----------
    champion, challenger : DualPolicy
    draw : callable
        Makes the problem of a number, which is at least ``HELD_OUT``.
    pairs : int
        Problems at most.
    error : float
        Chance of promoting a challenger whose answers are no better.
    seed : int
        Of the numbers.
    samples : int
        Sampled episodes of each answer, besides the greedy one; the best counts.
    """

    def answers(policy: DualPolicy) -> Measure:
        frozen, rng = policy.frozen(), np.random.default_rng([seed, HELD_OUT])

        def answer() -> float:
            number = int(rng.integers(HELD_OUT, 2**31))
            problem = draw(number)
            try:
                return search(
                    problem, frozen, budget=0.0, seed=number, samples=samples, alone=True
                ).makespan
            except MemoryLimitError:
                return UNFIT

        return answer

    return compare_paired(
        answers(champion),
        answers(challenger),
        pairs=pairs,
        confidence=1 - 2 * error,
        looks=LOOKS,
        problems=["held out"],
        seed=seed,
    )


def refuse_to_tell(error: float, pairs: int) -> PartResult | None:
    """Say that so little of the error is left that no number of pairs asked for can tell."""
    if error > 0.0 and smallest_sample(error) <= pairs:
        return None
    return PartResult(
        f"not compared: {pairs} pairs cannot tell at {error:.1g}, what the month's error leaves"
    )
