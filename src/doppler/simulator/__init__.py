"""What would happen: the work-conserving discrete-event simulation and its traces."""

from doppler.simulator.score import Score
from doppler.simulator.simulate import (
    DEFAULT_JITTER,
    Result,
    Spread,
    check_memory,
    describe_overflow,
    makespan_of,
    simulate,
    simulate_many,
    spread,
)
from doppler.trace import Trace

__all__ = [
    "DEFAULT_JITTER",
    "Result",
    "Score",
    "Spread",
    "Trace",
    "check_memory",
    "describe_overflow",
    "makespan_of",
    "simulate",
    "simulate_many",
    "spread",
]
