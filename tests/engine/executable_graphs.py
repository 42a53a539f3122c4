"""Small graphs whose ops torch computes, and placements of them."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from doppler import Graph, Placement
from doppler.engine import Execution
from doppler.graph import OpSpec, TensorSpec, Tile
from doppler.graph.execution import make_tensors, run_sequential
from doppler.graph.workloads import make

WIDTH = 4

#: Every workload, small: sizes that run in some milliseconds.
SMALL = {
    "chainmm": {"m": 24, "k": 16, "n": 20, "p": 12, "q": 16, "tiles": 2},
    "ffnn": {"batch": 16, "inputs": 24, "hidden": 32, "outputs": 8, "tiles": 2},
    "llama_block": {"sequence": 16, "hidden": 32, "heads": 4, "tiles": 2},
    "llama_layer": {"sequence": 16, "hidden": 32, "heads": 4, "intermediate": 48, "tiles": 2},
    "moe_layer": {"sequence": 16, "hidden": 16, "intermediate": 24, "experts": 4, "tiles": 2},
}


def small_workload(name: str) -> Graph:
    return make(name, **SMALL[name])


@st.composite
def executable_graphs(draw: st.DrawFn, max_ops: int = 20) -> Graph:
    """Ops of zero to two inputs, some of which nobody reads; some edges carry what is not read."""
    n_ops = draw(st.integers(1, max_ops))
    tile = Tile("x", ((0, 1), (0, WIDTH)))
    other = Tile("w", ((0, 1), (2, 2 + WIDTH)))
    specs: list[OpSpec] = []
    src: list[int] = []
    dst: list[int] = []
    for op in range(n_ops):
        sources = [tile, other, *range(op)]
        inputs = tuple(draw(st.lists(st.sampled_from(sources), min_size=1, max_size=2)))
        name = "relu" if len(inputs) == 1 else draw(st.sampled_from(["add", "maximum"]))
        specs.append(OpSpec(name, inputs, (1, WIDTH)))
        idle = draw(st.lists(st.integers(0, op - 1), max_size=1)) if op else []
        for producer in {*(u for u in inputs if isinstance(u, int)), *idle}:
            src.append(producer)
            dst.append(op)
    results = draw(st.sets(st.integers(0, n_ops - 1), min_size=1))
    return Graph.build(
        n_ops,
        src,
        dst,
        specs=specs,
        tensors={"x": TensorSpec((1, WIDTH)), "w": TensorSpec((1, 2 * WIDTH), "parameter")},
        outputs={op: Tile("y", ((row, row + 1), (0, WIDTH))) for row, op in enumerate(results)},
    )


def layered_graph(layers: int = 10, width: int = 6, seed: int = 0) -> Graph:
    """Each op adds two of the layer before."""
    rng = np.random.default_rng(seed)
    specs, src, dst = [], [], []
    for op in range(layers * width):
        layer = op // width
        if not layer:
            specs.append(OpSpec("relu", (Tile("x", ((0, WIDTH),)),), (WIDTH,)))
            continue
        left, right = ((layer - 1) * width + rng.permutation(width)[:2]).tolist()
        specs.append(OpSpec("add", (left, right), (WIDTH,)))
        src += [left, right]
        dst += [op, op]
    last = range((layers - 1) * width, layers * width)
    return Graph.build(
        layers * width,
        src,
        dst,
        name="layered",
        specs=specs,
        tensors={"x": TensorSpec((WIDTH,))},
        outputs={
            op: Tile("y", ((row * WIDTH, row * WIDTH + WIDTH),)) for row, op in enumerate(last)
        },
    )


def random_placement(graph: Graph, n_devices: int, rng: np.random.Generator) -> Placement:
    priority = rng.permutation(graph.n_ops) if rng.random() < 0.7 else None
    return Placement(rng.integers(0, n_devices, graph.n_ops), priority)


def assert_equals_sequential(
    graph: Graph, result: Execution, reference: dict[int, torch.Tensor] | None = None
) -> None:
    expected = reference or run_sequential(graph, make_tensors(graph))
    assert set(result.outputs) == set(expected) == set(graph.outputs)
    for op, tensor in expected.items():
        torch.testing.assert_close(result.outputs[op], tensor, rtol=1e-5, atol=1e-5)
