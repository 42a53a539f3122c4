"""Random problems for emulation: graphs with explicit seconds on clusters with shared channels."""

from __future__ import annotations

from hypothesis import strategies as st

from doppler import Cluster, Device, Graph, Link, Placement, Problem


@st.composite
def placed_problems(draw: st.DrawFn, max_ops: int = 20) -> tuple[Problem, Placement]:
    n_ops = draw(st.integers(1, max_ops))
    op = st.integers(0, n_ops - 1)
    edges = draw(st.sets(st.tuples(op, op).filter(lambda e: e[0] < e[1]), max_size=3 * n_ops))
    seconds = st.lists(st.floats(0.0, 3.0), min_size=n_ops, max_size=n_ops)
    graph = Graph.from_arrays(
        [u for u, _ in edges], [v for _, v in edges], draw(seconds), draw(seconds)
    )
    count = draw(st.integers(1, 4))
    channels = draw(st.integers(0, 2))
    slowdown = st.sampled_from([1.0, 0.7, 2.0])
    links = tuple(
        Link(a, b, channel=draw(st.integers(-1, channels - 1)), hops=draw(slowdown))
        for a in range(count)
        for b in range(count)
        if a != b
    )
    devices = tuple(Device(f"d{d}", slowdown=draw(slowdown)) for d in range(count))
    cluster = Cluster("random", devices, links, tuple(f"c{c}" for c in range(channels)))
    home = st.lists(st.integers(0, count - 1), min_size=n_ops, max_size=n_ops)
    order = st.one_of(st.none(), st.permutations(range(n_ops)))
    return Problem(graph, cluster), Placement(draw(home), draw(order))
