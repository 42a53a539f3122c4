"""The best placement of every problem that training has met."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from doppler.placement import Placement
from doppler.policy.rollout import Episodes

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class BestPlacement:
    """The best placement of one problem.

    Attributes
    ----------
    makespan : float
        Seconds.
    episode : int
        How many episodes of the problem had been played, this one included.
    devices, priority : int32 array, shape [ops]
    """

    makespan: float
    episode: int
    devices: IntArray
    priority: IntArray

    @property
    def placement(self) -> Placement:
        """The placement."""
        return Placement(self.devices, self.priority)


class Incumbents:
    """The incumbents by case, and how many episodes each case has seen."""

    def __init__(self) -> None:
        self.best: dict[str, BestPlacement] = {}
        self.episodes: dict[str, int] = {}

    def offer(self, case: str, episodes: Episodes) -> None:
        """Take the best of a batch that fits in memory, if it is better."""
        seen = self.episodes.get(case, 0)
        count = len(episodes.makespans)
        self.episodes[case] = seen + count
        makespans = np.where(episodes.overflow > 0, np.inf, episodes.makespans)
        index = int(makespans.argmin())
        incumbent = self.best.get(case)
        if makespans[index] < (np.inf if incumbent is None else incumbent.makespan):
            self.best[case] = BestPlacement(
                float(makespans[index]),
                seen + index + 1,
                episodes.devices(index),
                episodes.priority(index),
            )

    def tensors(self) -> dict[str, Tensor]:
        """Return the arrays, for a checkpoint."""
        return {
            f"{case}/{part}": torch.from_numpy(getattr(incumbent, part).copy())
            for case, incumbent in self.best.items()
            for part in ("devices", "priority")
        }

    def header(self) -> dict[str, Any]:
        """Return the plain values, for the header of a checkpoint."""
        return {
            "episodes": dict(self.episodes),
            "best": {
                case: [incumbent.makespan, incumbent.episode]
                for case, incumbent in self.best.items()
            },
        }

    def restore(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take the state that :meth:`header` and :meth:`tensors` gave."""
        self.episodes = dict(header["episodes"])
        self.best = {
            case: BestPlacement(
                makespan,
                episode,
                tensors[f"{case}/devices"].numpy(),
                tensors[f"{case}/priority"].numpy(),
            )
            for case, (makespan, episode) in header["best"].items()
        }
