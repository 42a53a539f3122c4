"""The placements that Stage III knows, and what is known of each."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from doppler.placement import Placement
from doppler.refinement.history import Kind

# Latest runs of a placement that count.
REMEMBERED = 20


@dataclass(eq=False)
class KnownPlacement:
    """A placement that may be handed out.

    Attributes
    ----------
    number : int
        In the order in which placements became known; 0 is the first champion.
    placement : Placement
    kind : str
        What a run of it is called, see :mod:`doppler.refinement.history`.
    log_probabilities : float32 array, shape [ops], optional
        Of an episode that was sampled, by step, when it was.
    seen : float64 array, shape [values], optional
        Of such an episode: the explanation that its problem was made by.
    logs : deque of float
        Logarithms of the latest measured seconds.
    runs : int
        How often it was handed out.
    last : int
        The run, from 1, in which it was last.
    closed : bool
        Whether it is not to be tried again: it failed, or lost against a champion.
    """

    number: int
    placement: Placement
    kind: Kind
    log_probabilities: npt.NDArray[np.float32] | None = None
    seen: npt.NDArray[np.float64] | None = None
    logs: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    runs: int = 0
    last: int = 0
    closed: bool = False

    @property
    def seconds(self) -> list[float]:
        """The latest measured seconds."""
        return [math.exp(log) for log in self.logs]


def placement_key(placement: Placement) -> bytes:
    """Bytes that are equal for equal placements."""
    ranks = b"" if placement.priority is None else placement.priority.tobytes()
    return np.ascontiguousarray(placement.devices).tobytes() + ranks


def same_placement(one: Placement, other: Placement) -> bool:
    """Whether two placements run alike: equal devices and priorities."""
    return placement_key(one) == placement_key(other)
