"""Random problems for hypothesis: graphs of every shape on clusters of every kind."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from doppler import Cluster, Device, Graph, Link, Placement, Problem

# Small whole numbers make ties, odd fractions make none.
TIES = st.sampled_from([0.0, 1.0, 2.0, 3.0])
ODD = st.floats(0.001, 10.0)


@st.composite
def graphs(draw: st.DrawFn, max_ops: int = 24, sizes: bool = False) -> Graph:
    n_ops = draw(st.integers(1, max_ops))
    seconds = draw(st.sampled_from([TIES, ODD, st.one_of(TIES, ODD)]))
    edges = draw(
        st.lists(
            st.tuples(st.integers(0, n_ops - 1), st.integers(0, n_ops - 1)).filter(
                lambda pair: pair[0] != pair[1]
            ),
            max_size=3 * n_ops if n_ops > 1 else 0,
        )
        if n_ops > 1
        else st.just([])
    )
    # Edges go up a random order of the ops, so that ids and topology do not agree.
    rank = draw(st.permutations(range(n_ops)))
    edges = [(u, v) if rank[u] < rank[v] else (v, u) for u, v in edges]
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


def explicit_problems() -> st.SearchStrategy[Problem]:
    return st.builds(Problem, graphs(sizes=True), clusters())


@st.composite
def placed_problems(draw: st.DrawFn) -> tuple[Problem, Placement]:
    problem = draw(st.one_of(explicit_problems(), modeled_problems()))
    return problem, draw(placements(problem))


@st.composite
def placements(draw: st.DrawFn, problem: Problem) -> Placement:
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
