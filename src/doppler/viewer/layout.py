"""Layered drawing of a graph: a column per depth, rows ordered so that few edges cross."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from doppler.graph import Graph

FloatArray = npt.NDArray[np.float64]

_SWEEPS = 5
# Share by which a level is pulled back to the middle: a deep graph would drift off the page.
_PULL = 0.1


def layered_layout(graph: Graph) -> tuple[FloatArray, FloatArray]:
    """Place every op on a grid of columns and rows.

    An op's column follows its depth. Rows of a level are ordered by barycenter sweeps (Sugiyama,
    Tagawa and Toda, 1981), then moved as near to the mean of their producers as a distance of one
    row allows (isotonic regression). A level that is much taller than the drawing is wide is
    folded into several columns. O(V log V + E) for a fixed number of sweeps.

    Returns
    -------
    x, y : float64 array, shape [ops]
        Column and row, both from 0.
    """
    depth = graph.depth
    levels: list[list[int]] = [[] for _ in range(int(depth.max()) + 1)]
    for op in range(graph.n_ops):
        levels[depth[op]].append(op)
    before = _neighbors(*graph.predecessors)
    after = _neighbors(*graph.successors)

    position = np.zeros(graph.n_ops).tolist()
    for level in levels:
        _spread(level, position)
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        near = before if forward else after
        for level in levels if forward else reversed(levels):
            wanted = {op: _mean(near[op], position, position[op]) for op in level}
            level.sort(key=wanted.__getitem__)
            _spread(level, position)

    tallest = max(24, math.ceil(2 * math.sqrt(graph.n_ops)))
    x = np.zeros(graph.n_ops)
    y = np.zeros(graph.n_ops)
    rows = y.tolist()
    column = 0
    for level in levels:
        folds = math.ceil(len(level) / tallest)
        if folds == 1:
            wanted_rows = [_mean(before[op], rows, rows[op]) for op in level]
            placed = _separate(wanted_rows)
            drift = _PULL * (placed[0] + placed[-1]) / 2
            for op, row in zip(level, placed, strict=True):
                rows[op] = row - drift
                x[op] = column
        else:
            height = math.ceil(len(level) / folds)
            for place, op in enumerate(level):
                x[op] = column + place // height
                rows[op] = place % height - (height - 1) / 2
        column += folds
    y = np.asarray(rows, dtype=np.float64)
    return x, y - y.min()


def _neighbors(pointers: npt.NDArray[np.int32], items: npt.NDArray[np.int32]) -> list[list[int]]:
    flat = items.tolist()
    ends = pointers.tolist()
    return [flat[a:b] for a, b in pairwise(ends)]


def _mean(ops: list[int], values: list[float], default: float) -> float:
    return sum(values[op] for op in ops) / len(ops) if ops else default


def _spread(level: list[int], position: list[float]) -> None:
    # Shares of the level's height, so that levels of different size compare.
    for place, op in enumerate(level):
        position[op] = (place + 0.5) / len(level)


def _separate(wanted: list[float]) -> list[float]:
    """Nearest rows to ``wanted`` in least squares, in the same order and at least 1 apart.

    Pool adjacent violators on ``wanted[i] - i``: blocks of (sum, size) with rising means.
    """
    blocks: list[tuple[float, int]] = []
    for place, row in enumerate(wanted):
        total, size = row - place, 1
        while blocks and blocks[-1][0] / blocks[-1][1] >= total / size:
            other, count = blocks.pop()
            total, size = total + other, size + count
        blocks.append((total, size))
    rows: list[float] = []
    for total, size in blocks:
        first = total / size + len(rows)
        rows.extend(first + k for k in range(size))
    return rows
