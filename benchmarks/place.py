"""Speed of greedy placement: a Llama graph of 100,000 ops, and time against size.

``measure()`` returns the figures; ``python benchmarks/place.py [--json]`` prints them.
"""

from __future__ import annotations

import gc
import resource
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


def layered(n_ops: int, seed: int = 0) -> Graph:
    """Make a random layered graph of about two inputs per op."""
    rng = np.random.default_rng(seed)
    layer = np.sort(rng.integers(0, max(10, int(n_ops**0.5 / 3)), n_ops))
    first = np.searchsorted(layer, np.arange(layer[-1] + 2))
    dst = np.repeat(np.flatnonzero(layer > 0), 2)
    low, high = first[layer[dst] - 1], first[layer[dst]]
    kept = high > low
    src = (low + rng.random(dst.size) * (high - low)).astype(np.int64)[kept]
    pairs = np.unique(src * n_ops + dst[kept])
    compute, transfer = rng.uniform(1, 5, n_ops), rng.uniform(0, 3, n_ops)
    return Graph.from_arrays(pairs // n_ops, pairs % n_ops, compute, transfer)


def million(policy: DualPolicy, n_ops: int = 1_000_000) -> dict[str, Any]:
    """Place a random layered graph on 64 devices, once; peak memory is that of the process."""
    graph, cluster = layered(n_ops), Cluster.uniform(64)
    small = layered(n_ops // 10)
    seconds = [greedy_seconds(each, cluster, policy) for each in (small, graph)]
    return {
        "place_1m_s": seconds[1],
        "place_1m_ops": graph.n_ops,
        "place_1m_exponent": float(np.log10(seconds[1] / seconds[0])),
        "place_1m_peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


def measure() -> dict[str, Any]:
    """Every figure of this file, about a minute on two cores."""
    policy = network()
    return {**large_graph(policy), **against_size(policy), **million(policy)}


if __name__ == "__main__":
    print_figures(measure, __doc__)
