"""Random graphs, clusters, problems and placements: the one place where tests draw them.

Functions of a seed or generator make them of any size; the strategies of hypothesis call these or,
where a failure should shrink op by op, draw every edge themselves.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from doppler import Cluster, Device, Graph, Link, Placement, Problem
from doppler.cluster.link import fully_connected

Edges = list[tuple[int, int]]

# Small whole numbers make ties, odd fractions make none.
TIES = st.sampled_from([0.0, 1.0, 2.0, 3.0])
ODD = st.floats(0.001, 10.0)


def random_graph(
    rng: np.random.Generator, n_ops: int, *, most_inputs: int = 2, **extra: Any
) -> Graph:
    """Costs that tie and some meta-ops; in parts, where an op happens to have no input."""
    count = rng.integers(0, most_inputs + 1, n_ops) * (np.arange(n_ops) > 0)
    dst = np.repeat(np.arange(n_ops), count)
    src = (rng.random(dst.size) * dst).astype(int)
    columns: dict[str, Any] = {
        "flops": rng.integers(0, 5, n_ops) * 1e12,
        "output_bytes": rng.integers(0, 4, n_ops) * 1e9,
        "meta_ops": [f"m{m}" for m in rng.integers(0, max(1, n_ops // 3), n_ops)],
    }
    return Graph.build(n_ops, src, dst, **{**columns, **extra})


def untied_graph(seed: int, n_ops: int, **extra: Any) -> Graph:
    """One to three inputs per op, and costs in FLOPs and bytes that never tie."""
    rng = np.random.default_rng(seed)
    count = np.minimum(rng.integers(1, 4, n_ops), np.arange(n_ops))
    dst = np.repeat(np.arange(n_ops), count)
    src = (rng.random(dst.size) * dst).astype(int)
    flops, sent = rng.uniform(1e12, 5e12, n_ops), rng.uniform(0, 3e9, n_ops)
    return Graph.build(n_ops, src, dst, flops=flops, output_bytes=sent, **extra)


def weighty_graph(seed: int = 0, n_ops: int = 60) -> Graph:
    """A connected graph whose costs, in seconds, never tie."""
    rng = np.random.default_rng(seed)
    dst = np.repeat(np.arange(1, n_ops), 2)
    src = (rng.random(dst.size) * dst).astype(int)
    return Graph.from_arrays(src, dst, rng.uniform(1, 5, n_ops), rng.uniform(0, 3, n_ops))


def equal_cluster(n_devices: int, memory: float = np.inf) -> Cluster:
    """Devices of 1 TFLOP/s, links of 1 GB/s."""
    devices = [Device(f"d{d}", flops=1e12, memory=memory) for d in range(n_devices)]
    return Cluster("equal", tuple(devices), fully_connected(n_devices, 1e9))


def mixed_cluster(
    rng: np.random.Generator, n_devices: int, memory: Any = np.inf, shared: bool = False
) -> Cluster:
    """Devices of two speeds; links of two speeds with latency, which may share one channel."""
    memories = np.broadcast_to(memory, n_devices)
    devices = tuple(
        Device(f"d{d}", flops=float(rng.choice([1e12, 4e12])), memory=float(memories[d]))
        for d in range(n_devices)
    )
    links = tuple(
        Link(a, b, float(rng.choice([1e9, 4e9])), float(rng.choice([0, 0.5])), 0 if shared else -1)
        for a in range(n_devices)
        for b in range(n_devices)
        if a != b
    )
    return Cluster("mixed", devices, links, ("bus",) if shared else ())


def random_problem(
    seed: int,
    n_ops: int,
    n_devices: int,
    *,
    pins: bool = True,
    groups: bool = True,
    limited: bool = True,
    shared: bool = True,
) -> Problem:
    """Mixed devices, pins, colocation groups, little memory and a shared channel, or some of it."""
    rng = np.random.default_rng(seed)
    pinned = np.where(rng.random(n_ops) < 0.2, rng.integers(0, n_devices, n_ops), -1)
    # A group of ops with different pins has no device, so pinned ops stay out of the groups.
    colocation = np.where((rng.random(n_ops) < 0.4) & (pinned < 0), rng.integers(0, 3, n_ops), -1)
    graph = random_graph(
        rng,
        n_ops,
        most_inputs=3,
        pinned=pinned if pins else np.full(n_ops, -1),
        colocation=colocation if groups else np.full(n_ops, -1),
        param_bytes=rng.integers(0, 4, n_ops) * 1e9,
    )
    memory: Any = np.inf
    if limited:
        total = graph.param_bytes.sum() + graph.output_bytes.sum()
        memory = np.maximum(total * rng.uniform(0.4, 1.2, n_devices), 1.0)
    return Problem(graph, mixed_cluster(rng, n_devices, memory, shared))


def any_problem(seed: int) -> Problem:
    """A random problem with any of what makes one hard."""
    rng = np.random.default_rng(seed)
    pins, groups, limited, shared = (rng.random(4) < 0.5).tolist()
    n_ops, n_devices = int(rng.integers(1, 20)), int(rng.integers(1, 5))
    return random_problem(
        seed, n_ops, n_devices, pins=pins, groups=groups, limited=limited, shared=shared
    )


def random_placement(problem: Problem, seed: int, ordered: bool = True) -> Placement:
    """Respect pins and groups, but no memory; the order need not be topological."""
    rng = np.random.default_rng(seed)
    devices = random_devices(problem, rng)
    return Placement(devices, rng.permutation(problem.n_ops) if ordered else None)


def random_devices(problem: Problem, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """Draw a device of each op, or of each group, among those that can run it, shape [ops]."""
    compute, group = problem.arrays.compute, problem.arrays.group
    wish = rng.random(compute.shape)
    shared = rng.random((max(problem.arrays.n_groups, 1), problem.n_devices))
    wish = np.where((group >= 0)[:, None], shared[group], wish)
    return np.where(np.isfinite(compute), wish, -1.0).argmax(axis=1)


@st.composite
def problems(
    draw: st.DrawFn, *, memory: bool = True, max_ops: int = 24, max_devices: int = 6
) -> Problem:
    """Heterogeneous costs, pins, colocation groups, contention and limited memory."""
    return random_problem(
        draw(st.integers(0, 2**32 - 1)),
        draw(st.integers(1, max_ops)),
        draw(st.integers(1, max_devices)),
        pins=draw(st.booleans()),
        groups=draw(st.booleans()),
        limited=memory and draw(st.booleans()),
        shared=draw(st.booleans()),
    )


@st.composite
def dags(draw: st.DrawFn, max_ops: int = 25) -> tuple[int, Edges]:
    """A number of ops, and edges up a random order of them, some of which are repeated."""
    n_ops = draw(st.integers(1, max_ops))
    op = st.integers(0, n_ops - 1)
    pairs = draw(st.lists(st.tuples(op, op), max_size=3 * n_ops))
    # So that ids and topology do not agree.
    rank = draw(st.permutations(range(n_ops)))
    return n_ops, [(u, v) if rank[u] < rank[v] else (v, u) for u, v in pairs if u != v]


@st.composite
def graphs(draw: st.DrawFn, max_ops: int = 24, sizes: bool = False) -> Graph:
    """Costs in seconds."""
    n_ops, edges = draw(dags(max_ops))
    seconds = draw(st.sampled_from([TIES, ODD, st.one_of(TIES, ODD)]))
    costs = st.lists(seconds, min_size=n_ops, max_size=n_ops)
    bytes_ = st.lists(st.integers(0, 100).map(float), min_size=n_ops, max_size=n_ops)
    return Graph.from_arrays(
        [u for u, _ in edges],
        [v for _, v in edges],
        draw(costs),
        draw(costs),
        output_bytes=draw(bytes_) if sizes else None,
        param_bytes=draw(bytes_) if sizes else None,
    )


@st.composite
def clusters(draw: st.DrawFn, max_devices: int = 5) -> Cluster:
    """Slower and faster devices and links, and channels that links share."""
    count = draw(st.integers(1, max_devices))
    n_channels = draw(st.integers(0, 3))
    slowdown = st.sampled_from([1.0, 1.0, 2.0, 0.7])
    hops = st.sampled_from([1.0, 1.0, 0.0, 2.0, 0.3])
    devices = tuple(Device(f"d{i}", slowdown=draw(slowdown)) for i in range(count))
    links = tuple(
        Link(a, b, channel=draw(st.integers(-1, n_channels - 1)), hops=draw(hops))
        for a in range(count)
        for b in range(count)
        if a != b
    )
    return Cluster("random", devices, links, tuple(f"c{i}" for i in range(n_channels)))


def explicit_problems() -> st.SearchStrategy[Problem]:
    """Costs in seconds, one for all devices but for their slowdown."""
    return st.builds(Problem, graphs(sizes=True), clusters())


@st.composite
def modeled_problems(draw: st.DrawFn) -> Problem:
    """Costs from FLOPs and bytes, links with latency."""
    graph = draw(graphs(sizes=True))
    graph = Graph.build(
        graph.n_ops,
        graph.src,
        graph.dst,
        flops=1e9 * np.arange(graph.n_ops),
        output_bytes=graph.output_bytes,
        param_bytes=graph.param_bytes,
        bytes_read=graph.output_bytes * 2,
    )
    cluster = draw(clusters())
    devices = tuple(
        Device(
            device.name,
            flops=draw(st.sampled_from([1e9, 3e9])),
            memory_bandwidth=draw(st.sampled_from([10.0, math.inf])),
            launch_overhead=draw(st.sampled_from([0.0, 0.1])),
        )
        for device in cluster.devices
    )
    links = tuple(
        Link(
            link.source,
            link.target,
            bandwidth=draw(st.sampled_from([10.0, 33.0, math.inf])),
            latency=draw(st.sampled_from([0.0, 1.0, 0.25])),
            channel=link.channel,
        )
        for link in cluster.links
    )
    return Problem(graph, Cluster("random", devices, links, cluster.channel_names))


@st.composite
def placements(draw: st.DrawFn, problem: Problem) -> Placement:
    """Any device for any op, any priorities or none."""
    n_ops = problem.n_ops
    device = st.integers(0, problem.n_devices - 1)
    devices = draw(st.lists(device, min_size=n_ops, max_size=n_ops))
    whole = st.one_of(st.integers(-3, 3), st.integers(-(2**31), 2**31 - 1))
    priority = draw(
        st.one_of(
            st.none(),
            st.permutations(range(n_ops)),
            st.lists(whole, min_size=n_ops, max_size=n_ops),
        )
    )
    return Placement(devices, priority)


@st.composite
def placed_problems(draw: st.DrawFn) -> tuple[Problem, Placement]:
    """A problem without pins and groups, and a placement."""
    problem = draw(st.one_of(explicit_problems(), modeled_problems()))
    return problem, draw(placements(problem))
