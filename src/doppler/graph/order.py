"""Topological order by Kahn's algorithm, compiled."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from doppler.kernels import kernel

IntArray = npt.NDArray[np.int32]


@kernel
def kahn(pointers: IntArray, consumers: IntArray, n_ops: int) -> tuple[IntArray, IntArray]:
    """Order ops so that producers come first, O(V + E).

    Returns
    -------
    order : int32 array, shape [<= ops]
        First in, first out from the entries; shorter than ``n_ops`` where there is a cycle.
    depth : int32 array, shape [ops]
        Most edges on a path from an entry.
    """
    indegree = np.zeros(n_ops, np.int32)
    for edge in range(len(consumers)):
        indegree[consumers[edge]] += 1
    order = np.empty(n_ops, np.int32)
    depth = np.zeros(n_ops, np.int32)
    tail = 0
    for op in range(n_ops):
        if indegree[op] == 0:
            order[tail] = op
            tail += 1
    head = 0
    while head < tail:
        op = order[head]
        head += 1
        for edge in range(pointers[op], pointers[op + 1]):
            consumer = consumers[edge]
            depth[consumer] = max(depth[consumer], depth[op] + 1)
            indegree[consumer] -= 1
            if indegree[consumer] == 0:
                order[tail] = consumer
                tail += 1
    return order[:tail].copy(), depth
