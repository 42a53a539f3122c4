"""Cases to train on, drawn at random: workloads of many sizes and tilings, clusters of many shapes.

A case is known by its number alone, so that a stage of the pipeline makes again what another made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from pydantic import Field, field_validator

from doppler.cluster import Cluster, Device, Link
from doppler.errors import DopplerError
from doppler.graph.workloads import make
from doppler.problem import Problem
from doppler.settings import Count, Settings, Whole

# Draws before a case is given up; about one in three has a number of ops that is asked for.
ATTEMPTS = 1000

Generator = np.random.Generator
Range = Annotated[list[Count], Field(min_length=2, max_length=2)]


class GeneratedSettings(Settings):
    """How many cases are drawn at random.

    Attributes
    ----------
    training : int
        To train on.
    ops : list of two int
        The fewest and the most ops of one.
    validation : int
        To choose the weights by.
    validation_ops : list of two int
        The fewest and the most ops of one.
    """

    training: Whole
    ops: Range
    validation: Whole
    validation_ops: Range

    @field_validator("ops", "validation_ops")
    @classmethod
    def _fewest_comes_first(cls, ops: list[int]) -> list[int]:
        if ops[0] > ops[1]:
            raise ValueError(f"the fewest ops, {ops[0]}, are more than the most, {ops[1]}")
        return ops


def generate(seed: int, number: int, ops: tuple[int, int]) -> Problem:
    """Draw a problem.

    Parameters
    ----------
    seed, number : int
        Of the draw; the same give the same problem.
    ops : tuple of int
        The fewest and the most ops that the graph may have.

    Raises
    ------
    DopplerError
        If no graph of so many ops is drawn.
    """
    rng = np.random.default_rng([seed, 4, number])
    # In turn, so that few cases hold all kinds.
    workload, sizes = list(_WORKLOADS.items())[number % len(_WORKLOADS)]
    least, most = ops
    for _ in range(ATTEMPTS):
        graph = make(workload, **sizes(rng))
        if least <= graph.n_ops <= most:
            return Problem(graph, _cluster(rng))
    raise DopplerError(
        f"no generated {workload} has {least} to {most} ops in {ATTEMPTS} draws; allow for more"
    )


def _tiles(rng: Generator, least: int, most: int, *dimensions: str) -> dict[str, int]:
    """Draw a number of tiles for each dimension, most of them near a common one."""
    middle = int(rng.integers(least, most + 1))
    drawn = middle + rng.integers(-1, 2, len(dimensions)) * (rng.random(len(dimensions)) < 0.4)
    return {name: int(max(count, 1)) for name, count in zip(dimensions, drawn, strict=True)}


def _chainmm(rng: Generator) -> dict[str, Any]:
    dimensions = ("m", "k", "n", "p", "q")
    sizes = {name: int(rng.integers(2, 11)) * 2000 for name in dimensions}
    return {**sizes, "tiles": _tiles(rng, 3, 7, *dimensions)}


def _ffnn(rng: Generator) -> dict[str, Any]:
    sizes = {
        "batch": 2 ** int(rng.integers(12, 17)),
        "inputs": 1024 * int(rng.integers(2, 9)),
        "hidden": 1024 * int(rng.integers(4, 25)),
        "outputs": 1024 * int(rng.integers(2, 9)),
    }
    return {**sizes, "tiles": _tiles(rng, 4, 8, "batch", "inputs", "hidden", "outputs")}


def _attention(rng: Generator) -> dict[str, Any]:
    heads = int(rng.choice([16, 24, 32, 48]))
    return {
        "sequence": 1024 * int(rng.integers(2, 9)),
        "hidden": 128 * heads,
        "heads": heads,
        "kv_heads": heads // int(rng.choice([1, 1, 4])),
    }


_ATTENTION_TILES = ("sequence", "hidden", "query_features", "kv_features", "kv_heads")


def _llama_block(rng: Generator) -> dict[str, Any]:
    sizes, tiles = _attention(rng), _tiles(rng, 3, 6, *_ATTENTION_TILES)
    tiles["kv_heads"] = min(tiles["kv_heads"], sizes["kv_heads"])
    return {**sizes, "tiles": tiles}


def _llama_layer(rng: Generator) -> dict[str, Any]:
    sizes = _attention(rng)
    sizes["intermediate"] = 256 * int(sizes["hidden"] * rng.uniform(2, 4) / 256)
    tiles = _tiles(rng, 2, 4, *_ATTENTION_TILES, "intermediate")
    tiles["kv_heads"] = min(tiles["kv_heads"], sizes["kv_heads"])
    return {**sizes, "layers": int(rng.integers(1, 4)), "tiles": tiles}


def _moe_layer(rng: Generator) -> dict[str, Any]:
    experts = int(rng.choice([8, 12, 16, 24, 32]))
    sizes = {
        "sequence": 1024 * int(rng.integers(2, 9)),
        "hidden": 1024 * int(rng.integers(2, 7)),
        "experts": experts,
        "top_k": int(rng.choice([1, 2, 4])),
        "intermediate": 1024 * int(rng.integers(4, 15)),
    }
    tiles = _tiles(rng, 2, 6, "sequence", "hidden", "intermediate")
    return {**sizes, "tiles": {**tiles, "experts": experts}}


def _random_layers(rng: Generator) -> dict[str, Any]:
    return {
        "layers": int(rng.integers(15, 90)),
        "width": int(rng.integers(10, 50)),
        "degree": int(rng.integers(1, 5)),
        "ccr": float(np.exp(rng.uniform(np.log(0.1), np.log(5.0)))),
        "flops": 1e10,
        "seed": int(rng.integers(2**31)),
    }


_WORKLOADS: dict[str, Callable[[Generator], dict[str, Any]]] = {
    "llama_layer": _llama_layer,
    "moe_layer": _moe_layer,
    "chainmm": _chainmm,
    "ffnn": _ffnn,
    "llama_block": _llama_block,
    "random_layers": _random_layers,
}


def _cluster(rng: Generator) -> Cluster:
    """Draw equal devices, a node, or several nodes that share adapters; some are of two speeds."""
    if rng.random() < 0.15:
        return Cluster.uniform(int(rng.integers(3, 17)))
    per_node, nodes = _SHAPES[int(rng.integers(len(_SHAPES)))]
    count = per_node * nodes
    flops = float(np.exp(rng.uniform(np.log(8e12), np.log(50e12))))
    slow = rng.random() < 0.15
    devices = tuple(
        Device(
            f"gpu{index}",
            flops=flops * (0.5 if slow and index % 2 else 1.0),
            memory_bandwidth=flops * 0.07,
            memory=80e9,
            launch_overhead=5e-6,
        )
        for index in range(count)
    )
    near = float(np.exp(rng.uniform(np.log(20e9), np.log(300e9))))
    far = near / float(np.exp(rng.uniform(np.log(2.0), np.log(12.0))))
    # Inside a node a link of its own for each pair, or one port for all that a device sends; what
    # leaves a node takes turns at its adapter, or at that of the device.
    pairs, own_adapter = rng.random() < 0.5, rng.random() < 0.25
    names: dict[str, int] = {}
    links = []
    for a in range(count):
        for b in range(count):
            if a == b:
                continue
            inside = a // per_node == b // per_node
            if inside:
                name = f"gpu{a} to gpu{b}" if pairs else f"gpu{a} out"
            else:
                name = f"gpu{a} adapter" if own_adapter else f"node{a // per_node} out"
            channel = names.setdefault(name, len(names))
            links.append(Link(a, b, near if inside else far, 6e-6 if inside else 20e-6, channel))
    return Cluster(f"{nodes}x{per_node}", devices, tuple(links), tuple(names))


# Devices of a node, nodes.
_SHAPES = (
    (4, 1),
    (8, 1),
    (2, 2),
    (2, 4),
    (3, 3),
    (4, 2),
    (4, 2),
    (4, 3),
    (4, 4),
    (4, 4),
    (8, 2),
)
