"""Why a model does not fit, and what would help."""

from __future__ import annotations

from doppler.problem import Problem
from doppler.viewer.units import format_bytes


def explain_overflow(problem: Problem, why: str) -> str:
    """Say by how much a model is too large for the devices together, if it is, and what helps.

    Parameters
    ----------
    problem : Problem
    why : str
        What the search says.
    """
    arrays = problem.arrays
    needed = float(arrays.param_bytes.sum() + arrays.tile_bytes.sum())
    held = float(arrays.capacity.sum())
    if needed > held:
        return (
            f"{why}; the parameters and inputs alone take {format_bytes(needed)}, and the "
            f"{problem.n_devices} devices hold {format_bytes(held)}, "
            f"{format_bytes(needed - held)} too little: give more devices, a smaller dtype "
            "(model.to(torch.bfloat16)) or fewer chains of the batch"
        )
    return (
        f"{why}; give more devices, a smaller batch or dtype, or shards that can be spread: "
        f"shard={{'tensor': {problem.n_devices}}}"
    )
