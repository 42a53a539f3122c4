"""Averages over the neighbors of every op, for tensors too wide for torch's sparse product."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from doppler.kernels import kernel

IntArray = npt.NDArray[np.int32]
SingleArray = npt.NDArray[np.float32]


class OpNeighbors(NamedTuple):
    """A CSR matrix that averages over some neighbors of each op, and its transpose.

    Attributes
    ----------
    pointers, others, weights : arrays, shape [ops + 1], [edges] and [edges]
        Where the neighbors of each op begin, the neighbors, and one over their number.
    back_pointers, back_others, back_weights : arrays of the same shapes
        The transpose.
    """

    pointers: IntArray
    others: IntArray
    weights: SingleArray
    back_pointers: IntArray
    back_others: IntArray
    back_weights: SingleArray


def make_neighbors(
    pointers: IntArray, others: IntArray, back_pointers: IntArray, back_others: IntArray
) -> OpNeighbors:
    """Weigh the neighbors of each op.

    Parameters
    ----------
    pointers, others : int32 array, shape [ops + 1] and [edges]
        CSR: the neighbors of each op.
    back_pointers, back_others : int32 array, shape [ops + 1] and [edges]
        CSR: the ops that have each op for a neighbor.
    """
    degree = np.diff(pointers)
    weight = (1.0 / np.maximum(degree, 1)).astype(np.float32)
    return OpNeighbors(
        pointers.copy(),
        others.copy(),
        np.repeat(weight, degree),
        back_pointers.copy(),
        back_others.copy(),
        weight[back_others],
    )


class _Average(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, neighbors: OpNeighbors) -> Tensor:
        ctx.neighbors = neighbors
        return _product(neighbors.pointers, neighbors.others, neighbors.weights, x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        matrix: OpNeighbors = ctx.neighbors
        back = (matrix.back_pointers, matrix.back_others, matrix.back_weights)
        return _product(*back, gradients[0]), None


def average(x: Tensor, neighbors: OpNeighbors) -> Tensor:
    """Average ``x`` [ops, ...] over the neighbors of each op; 0 where there are none. O(E)."""
    # torch does not annotate `apply`.
    found: Tensor = _Average.apply(x, neighbors)  # type: ignore[no-untyped-call]
    return found


def _product(pointers: IntArray, others: IntArray, weights: SingleArray, x: Tensor) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    n_ops = len(x)
    rows, filled = x.detach().view(n_ops, -1).numpy(), out.view(n_ops, -1).numpy()
    _multiply(pointers, others, weights, rows, filled)
    return out


@kernel
def _multiply(pointers, others, weights, x, out):  # type: ignore[no-untyped-def]
    """Multiply a CSR matrix by a dense one: ``out`` [ops, columns] is filled. O(E columns)."""
    for op in range(len(pointers) - 1):
        row = out[op]
        row[:] = 0.0
        for edge in range(pointers[op], pointers[op + 1]):
            weight, other = weights[edge], x[others[edge]]
            for column in range(len(row)):
                row[column] += weight * other[column]
