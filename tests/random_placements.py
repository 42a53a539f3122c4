"""Placements at random that respect pins and groups, but no memory."""

from __future__ import annotations

import numpy as np

from doppler import Placement, Problem


def random_placement(problem: Problem, seed: int, ordered: bool = True) -> Placement:
    """A device at random of each op or group, and an order that need not be topological."""
    rng = np.random.default_rng(seed)
    compute, group = problem.arrays.compute, problem.arrays.group
    wish = rng.random(compute.shape)
    shared = rng.random((max(problem.arrays.n_groups, 1), problem.n_devices))
    wish = np.where((group >= 0)[:, None], shared[group], wish)
    devices = np.where(np.isfinite(compute), wish, -1.0).argmax(axis=1)
    return Placement(devices, rng.permutation(problem.n_ops) if ordered else None)
