"""Speed of greedy placement: a Llama graph of 100,000 ops, and time against size.

``measure()`` returns the figures; ``python benchmarks/place.py [--json]`` prints them.
"""

from __future__ import annotations

import gc
import time
from statistics import median
from typing import Any

import numpy as np
from figures import LAYERS, print_figures

from doppler import Cluster, Graph, Problem, place, workloads
from doppler.policy.checkpoint import PRETRAINED, load_policy
from doppler.policy.network import DualPolicy
from doppler.portfolio import warm_up


def network() -> DualPolicy:
    """Return the policy of the package."""
    policy = load_policy(PRETRAINED)
    warm_up(policy)
    return policy


def greedy_seconds(graph: Graph, cluster: Cluster, policy: DualPolicy) -> float:
    """Time one greedy placement of a loaded graph: problem, features, encoder, episode, check."""
    gc.collect()
    begin = time.perf_counter()
    place(Problem(graph, cluster), policy=policy, budget=0.0)
    return time.perf_counter() - begin


def large_graph(policy: DualPolicy, repeats: int = 3) -> dict[str, Any]:
    """Place 14 layers of Llama 7B in tiles of eight on 8 devices with shared links."""
    graph = workloads.llama_layer(layers=14, tiles=8)
    cluster = Cluster.load("v100x8")
    seconds = [greedy_seconds(graph, cluster, policy) for _ in range(repeats)]
    return {"place_100k_s": median(seconds), "place_100k_ops": graph.n_ops}


def against_size(
    policy: DualPolicy, layers: tuple[int, ...] = LAYERS, repeats: int = 5
) -> dict[str, Any]:
    """Fit ``time ~ ops ** exponent`` from about 1,000 to 300,000 ops on 8 devices.

    Of a narrow model, so that memory is no question at any length. Sizes take turns; of each the
    best counts, since what else the machine does only adds, and weighs most where all is short.
    """
    cluster = Cluster.load("a100x8")
    graphs = [
        workloads.llama_layer(
            layers=count, sequence=64, hidden=512, heads=32, intermediate=1376, tiles=4
        )
        for count in layers
    ]
    times: list[list[float]] = [[] for _ in graphs]
    for _ in range(repeats):
        for taken, graph in zip(times, graphs, strict=True):
            taken.append(greedy_seconds(graph, cluster, policy))
    sizes = [graph.n_ops for graph in graphs]
    seconds = [min(taken) for taken in times]
    exponent = np.polyfit(np.log(sizes), np.log(seconds), 1)[0]
    return {
        "place_exponent": float(exponent),
        "place_sizes": {str(n): s for n, s in zip(sizes, seconds, strict=True)},
    }


def measure() -> dict[str, Any]:
    """Every figure of this file, about half a minute on two cores."""
    policy = network()
    return {**large_graph(policy), **against_size(policy)}


if __name__ == "__main__":
    print_figures(measure, __doc__)
