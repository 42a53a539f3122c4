"""How long the engine leaves a device idle while an op placed on it is ready: hardly ever.

Random layered graphs of matrix products of some milliseconds, on two cpu devices, under random
placements, by priority and first ready, first run. ``measure()`` returns the longest idle interval
of all the traces; ``python benchmarks/work_conserving.py [--json]`` prints it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from figures import print_figures

from doppler import Graph, Placement
from doppler.engine import CpuBackend, Engine, longest_idle
from doppler.graph import OpSpec, TensorSpec, Tile

RUNS = 100
GRAPHS = 5
LAYERS, WIDTH = 6, 5
# Sides of the square matrices: products of 1 to 5 ms on one core.
SIDES = (320, 400, 480, 560)
BAR_SECONDS = 1e-3


def random_graph(rng: np.random.Generator) -> Graph:
    """Layers of products, each of two results of the layer before."""
    side = int(rng.choice(SIDES))
    whole = ((0, side), (0, side))
    specs, src, dst = [], [], []
    for op in range(LAYERS * WIDTH):
        layer = op // WIDTH
        if layer:
            left, right = ((layer - 1) * WIDTH + rng.permutation(WIDTH)[:2]).tolist()
            src += [left, right]
            dst += [op, op]
            inputs: tuple[int | Tile, ...] = (left, right)
        else:
            inputs = (Tile("x", whole), Tile("y", whole))
        # Scaled, so that the products stay of the size of their factors.
        attributes = {"equation": "ab,bc->ac", "scale": side**-0.5}
        specs.append(OpSpec("einsum", inputs, (side, side), attributes))
    return Graph.build(
        len(specs),
        src,
        dst,
        name=f"products of {side}",
        specs=specs,
        tensors={name: TensorSpec((side, side)) for name in ("x", "y")},
    )


def measure(runs: int = RUNS, seed: int = 0) -> dict[str, Any]:
    """Run and check.

    Returns
    -------
    dict
        ``longest_idle_ms`` of all runs and the ``median_idle_ms`` of the longest of each run,
        ``runs_within_bar``, ``runs``, ``op_ms`` (median), ``transfers`` in all.
    """
    rng = np.random.default_rng(seed)
    idle: list[float] = []
    seconds: list[np.ndarray] = []
    transfers = 0
    for _ in range(GRAPHS):
        graph = random_graph(rng)
        with Engine(graph, CpuBackend(2)) as engine:
            engine.run(Placement(np.arange(graph.n_ops) % 2))
            for number in range(runs // GRAPHS):
                placement = Placement(
                    rng.integers(0, 2, graph.n_ops),
                    rng.permutation(graph.n_ops) if number % 2 else None,
                )
                trace = engine.run(placement, timeout=60).trace
                idle.append(longest_idle(graph, trace))
                seconds.append(trace.end - trace.start)
                transfers += trace.transfer_op.size
    return {
        "longest_idle_ms": max(idle) * 1e3,
        "median_idle_ms": float(np.median(idle)) * 1e3,
        "bar_ms": BAR_SECONDS * 1e3,
        "runs_within_bar": sum(longest <= BAR_SECONDS for longest in idle),
        "runs": len(idle),
        "op_ms": float(np.median(np.concatenate(seconds))) * 1e3,
        "transfers": transfers,
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    print_figures(measure, __doc__)
