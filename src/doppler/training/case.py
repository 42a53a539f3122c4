"""A problem to train on, with what every update of it needs."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from doppler.errors import DopplerError
from doppler.policy.features import DEVICE_FEATURES, NODE_FEATURES
from doppler.policy.hint import Hint
from doppler.policy.network import DualPolicy, policy_inputs
from doppler.policy.rollout import Roller
from doppler.problem import Problem


class TrainingCase:
    """A named problem to train on.

    Parameters
    ----------
    name : str
        For metrics, ``graph@cluster``.
    problem : Problem
    threads : int, optional
        That play episodes; by default one per core. The episodes do not depend on it.
    hints : sequence of Hint
        For PLC to follow or to leave, the best first.

    Attributes
    ----------
    inputs : Inputs
        What the encoder reads.
    roller : Roller
        Plays the episodes.
    """

    def __init__(
        self,
        name: str,
        problem: Problem,
        threads: int | None = None,
        hints: Sequence[Hint] = (),
    ) -> None:
        self.name = name
        self.problem = problem
        self.hints = tuple(hints)
        self.inputs = policy_inputs(problem)
        self.roller = Roller(problem, threads)

    def draw_hint(self, rng: np.random.Generator, unhinted: float, first: float) -> int:
        """Draw the number of a hint; -1 stands for none.

        Parameters
        ----------
        unhinted : float
            Probability of none, where there are hints.
        first : float
            Probability of the first otherwise; else it is any of them.
        """
        if not self.hints or rng.random() < unhinted:
            return -1
        return 0 if rng.random() < first else int(rng.integers(len(self.hints)))

    def hint(self, number: int) -> Hint | None:
        """Return a hint by its number."""
        return self.hints[number] if number >= 0 else None


def new_policy(seed: int, **parts: Any) -> DualPolicy:
    """Make a policy with seeded weights; ``parts`` as for :class:`DualPolicy`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DualPolicy(**parts)


def pick_case(seed: int, number: int, count: int) -> int:
    """Return the case of an update: a new random order of all of them in every round."""
    round_, position = divmod(number, count)
    return int(np.random.default_rng([seed, 2, round_]).permutation(count)[position])


def run_digest(
    policy: DualPolicy, cases: Sequence[TrainingCase], settings: Mapping[str, Any], *more: bytes
) -> str:
    """Identify a training run: its start, its problems and its settings.

    A checkpoint continues a run only if the digests are equal.

    Raises
    ------
    DopplerError
        If there is no case, or two have one name: incumbents go by it.
    """
    if not cases:
        raise DopplerError("there is no problem to train on; give at least one")
    for name, count in Counter(case.name for case in cases).items():
        if count > 1:
            raise DopplerError(f"{count} training cases are named {name!r}; name each differently")
    digest = hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode())
    features = (policy.features.name, *NODE_FEATURES, *DEVICE_FEATURES)
    digest.update(" ".join(features).encode())
    for name, tensor in policy.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    for case in cases:
        digest.update(f"{case.name} {case.problem.fingerprint}".encode())
        for hint in case.hints:
            digest.update(hint.devices.tobytes())
    for part in more:
        digest.update(part)
    return digest.hexdigest()
