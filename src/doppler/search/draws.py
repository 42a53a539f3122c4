"""Durations drawn before they are needed, the same for every placement that is compared."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.problem import Problem

FloatArray = npt.NDArray[np.float64]

# Factors of transfers that are drawn at once; transfers share them by a hash.
TRANSFER_FACTORS = 4096


class Draws(NamedTuple):
    """Some runs' worth of durations (common random numbers).

    Attributes
    ----------
    op : float64 array, shape [runs, ops], or [1, 0] without jitter
        Multiple of each op's time.
    transfer : float64 array, shape [runs, a power of two], or [1, 0]
        Multiples of transfer times, see :func:`doppler.simulator.kernel.run_drawn`.
    below : float64 array, shape [runs, ops]
        Longest path from each op, itself included, on the fastest devices, seconds.
    """

    op: FloatArray
    transfer: FloatArray
    below: FloatArray


def draw(problem: Problem, jitter: float, runs: int, seed: int | list[int]) -> Draws:
    """Draw the durations of some runs. O(runs x (V + E)).

    Log-normal with mean 1, as :func:`doppler.simulate` draws them.

    Parameters
    ----------
    problem : Problem
    jitter : float
        Standard deviation of the logarithm; 0: one run without noise, whatever ``runs`` says.
    runs : int
    seed : int or list of int
    """
    fastest = problem.least_compute
    if jitter == 0.0:
        nothing = np.empty((1, 0))
        return Draws(nothing, nothing.copy(), problem.b_level(fastest)[None])
    rng = np.random.default_rng(seed)

    def factors(size: int) -> FloatArray:
        drawn: FloatArray = np.exp(jitter * rng.standard_normal((runs, size)) - 0.5 * jitter**2)
        return drawn

    op = factors(problem.n_ops)
    below = np.stack([problem.b_level(fastest * factor) for factor in op])
    return Draws(op, factors(TRANSFER_FACTORS), below)
