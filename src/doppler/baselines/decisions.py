"""What the published methods decide: a device for every op, or for every colocation group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from doppler.problem import Problem

IntArray = npt.NDArray[np.int32]

#: Logit of a device that cannot run an op: its probability is 0, and times 0 is no NaN.
RULED_OUT = -1e9


class PlacedUnits(NamedTuple):
    """The units that are placed as one, in the topological order of their first ops.

    Attributes
    ----------
    unit : int64 tensor, shape [ops]
        Unit of each op: its colocation group, or itself.
    size : float32 tensor, shape [units]
        Number of ops.
    first : int32 array, shape [units]
        The first op of each unit.
    ruled_out : float32 tensor, shape [units, devices]
        ``RULED_OUT`` where a device cannot run the ops of the unit, else 0.
    """

    unit: Tensor
    size: Tensor
    first: IntArray
    ruled_out: Tensor

    @property
    def n_units(self) -> int:
        """Number of units."""
        return len(self.first)

    def of_ops(self, choice: Tensor) -> IntArray:
        """Give each op the device of its unit.

        Parameters
        ----------
        choice : int64 tensor, shape [..., units]

        Returns
        -------
        int32 array, shape [..., ops]
        """
        return np.ascontiguousarray(choice[..., self.unit].numpy().astype(np.int32))


def make_decisions(problem: Problem) -> PlacedUnits:
    """Find the units of a problem. O(V devices)."""
    arrays = problem.arrays
    key = np.where(arrays.group >= 0, arrays.group, arrays.n_groups + np.arange(problem.n_ops))
    order = arrays.order
    _, place, of = np.unique(key[order], return_index=True, return_inverse=True)
    # Numbered by where their first op stands.
    rank = np.empty(len(place), np.int64)
    rank[np.argsort(place)] = np.arange(len(place))
    unit = np.empty(problem.n_ops, np.int64)
    unit[order] = rank[of]
    first = np.ascontiguousarray(order[np.sort(place)])
    ruled_out = np.where(np.isfinite(arrays.compute[first]), 0.0, RULED_OUT)
    return PlacedUnits(
        torch.from_numpy(unit),
        torch.from_numpy(np.bincount(unit)).float(),
        first,
        torch.from_numpy(ruled_out).float(),
    )


def gumbel_noise(seeds: Sequence[int], units: int, n_devices: int) -> Tensor:
    """Draw Gumbel noise for every choice of some episodes, each by its own seed.

    Returns
    -------
    float32 tensor, shape [seeds, units, devices]
    """
    shape = (units, n_devices)
    drawn = np.stack([np.random.default_rng(seed).gumbel(size=shape) for seed in seeds])
    return torch.from_numpy(drawn.astype(np.float32))
