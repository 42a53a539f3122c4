"""What the published methods read of an op, on a scale that networks can learn from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from doppler.problem import Problem

FloatArray = npt.NDArray[np.float64]


def scaled(values: FloatArray) -> FloatArray:
    """Return ``log(1 + value / mean)``, which is 0 to a few for times and sizes of any unit.

    Parameters
    ----------
    values : float64 array
        At least 0.

    Returns
    -------
    float64 array
        Of the same shape; 0 where all values are 0.
    """
    mean = float(values.mean())
    result: FloatArray = np.log1p(values / mean) if mean > 0 else np.zeros_like(values)
    return result


def standardized(h: Tensor) -> Tensor:
    """Give every column of ``h`` [ops, size] mean 0 and deviation 1 over the ops.

    As batch normalization (Ioffe and Szegedy, ICML 2015) without parameters; 0 for one op.
    """
    centered = h - h.mean(dim=0)
    return centered / (centered.square().mean(dim=0) + 1e-5).sqrt()


def scaled_to_one(advantages: FloatArray) -> FloatArray:
    """Divide advantages, whose mean is 0, by their deviation; equal episodes teach nothing."""
    deviation = float(advantages.std())
    return advantages / deviation if deviation > 0.0 else advantages


def costs_and_sizes(problem: Problem) -> npt.NDArray[np.float32]:
    """Return the scaled mean compute time and the scaled time to move the output.

    The time of a transfer stands for the size of the output, which graphs with costs in seconds
    do not tell.

    Returns
    -------
    float32 array, shape [ops, 2]
    """
    columns = (scaled(problem.mean_compute), scaled(problem.mean_transfer))
    return np.stack(columns, axis=1).astype(np.float32)
