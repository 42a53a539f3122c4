"""Points of a made-up fidelity measurement."""

from __future__ import annotations

from doppler.evaluation.fidelity import Point


def point(kind: str, simulated: float, measured: float, balance: float = 1.0) -> Point:
    return Point(kind, simulated, measured, 0.0, balance)


LINE = tuple(point(f"heft {i}", 1.0 + i, 2.0 + 2 * i) for i in range(5))
