"""Answers without learning, each behind the :class:`Heuristic` protocol."""

from doppler.heuristics.base import Deadline, Heuristic, Solution

__all__ = ["Deadline", "Heuristic", "Solution"]
