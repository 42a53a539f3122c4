"""Random problems with everything that a heuristic must respect."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from doppler import Cluster, Device, Graph, Link, Problem


def random_graph(rng: np.random.Generator, n_ops: int, **extra: Any) -> Graph:
    """A graph of up to two inputs per op, in parts where an op happens to have none."""
    count = rng.integers(0, 3, n_ops) * (np.arange(n_ops) > 0)
    dst = np.repeat(np.arange(n_ops), count)
    src = (rng.random(dst.size) * dst).astype(int)
    return Graph.build(
        n_ops,
        src,
        dst,
        flops=rng.integers(0, 5, n_ops) * 1e12,
        output_bytes=rng.integers(0, 4, n_ops) * 1e9,
        meta_ops=[f"m{m}" for m in rng.integers(0, max(1, n_ops // 3), n_ops)],
        **extra,
    )


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


@st.composite
def problems(draw: st.DrawFn, memory: bool = True) -> Problem:
    """Heterogeneous costs, pins, colocation groups, contention and limited memory."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_ops = draw(st.integers(1, 24))
    n_devices = draw(st.integers(1, 6))
    pinned = np.where(rng.random(n_ops) < 0.2, rng.integers(0, n_devices, n_ops), -1)
    # A group of ops with different pins has no device, so pinned ops stay out of the groups.
    colocation = np.where((rng.random(n_ops) < 0.4) & (pinned < 0), rng.integers(0, 3, n_ops), -1)
    if not draw(st.booleans()):
        pinned[:] = -1
    if not draw(st.booleans()):
        colocation[:] = -1
    param_bytes = rng.integers(0, 4, n_ops) * 1e9
    graph = random_graph(rng, n_ops, pinned=pinned, colocation=colocation, param_bytes=param_bytes)
    size: Any = np.inf
    if memory and draw(st.booleans()):
        total = param_bytes.sum() + graph.output_bytes.sum()
        size = np.maximum(total * rng.uniform(0.4, 1.2, n_devices), 1.0)
    return Problem(graph, mixed_cluster(rng, n_devices, size, shared=draw(st.booleans())))
