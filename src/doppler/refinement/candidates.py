"""The placements that Stage III knows, and what is known of each."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from doppler.errors import MemoryLimitError
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.simulator import check_memory

# Latest runs of a placement that count.
REMEMBERED = 20
# Placements never run that are kept; of those that were, all are, since none is tried for ever.
UNTRIED = 24


@dataclass(eq=False)
class Option:
    """A placement that may be handed out.

    Attributes
    ----------
    placement : Placement
    kind : str
        What a run of it is called, see :mod:`doppler.refinement.history`.
    number : int
        In the order in which placements were first handed out; -1: not yet.
    logs : deque of float
        Logarithms of the latest measured seconds.
    runs : int
        How often it was handed out.
    last : int
        The run, from 1, in which it was last.
    closed : bool
        Whether it is not to be tried again: it failed, or lost against a champion.
    """

    placement: Placement
    kind: str
    number: int = -1
    logs: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    runs: int = 0
    last: int = 0
    closed: bool = False


class Options:
    """All options of a problem, each once.

    Parameters
    ----------
    problem : Problem
    runtime : {"priority", "fifo"}
    """

    def __init__(self, problem: Problem, runtime: str) -> None:
        self.problem = problem
        self.runtime = runtime
        self.tried: list[Option] = []
        self.untried: list[Option] = []
        self._known: dict[bytes, Option] = {}

    def add(self, placement: Placement, kind: str) -> Option | None:
        """Add a placement; the option that it is already, or None if it does not fit in memory."""
        key = self._key(placement)
        option = self._known.get(key)
        if option is None:
            try:
                check_memory(self.problem, placement, self.runtime)
            except MemoryLimitError:
                return None
            option = self._known[key] = Option(placement, kind)
            self.untried.append(option)
        return option

    def hand_out(self, option: Option) -> int:
        """Give an option its number, if it has none yet; returns it."""
        if option.number < 0:
            option.number = len(self.tried)
            self.tried.append(option)
            self.untried = [each for each in self.untried if each is not option]
        return option.number

    def keep(self, scores: Mapping[Option, float]) -> None:
        """Forget those never run whose score is the highest; what has none yet stays."""
        self.untried.sort(key=lambda option: scores.get(option, -math.inf))
        for option in self.untried[UNTRIED:]:
            del self._known[self._key(option.placement)]
        del self.untried[UNTRIED:]

    @staticmethod
    def _key(placement: Placement) -> bytes:
        ranks = b"" if placement.priority is None else placement.priority.tobytes()
        return np.ascontiguousarray(placement.devices).tobytes() + ranks
