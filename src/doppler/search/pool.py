"""The best placements so far: what the search starts from and, in the end, decides between."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from doppler.heuristics.base import Solution, fitting_solution
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.schedule.urgency import urgent_first
from doppler.search.judge import Judge
from doppler.simulator.score import Score

IntArray = npt.NDArray[np.int32]

# Runs that rank placements, and that decide between the finalists: as many as simulate so many ops,
# at most.
RANKING_OPS, DECIDING_OPS = 20_000, 300_000
MOST_RANKING, MOST_DECIDING = 64, 1024
# Runs that decide where nothing was searched, and the answer is wanted at once.
MOST_DECIDING_AT_ONCE = 256
# Their draws are streams of the seed of their own, so that nothing is decided by what it was
# chosen on.
RANKING_STREAM, DECIDING_STREAM = 10, 11
# Placements that are kept, and that meet in the end.
KEPT, FINALISTS = 24, 6
# Starts of one kind at most: others may lead further.
ALIKE = 2
# Beyond so many ops a second simulation takes too long, and a placement with priorities keeps them.
MOST_URGENT_OPS = 200_000

_FIRST_READY = np.empty(0, np.int32)


@dataclass(frozen=True, eq=False)
class _Entry:
    placement: Placement
    score: Score
    origin: str


class Pool:
    """The best few placements of a problem, by expected makespan on common draws.

    Parameters
    ----------
    problem : Problem
    runtime : {"priority", "fifo"}
        What the placements are for.
    jitter : float
        Under which the expected makespan counts; 0: the makespan without noise.
    seed : int

    Attributes
    ----------
    evaluations : int
        Placements that were tried elsewhere to get at those that were offered; the caller counts.
    """

    def __init__(self, problem: Problem, runtime: str, jitter: float, seed: int) -> None:
        self.problem = problem
        self.runtime = runtime
        self.jitter = jitter
        self.seed = seed
        self.evaluations = 0
        runs = max(1, min(MOST_RANKING, RANKING_OPS // problem.n_ops))
        self._judge = Judge(problem, jitter, runs, [seed, RANKING_STREAM])
        self._entries: list[_Entry] = []

    def offer(self, placement: Placement, origin: str) -> None:
        """Score a placement, by its own priority and by urgency, and keep it if it is good.

        O(runs x one simulation), for each of the two orders.

        Parameters
        ----------
        placement : Placement
            May overflow memory.
        origin : str
            How it came about, for people; up to the first comma, its kind.
        """
        for queue in self._queues(placement):
            score = self._judge.score(placement.devices, queue)
            if self.runtime == "priority":
                placement = Placement(placement.devices, queue if queue.size else None)
            self._entries.append(_Entry(placement, score, origin))
        self._entries.sort(key=lambda entry: entry.score)
        del self._entries[KEPT:]

    def _queues(self, placement: Placement) -> list[IntArray]:
        own = self._own(placement)
        if self.runtime == "fifo" or (own.size and self.problem.n_ops > MOST_URGENT_OPS):
            return [own]
        return [own, urgent_first(self.problem, placement.devices.copy())]

    def _own(self, placement: Placement) -> IntArray:
        """Priority that counts at run time, empty for first ready, first run."""
        if self.runtime == "fifo" or placement.priority is None:
            return _FIRST_READY
        return placement.priority

    def clear(self) -> None:
        """Forget all placements."""
        self._entries.clear()

    @property
    def empty(self) -> bool:
        """Whether there is none."""
        return not self._entries

    @property
    def fits(self) -> bool:
        """Whether the best fits in memory."""
        return bool(self._entries) and self._entries[0].score.fits

    @property
    def settled(self) -> bool:
        """Whether nothing can be better than the best."""
        floor = self.problem.lower_bound * (1 + 1e-9)
        return self.jitter == 0.0 and self.fits and self._entries[0].score.makespan <= floor

    def starts(self, count: int) -> list[tuple[Placement, str]]:
        """Return the best few with their origins: no devices twice, of a kind ``ALIKE`` at most."""
        chosen: list[tuple[Placement, str]] = []
        kinds: dict[str, int] = {}
        for entry in self._entries:
            kind = entry.origin.split(",")[0]
            twin = any(np.array_equal(entry.placement.devices, one.devices) for one, _ in chosen)
            if twin or kinds.get(kind, 0) >= ALIKE:
                continue
            kinds[kind] = kinds.get(kind, 0) + 1
            chosen.append((entry.placement, entry.origin))
        return chosen[:count]

    def solution(self, seconds: float, at_once: bool = False) -> Solution:
        """Let the best few meet on fresh draws, and return the winner.

        Parameters
        ----------
        seconds : float
            That the solution is to state.
        at_once : bool
            Whether to decide by fewer draws.

        Raises
        ------
        MemoryLimitError
            If it does not fit in memory; says how much is missing where.
        """
        finalists = self._entries[:FINALISTS]
        most = MOST_DECIDING_AT_ONCE if at_once else MOST_DECIDING
        runs = min(most, DECIDING_OPS // self.problem.n_ops)
        # One more run would decide no better than those that ranked them.
        if self.jitter > 0.0 and len(finalists) > 1 and runs > 1:
            judge = Judge(self.problem, self.jitter, runs, [self.seed, DECIDING_STREAM])
            finalists.sort(
                key=lambda entry: judge.score(entry.placement.devices, self._own(entry.placement))
            )
        winner = finalists[0]
        return fitting_solution(
            self.problem,
            winner.placement,
            self.evaluations + self._judge.evaluations,
            seconds,
            winner.origin,
            self.runtime,
        )
