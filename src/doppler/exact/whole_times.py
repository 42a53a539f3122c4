"""Times as whole numbers of a unit, as a constraint solver needs them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from doppler.problem import Problem

FloatArray = npt.NDArray[np.float64]
WideArray = npt.NDArray[np.int64]

# The least time may be so many units at most, and the longest run so many.
_MOST_PARTS, _MOST_UNITS = 1000, 2**30
# Units of a run whose times have none in common: the error of a path of 14 ops is below 1e-5.
_INEXACT_UNITS = 10_000_000
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class WholeTimes:
    """The times of a problem in whole units.

    Attributes
    ----------
    unit : float
        Seconds.
    exact : bool
        Whether every time is a whole number of units; if not, they are rounded down.
    compute : int64 array, shape [ops, devices]
        -1 where the op cannot run.
    transfer : int64 array, shape [ops, devices, devices]
        To move the output of an op from the first device to the second; 0 to itself.
    """

    unit: float
    exact: bool
    compute: WideArray
    transfer: WideArray

    def down(self, seconds: float) -> int:
        """Round seconds down to units."""
        return int(np.floor(seconds / self.unit * (1 + _ROUNDING) + _ROUNDING))


def whole_times(problem: Problem, longest: float) -> WholeTimes:
    """Find the unit of a problem's times, the largest that all are multiples of.

    Parameters
    ----------
    problem : Problem
    longest : float
        Seconds of the longest run that matters. Where the times have no unit in common, that is
        some millions of units.
    """
    arrays = problem.arrays
    compute = arrays.compute
    moved = arrays.latency[None] + arrays.volume[:, None, None] * arrays.factor[None]
    moved[:, np.eye(problem.n_devices, dtype=bool)] = 0.0
    used = np.diff(arrays.succ_ptr) > 0
    times = np.concatenate([compute[np.isfinite(compute)], moved[used].ravel()])
    unit = _common_unit(np.unique(times[times > 0.0]), longest)
    exact = unit is not None
    unit = unit or max(longest, 1e-300) / _INEXACT_UNITS
    able = np.isfinite(compute)
    return WholeTimes(
        unit,
        exact,
        np.where(able, _down(np.where(able, compute, 0.0), unit), -1),
        _down(moved, unit),
    )


def _down(seconds: FloatArray, unit: float) -> WideArray:
    return np.floor(seconds / unit * (1 + _ROUNDING) + _ROUNDING).astype(np.int64)


def _common_unit(times: FloatArray, longest: float) -> float | None:
    if not times.size:
        return 1.0
    for parts in range(1, _MOST_PARTS + 1):
        unit = float(times[0]) / parts
        if longest / unit > _MOST_UNITS:
            return None
        multiples = times / unit
        if (np.abs(multiples - np.round(multiples)) <= _ROUNDING * multiples).all():
            return unit
    return None
