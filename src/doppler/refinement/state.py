"""What Stage III knows: a fold of the events, and of nothing else."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.placement import Placement
from doppler.problem import Problem
from doppler.refinement.budget import Spent, next_error
from doppler.refinement.calibration import EXPLANATIONS, TRACED, factors_of
from doppler.refinement.candidates import KnownPlacement
from doppler.refinement.events import Begun, Configured, Event, Learned, Ran
from doppler.refinement.guard import FIRST, Ledger
from doppler.refinement.history import (
    CHALLENGER,
    CHAMPION,
    EPISODE,
    REFERENCE,
    Kind,
    RunHistory,
)
from doppler.refinement.settings import ErrorBudget, Guard, LearningSettings
from doppler.refinement.trial import Trial, Verdict

FloatArray = npt.NDArray[np.float64]

# Change of a factor's logarithm that is worth making the problem anew for.
NOTICED = 0.002
# First runs of placements whose surprises count, and the fewest that do.
SURPRISES, ENOUGH_SURPRISES = 20, 5


class Feedback(NamedTuple):
    """A run that the policy has yet to learn from.

    Attributes
    ----------
    run, placement : int
        Their numbers.
    cost : float
        Logarithm of its seconds over the champion's.
    """

    run: int
    placement: int
    cost: float


class State:
    """All that was measured and learned, as of some event.

    Equal events lead to equal states, so that whoever reads the journal knows what the refiner
    that wrote it knew.

    Parameters
    ----------
    problem : Problem
        As believed.
    begun : Begun

    Attributes
    ----------
    known : dict of int to KnownPlacement
        By number: all that have run, and of the others those that are worth it.
    champions : list of int
        The working champion is the last; before it, those that it goes back to if it fails.
    history : Kind, RunHistory
    ledger : Ledger
    trial : Trial or None
        Of :attr:`challenger`.
    spent : list of Spent
        By the trials so far.
    must_recover : bool
        Whether the last run failed, so that the champion has to be next.
    feedback : list of Feedback
    samples : tuple of int
        The policy's latest sampled episodes.
    explanations : float64 array, shape [1 + explanations, values]
    noticed : float64 array, shape [values]
        The explanation that :attr:`problem` is made by.
    jitter : float
    traced : deque of float32 array, shape [devices + links]
        What the latest traces showed.
    rounds : int
        Of learning.
    next_number : int
        Of a placement that becomes known next.
    weights, former_weights : str or None
        Digests of the policy's weights, and of those before.

    Raises
    ------
    ValueError
        If the event is of another problem.
    """

    def __init__(self, problem: Problem, begun: Begun) -> None:
        if begun.fingerprint != problem.fingerprint:
            raise ValueError("another problem")
        self.believed = problem
        self.runtime = begun.runtime
        self.parts = frozenset(begun.parts)
        self.seed = -1
        self.budget, self.learning = ErrorBudget(), LearningSettings()
        self.known: dict[int, KnownPlacement] = {}
        self.next_number = 0
        self._add(begun.champion, CHAMPION)
        self.champions = [FIRST]
        self.history = RunHistory()
        self.ledger = Ledger(Guard())
        self.trial: Trial | None = None
        self.challenger = 0
        self.spent: list[Spent] = []
        self.must_recover = False
        self.feedback: list[Feedback] = []
        self.samples: tuple[int, ...] = ()
        size = 2 + problem.n_devices + len(problem.cluster.links)
        self.explanations = np.zeros((1 + EXPLANATIONS, size))
        self.jitter = 0.0
        self.traced: deque[npt.NDArray[np.float32]] = deque(maxlen=TRACED)
        self.rounds = self.learned_after = 0
        self.weights: str | None = None
        self.former_weights: str | None = None
        self.noticed = self.explanations[0]
        self._problem = problem
        self._stale = False
        self._rows: dict[int, int] = {}
        self._predictions = np.empty((0, 1 + EXPLANATIONS))
        self._surprises: deque[float] = deque(maxlen=SURPRISES)

    # What can be asked.

    @property
    def champion(self) -> KnownPlacement:
        """The working champion."""
        return self.known[self.champions[-1]]

    @property
    def guard(self) -> Guard:
        """What exploring may cost."""
        return self.ledger.guard

    @property
    def fresh(self) -> bool:
        """Whether there are runs that nothing was learned from yet."""
        return len(self.history) > self.learned_after

    @property
    def problem(self) -> Problem:
        """The graph on the cluster as measured."""
        if self._stale:
            factors = factors_of(self.noticed, self.believed.n_devices)
            self._problem, self._stale = factors.problem(self.believed), False
        return self._problem

    @property
    def optimism(self) -> float:
        """By how much, as a logarithm, what looks best falls short of what it promises.

        A search finds above all what the simulator is wrong about.
        """
        if len(self._surprises) < ENOUGH_SURPRISES:
            return 0.0
        return max(0.0, float(np.median(self._surprises)))

    def open_placements(self) -> list[KnownPlacement]:
        """Placements that may still be tried as candidates."""
        champion, tries = self.champion, self.learning.exploration.tries
        return [
            each
            for each in self.known.values()
            if not each.closed and each.runs < tries and each is not champion
        ]

    def relative(self, number: int) -> FloatArray | None:
        """Predicted logarithm of a placement's seconds over the champion's, by explanation."""
        row, champion = self._rows.get(number), self._rows.get(self.champions[-1])
        if row is None or champion is None:
            return None
        relative: FloatArray = self._predictions[row] - self._predictions[champion]
        return relative

    def predicted(self, number: int) -> float | None:
        """Seconds that a placement is predicted to take."""
        row = self._rows.get(number)
        return None if row is None else math.exp(float(self._predictions[row, 0]))

    # The fold.

    def apply(self, event: Event) -> None:
        """Take the next event.

        Raises
        ------
        ValueError, LookupError
            If it cannot follow on those before.
        """
        match event:
            case Ran():
                self._run(event)
            case Learned():
                self._learn(event)
            case Configured():
                self.seed, self.budget, self.learning = event.seed, event.budget, event.learning
                self.ledger.guard = event.guard
            case Begun():
                raise ValueError("it begins twice")

    def _add(self, placement: Placement, kind: Kind) -> KnownPlacement:
        placement.validate(self.believed)
        known = KnownPlacement(self.next_number, placement, kind)
        self.known[known.number] = known
        self.next_number += 1
        return known

    def _run(self, event: Ran) -> None:
        if event.run != len(self.history) + 1:
            raise ValueError("a run is missing")
        known, seconds, baseline = self.known[event.placement], event.makespan, self.ledger.baseline
        known.runs += 1
        known.last = event.run
        self.ledger.record(known.number, seconds)
        measured = math.nan if seconds is None else seconds
        ratio = math.nan if baseline is None else measured / baseline
        predicted = math.nan if event.predicted is None else event.predicted
        self.history.append(event.kind, known.number, predicted, measured, ratio, self.ledger.mean)
        self.must_recover = seconds is None
        if event.shown is not None:
            self.traced.append(event.shown)
        if seconds is None:
            self.retire(known)
        else:
            known.logs.append(math.log(seconds))
        if event.kind in (CHALLENGER, REFERENCE):
            if self.trial is not None:
                self._judge(self.trial.observe(seconds))
        elif event.kind == CHAMPION:
            if (former := self.ledger.overtaking) is not None:
                self._test(self.known[former], event.time)
        elif seconds is not None and baseline is not None:
            self._explored(known, math.log(ratio), event.time)

    def retire(self, known: KnownPlacement) -> None:
        """Never try a placement again, since it failed; a champion gives way to the one before."""
        # There is always something to fall back on: the first champion, even if it failed.
        known.closed = known.number != FIRST
        if known is self.champion and len(self.champions) > 1:
            self.champions.pop()
            self.ledger.promote(self.champions[-1], self.champion.seconds)
            self.trial = None
        elif known.number in self.champions[1:]:
            self.champions.remove(known.number)
        self.ledger.drop(known.number)

    def _explored(self, known: KnownPlacement, cost: float, now: str) -> None:
        relative = self.relative(known.number)
        if known.runs == 1 and relative is not None:
            self._surprises.append(cost - float(relative[0]))
        self.feedback.append(Feedback(len(self.history), known.number, cost))
        baseline = self.ledger.baseline
        assert baseline is not None
        if np.median(known.seconds) < baseline * (1.0 - self.learning.exploration.least_gain):
            self._test(known, now)

    def _test(self, known: KnownPlacement, now: str) -> None:
        """Begin to test a placement against the champion, if no test is under way."""
        error = next_error(self.budget, self.spent, now)
        if self.trial is not None or error == 0.0 or known is self.champion:
            return
        self.spent.append(Spent(now, error))
        self.challenger = known.number
        self.trial = Trial(error, seed=[self.seed, 8, len(self.spent)])

    def _judge(self, verdict: Verdict) -> None:
        if verdict is Verdict.OPEN:
            return
        self.trial, challenger = None, self.known[self.challenger]
        if verdict is Verdict.PROMOTED:
            self.champions = [each for each in self.champions if each != challenger.number]
            self.champions.append(challenger.number)
            self.ledger.promote(challenger.number, challenger.seconds)
        elif challenger.number in self.champions:
            self.ledger.keep(challenger.number, challenger.seconds)
        else:
            challenger.closed = True

    def _learn(self, event: Learned) -> None:
        if event.round != self.rounds + 1:
            raise ValueError("a round of learning is missing")
        self.rounds, self.learned_after, self.jitter = event.round, event.after, event.jitter
        self.explanations = event.explanations.astype(np.float64).reshape(self.explanations.shape)
        noticed = notice(self.noticed, self.explanations[0], self.believed.n_devices)
        self._stale |= noticed is not self.noticed
        self.noticed = noticed
        samples = []
        for found in event.found:
            known = self._add(found.placement, found.kind)
            if found.log_probabilities is not None:
                known.log_probabilities = found.log_probabilities
                known.seen = self.noticed
                samples.append(known.number)
        if any(found.kind == EPISODE for found in event.found):
            self.samples = tuple(samples)
        for number in event.dropped:
            if not self.known[number].runs:
                del self.known[number]
        self._rows = {number: row for row, number in enumerate(event.predicted.tolist())}
        self._predictions = event.predictions.astype(np.float64).reshape(len(self._rows), -1)
        self.feedback = [each for each in self.feedback if each.run > event.learned_from]
        if event.weights is not None:
            self.former_weights, self.weights = self.weights, event.weights


def fold(problem: Problem, events: Iterable[Event]) -> State:
    """Return the state after events.

    Raises
    ------
    ValueError, LookupError
        If they do not follow one another, or are of another problem.
    """
    rest = iter(events)
    first = next(rest, None)
    if not isinstance(first, Begun):
        raise ValueError("it does not begin")
    state = State(problem, first)
    for event in rest:
        state.apply(event)
    return state


def notice(before: FloatArray, now: FloatArray, n_devices: int) -> FloatArray:
    """Return the new explanation if its factors have changed by enough, else the one before."""
    change = np.concatenate(factors_of(now - before, n_devices))
    return now if np.abs(np.log(change)).max() > NOTICED else before
