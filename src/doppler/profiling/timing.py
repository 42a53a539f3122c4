"""Many timings of one thing, in the numbers that noise does not move."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Timing:
    """What repeated timings say.

    Attributes
    ----------
    seconds : float
        Their median.
    spread : float
        Their median absolute deviation from it, seconds.
    count : int
        How many there were.
    """

    seconds: float
    spread: float
    count: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Timing:
        """Sum up at least one sample."""
        middle = median(samples)
        return cls(middle, median(abs(sample - middle) for sample in samples), len(samples))

    def to_json(self) -> dict[str, float | int]:
        """Return the JSON form."""
        return {"seconds": self.seconds, "spread": self.spread, "count": self.count}


def pool(
    devices: Sequence[str], samples: Sequence[Mapping[K, Sequence[float]]]
) -> list[dict[K, Timing]]:
    """Sum up the samples of each device, together with those of its equals.

    Parameters
    ----------
    devices : sequence of str
        What torch calls each. Threads of one CPU have one name: they differ by noise alone, and
        equal times keep their devices equal for whoever places a graph on them.
    samples : sequence of mapping to sequence of float, one for each device

    Returns
    -------
    list of dict to Timing, one for each device
        Of what has a sample.
    """
    together: dict[str, dict[K, list[float]]] = {}
    for device, own in zip(devices, samples, strict=True):
        for key, values in own.items():
            together.setdefault(device, {}).setdefault(key, []).extend(values)
    return [
        {key: Timing.of(values) for key, values in together.get(device, {}).items() if values}
        for device in devices
    ]
