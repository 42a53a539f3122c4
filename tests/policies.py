"""Policies with random weights, and random problems with all that an episode must respect."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from doppler import Cluster, Device, Graph, Link, Problem
from doppler.policy.features import FeatureSet
from doppler.policy.frozen import LOGIT_RANGE, SCORE_SCALE, Sizes
from doppler.policy.hint import Hint, make_hint
from doppler.policy.network import DualPolicy, Heads, policy_inputs
from doppler.policy.rollout import Weights

SMALL = Sizes(embedding=16, layers=2, hidden=8, code=4)
quick = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def random_policy(seed: int = 0, features: str = "full", sizes: Sizes = SMALL) -> DualPolicy:
    """Weights that know no heuristic, and large enough for choices that are far from even."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        policy = DualPolicy(sizes, FeatureSet.named(features))
        for name, weight in policy.named_parameters():
            if "norm" not in name:
                fan_in = weight.shape[-1]
                weight.normal_(0.0, 1.5 / math.sqrt(fan_in) if weight.dim() > 1 else 0.1)
        without_scales(policy)
    return policy


def without_scales(policy: DualPolicy) -> None:
    """Divide the last layers by what multiplies them, so that scores are as large as weights."""
    for layer in (policy.second, policy.direct):
        layer.weight /= SCORE_SCALE
    for layer in (policy.select_out, policy.select_direct):
        layer.weight /= LOGIT_RANGE
        layer.bias /= LOGIT_RANGE


def encode(policy: DualPolicy, problem: Problem) -> tuple[Heads, Weights]:
    with torch.no_grad():
        heads = policy(policy_inputs(problem))
    return heads, policy.weights(heads)


def random_hint(problem: Problem, seed: int = 0) -> Hint:
    """A hint of devices at random, among those that its op and all ops of its group can run on."""
    rng = np.random.default_rng(seed)
    arrays = problem.arrays
    can = np.isfinite(arrays.compute)
    drawn = np.where(can, rng.random(can.shape), -1.0)
    devices = drawn.argmax(axis=1)
    for group in range(arrays.n_groups):
        members = np.flatnonzero(arrays.group == group)
        devices[members] = devices[members[0]]
    return make_hint(problem, devices)


def random_graph(rng: np.random.Generator, n_ops: int, **extra: Any) -> Graph:
    """A graph of up to three inputs per op, in parts where an op happens to have none."""
    count = rng.integers(0, 4, n_ops) * (np.arange(n_ops) > 0)
    dst = np.repeat(np.arange(n_ops), count)
    src = (rng.random(dst.size) * dst).astype(int)
    return Graph.build(
        n_ops,
        src,
        dst,
        flops=rng.integers(0, 5, n_ops) * 1e12,
        output_bytes=rng.integers(0, 4, n_ops) * 1e9,
        **extra,
    )


def mixed_cluster(
    rng: np.random.Generator, n_devices: int, memory: Any = np.inf, shared: bool = False
) -> Cluster:
    """Devices and links of two speeds; one channel may carry all the transfers."""
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
def problems(draw: st.DrawFn, memory: bool = True, max_devices: int = 5) -> Problem:
    """Heterogeneous costs, pins, colocation groups, contention and limited memory."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_ops = draw(st.integers(1, 24))
    n_devices = draw(st.integers(1, max_devices))
    pinned = np.where(rng.random(n_ops) < 0.2, rng.integers(0, n_devices, n_ops), -1)
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


def weighty_graph(seed: int = 0, n_ops: int = 60) -> Graph:
    """A connected graph whose costs never tie."""
    rng = np.random.default_rng(seed)
    dst = np.repeat(np.arange(1, n_ops), 2)
    src = (rng.random(dst.size) * dst).astype(int)
    return Graph.from_arrays(src, dst, rng.uniform(1, 5, n_ops), rng.uniform(0, 3, n_ops))


def topological_orders(graph: Graph) -> list[list[int]]:
    """Every order in which producers come before consumers."""
    inputs: list[set[int]] = [set() for _ in range(graph.n_ops)]
    for u, v in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
        inputs[v].add(u)

    def extend(order: list[int]) -> list[list[int]]:
        if len(order) == graph.n_ops:
            return [order]
        candidates = [
            op for op in range(graph.n_ops) if op not in order and inputs[op] <= set(order)
        ]
        return [whole for op in candidates for whole in extend([*order, op])]

    return extend([])
