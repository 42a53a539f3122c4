"""Stacked LSTM layers over time: a grid of cells that runs as a wavefront."""

from __future__ import annotations

import numpy as np

from doppler.graph.graph import Graph
from doppler.graph.workloads.operators import build, check_count
from doppler.graph.workloads.program import check_size


def lstm_grid(
    steps: int = 128,
    layers: int = 16,
    *,
    hidden: int = 1_024,
    batch: int = 64,
    dtype_bytes: int = 4,
) -> Graph:
    """Make the graph of stacked LSTM layers, unrolled. It has modeled costs, no executable ops.

    An op is a cell (Hochreiter and Schmidhuber, "Long short-term memory", Neural Computation
    1997): the cell of a step and a layer reads that of the step before and that of the layer
    below, so that the ops of an anti-diagonal, and no others, can run at once.

    Parameters
    ----------
    steps, layers : int
        Cells along time, and on top of each other.
    hidden, batch : int
        Width of a layer, which all share, and sequences at once.
    dtype_bytes : int
        Bytes of one element.

    Returns
    -------
    Graph
        Op ``step * layers + layer``, whose tile is (step, layer). A cell multiplies its two inputs
        by the four gates' weights, ``16 * batch * hidden**2`` flops, and gives on its hidden and
        its cell state. It reads the weights of its layer; of the memory that they take each cell
        is given one part in ``steps``, so that a layer on one device counts once.

    Raises
    ------
    GraphError
        On a size that is not a whole number >= 1, or more cells than a graph should have.
    """
    sizes = {"steps": steps, "layers": layers, "hidden": hidden, "batch": batch}
    for name, size in {**sizes, "dtype_bytes": dtype_bytes}.items():
        check_size("lstm_grid", name, size)
    cells = steps * layers
    check_count("lstm_grid", "cells", cells)
    grid = np.arange(cells).reshape(steps, layers)
    weights = 8.0 * hidden * hidden * dtype_bytes
    return build(
        "lstm_grid",
        np.concatenate([grid[:-1].ravel(), grid[:, :-1].ravel()]),
        np.concatenate([grid[1:].ravel(), grid[:, 1:].ravel()]),
        flops=np.full(cells, 16.0 * batch * hidden * hidden),
        output_bytes=np.full(cells, 2.0 * batch * hidden * dtype_bytes),
        param_bytes=np.full(cells, weights / steps),
        weights_read=np.full(cells, weights),
        kinds=["lstm"] * cells,
        names=[f"step{step}.layer{layer}" for step in range(steps) for layer in range(layers)],
        meta_ops=["cell"] * cells,
        shards=np.arange(cells),
        tiles=np.argwhere(grid >= 0),
    )
