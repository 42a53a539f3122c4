"""Which of two placements is better: the one that overflows memory less, then the shorter one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler.kernels import kernel
from doppler.simulator.kernel import run
from doppler.simulator.memory import peak_memory


class Score(NamedTuple):
    """What a placement is judged by; the least is the best: ``min(scores)``, ``one < other``.

    Attributes
    ----------
    makespan : float
        Seconds, simulated or expected.
    overflow : float
        Memory beyond the capacity, as a share of it, summed over the devices; 0: it fits.
    """

    makespan: float
    overflow: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether the placement fits in memory."""
        return self.overflow == 0.0

    @property
    def key(self) -> tuple[float, float]:
        """What scores are ordered by."""
        return self.overflow, self.makespan

    def __lt__(self, other: tuple[float, ...]) -> bool:
        """Say whether this is the better one."""
        return self.key < Score(*other).key

    def __gt__(self, other: tuple[float, ...]) -> bool:
        """Say whether the other is the better one."""
        return self.key > Score(*other).key

    def __le__(self, other: tuple[float, ...]) -> bool:
        """Say whether the other is not better."""
        return self.key <= Score(*other).key

    def __ge__(self, other: tuple[float, ...]) -> bool:
        """Say whether this is not better."""
        return self.key >= Score(*other).key


@kernel
def better(score, other):  # type: ignore[no-untyped-def]
    """Say, in a kernel, whether the first of two scores is the better one."""
    if score.overflow != other.overflow:
        return score.overflow < other.overflow
    return score.makespan < other.makespan


@kernel
def overflow_of(capacity, peak):  # type: ignore[no-untyped-def]
    """Sum the memory beyond the capacity as a share of it. O(devices).

    Parameters
    ----------
    capacity, peak : float64 array, shape [devices]
        Bytes.
    """
    total = 0.0
    for device in range(len(peak)):
        over = peak[device] - capacity[device]
        if over > 0.0:
            total += over / capacity[device]
    return total


@kernel
def score_of(arrays, devices, priority, limited, work):  # type: ignore[no-untyped-def]
    """Simulate a placement, without jitter, and return its score.

    Parameters
    ----------
    arrays : Arrays
    devices : int32 array, shape [ops]
    priority : int32 array, shape [ops] or [0]
        Empty: first ready, first run.
    limited : bool
        Whether memory can run out at all; if not, it is not looked at.
    work : Workspace
        With room for the record if ``limited``.
    """
    makespan, n_sent = run(arrays, devices, priority, 0.0, np.int64(0), limited, work)
    overflow = 0.0
    if limited:
        overflow = overflow_of(arrays.capacity, peak_memory(arrays, devices, work, n_sent))
    return Score(makespan, overflow)
