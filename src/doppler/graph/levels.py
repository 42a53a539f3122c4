"""b-level and t-level: longest paths to an exit and from an entry, compiled."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from doppler.kernels import kernel

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]


@kernel
def bottom_levels(
    order: IntArray, succ_ptr: IntArray, succ: IntArray, op_seconds: FloatArray, moved: FloatArray
) -> FloatArray:
    """Longest path from each op to an exit, the op included; edge (u, v) adds ``moved[u]``."""
    level = np.zeros(len(order))
    for index in range(len(order) - 1, -1, -1):
        op = order[index]
        longest = 0.0
        for edge in range(succ_ptr[op], succ_ptr[op + 1]):
            longest = max(longest, moved[op] + level[succ[edge]])
        level[op] = op_seconds[op] + longest
    return level


@kernel
def top_levels(
    order: IntArray, pred_ptr: IntArray, pred: IntArray, op_seconds: FloatArray, moved: FloatArray
) -> FloatArray:
    """Longest path from an entry to each op, the op left out; edge (u, v) adds ``moved[u]``."""
    level = np.zeros(len(order))
    for op in order:
        for edge in range(pred_ptr[op], pred_ptr[op + 1]):
            producer = pred[edge]
            level[op] = max(level[op], level[producer] + op_seconds[producer] + moved[producer])
    return level
