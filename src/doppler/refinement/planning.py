"""Which placement the next production run gets: a function of the state."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from doppler.refinement.candidates import KnownPlacement
from doppler.refinement.history import CHALLENGER, CHAMPION, REFERENCE, Kind
from doppler.refinement.state import State


@dataclass(frozen=True, eq=False)
class Decision:
    """What the next run is.

    Attributes
    ----------
    known : KnownPlacement
    kind : str
        See :mod:`doppler.refinement.history`.
    predicted : float or None
        Seconds.
    """

    known: KnownPlacement
    kind: Kind
    predicted: float | None = None


def usual(state: State, kind: Kind = CHAMPION) -> Decision:
    """Let the champion run."""
    champion = state.champion
    return Decision(champion, kind, state.predicted(champion.number))


def decide(state: State) -> Decision:
    """Decide on the next run, given all that has happened."""
    if state.must_recover:
        return usual(state)
    if state.trial is not None and not state.trial.between:
        return _pair(state)
    if not state.ledger.allows(1.0):
        return usual(state) if state.trial is None else _pair(state)
    rng = np.random.default_rng([state.seed, 6, len(state.history)])
    how = state.learning.exploration
    knowing = state.ledger.mean <= how.knowledge_share * state.guard.max_regret
    known = _episode(state) if knowing and rng.random() < how.episode_rate else None
    if known is None and state.trial is not None:
        return _pair(state)
    known = known or _promising(state, rng, knowing)
    if known is None or not state.ledger.allows(_ratio(state, known.number, worst=True)):
        return usual(state)
    return Decision(known, known.kind, state.predicted(known.number))


def _pair(state: State) -> Decision:
    """Let champion and challenger run by turns; a pair begins only when it can be ended."""
    assert state.trial is not None
    number = state.challenger
    if state.trial.between and not state.ledger.allows(_ratio(state, number), number):
        return usual(state)
    if state.trial.turn == CHAMPION:
        return usual(state, REFERENCE)
    return Decision(state.known[number], CHALLENGER, state.predicted(number))


def _ratio(state: State, number: int, worst: bool = False) -> float:
    """Predicted seconds over the champion's; by the worst explanation, or by the best known."""
    relative = state.relative(number)
    if relative is None:
        return 1.0
    return math.exp(float(relative.max() if worst else relative[0]))


def _episode(state: State) -> KnownPlacement | None:
    """Return the policy's next sampled episode, in the order in which they were drawn.

    Not the one that looks best: what the policy learns from must be a sample of what it does.
    Those that the guard forbids are passed over.
    """
    limit = math.log1p(state.guard.margin)
    for number in state.samples:
        known, relative = state.known.get(number), state.relative(number)
        if known is not None and not known.runs and relative is not None and relative[0] <= limit:
            return known
    return None


def _promising(state: State, rng: np.random.Generator, knowing: bool) -> KnownPlacement | None:
    """Return what some explanation prefers (Thompson sampling), or what tells them apart."""
    how, limit = state.learning.exploration, math.log1p(state.guard.margin)
    options, rows = [], []
    for known in state.open_placements():
        relative = state.relative(known.number)
        if relative is not None and relative[0] <= limit:
            options.append(known)
            rows.append(relative if known.runs else relative + state.optimism)
    if not options:
        return None
    table = np.stack(rows)
    column = table[:, int(rng.integers(table.shape[1]))]
    best = int(column.argmin())
    if column[best] < -how.least_gain and rng.random() >= how.exploration_rate:
        return options[best]
    if not knowing:
        return None
    new = np.array([known.runs == 0 for known in options])
    unknown = np.where(new, table.std(axis=1), 0.0)
    most = int(unknown.argmax())
    if unknown[most] > how.worth_knowing and rng.random() < how.exploration_rate:
        return options[most]
    return None
