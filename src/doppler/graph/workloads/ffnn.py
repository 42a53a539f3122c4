"""FFNN: softmax(relu(X W1 + b1) W2 + b2)."""

from __future__ import annotations

from doppler.graph.graph import Graph
from doppler.graph.workloads.program import WorkloadProgram
from doppler.graph.workloads.sharding import shard
from doppler.graph.workloads.tiling import Tiles, resolve_tiles

#: Tiles of each dimension where the caller gives none.
TILES = {"batch": 4, "inputs": 2, "hidden": 4, "outputs": 2}


def ffnn(
    batch: int = 16_384,
    inputs: int = 4_096,
    hidden: int = 16_384,
    outputs: int = 4_096,
    *,
    tiles: Tiles = None,
    dtype_bytes: int = 4,
) -> Graph:
    """Make the graph of softmax(relu(X W1 + b1) W2 + b2), the softmax over the outputs.

    Parameters
    ----------
    batch, inputs, hidden, outputs : int
        Sizes: X [batch, inputs], W1 [inputs, hidden], W2 [hidden, outputs].
    tiles : int or mapping of str to int, optional
        Tiles of every dimension, or of the dimensions named; default 4 of batch and hidden, 2 of
        inputs and outputs.
    dtype_bytes : int
        Bytes of one element.

    Returns
    -------
    Graph
        Its result is ``"probabilities"``, [batch, outputs].

    Raises
    ------
    GraphError, UnknownNameError
        As :func:`doppler.workloads.chainmm`.
    """
    sizes = {"batch": batch, "inputs": inputs, "hidden": hidden, "outputs": outputs}
    program = WorkloadProgram("ffnn", sizes)
    x = program.input("X", ("batch", "inputs"))
    w1 = program.parameter("W1", ("inputs", "hidden"))
    b1 = program.parameter("b1", ("hidden",))
    w2 = program.parameter("W2", ("hidden", "outputs"))
    b2 = program.parameter("b2", ("outputs",))
    first = program.einsum("XW1", (x, w1), ("batch", "hidden"))
    biased = program.elementwise("bias1", "add", (first, b1))
    active = program.elementwise("relu", "relu", (biased,))
    second = program.einsum("HW2", (active, w2), ("batch", "outputs"))
    logits = program.elementwise("bias2", "add", (second, b2))
    program.result(program.softmax("probabilities", logits, "outputs"))
    counts = resolve_tiles(program.name, program.sizes, TILES, tiles)
    return shard(program, counts, dtype_bytes=dtype_bytes)
