"""Answers without learning, each behind the :class:`Heuristic` protocol."""

from doppler.heuristics.base import Deadline, Heuristic, Solution
from doppler.heuristics.registry import HEURISTICS, heuristic

__all__ = ["HEURISTICS", "Deadline", "Heuristic", "Solution", "heuristic"]
