"""What would happen: the work-conserving discrete-event simulation and its traces."""

from doppler.simulator.simulate import (
    Result,
    check_memory,
    describe_overflow,
    simulate,
    simulate_many,
)
from doppler.trace import Trace

__all__ = [
    "Result",
    "Trace",
    "check_memory",
    "describe_overflow",
    "simulate",
    "simulate_many",
]
