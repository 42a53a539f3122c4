"""The compiled schedule under construction against the plain one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import mixed_cluster, problems, random_graph
from reference_partial import PlainPartial

from doppler import Cluster, Graph, Link, Problem
from doppler.schedule.affinity import forced_communication
from doppler.schedule.partial import earliest_starts, empty, gather, make_partial, place

quick = settings(max_examples=60)


def affinity_of(problem: Problem, placed: np.ndarray, op: int) -> np.ndarray:
    volume, count, affinity = np.empty((3, problem.n_devices))
    forced_communication(problem.arrays, placed, op, volume, count, affinity)
    return affinity


def compare(problem: Problem, rng: np.random.Generator, repeat: int = 1) -> None:
    """Place all ops at random, in a random order that respects the edges; compare every step."""
    arrays = problem.arrays
    partial = make_partial(arrays)
    for _ in range(repeat):
        empty(partial)
        plain = PlainPartial(problem)
        left = set(range(problem.n_ops))
        while left:
            ready = sorted(op for op in left if not left & set(plain.inputs[op]))
            op = int(rng.choice(ready))
            left.remove(op)
            can = np.flatnonzero(np.isfinite(arrays.compute[op])).astype(np.int32)
            starts, sent = np.empty((2, problem.n_devices))
            n_inputs = gather(arrays, partial, op)
            assert sorted(partial.inputs[:n_inputs].tolist()) == sorted(plain.inputs[op])
            earliest_starts(arrays, partial, n_inputs, starts, sent)
            assert starts.tolist() == [plain.start(op, d) for d in range(problem.n_devices)]
            assert sent == pytest.approx([plain.sent(op, d) for d in range(problem.n_devices)])
            affinity = affinity_of(problem, partial.devices, op)
            wanted = [plain.affinity(op, device) for device in range(problem.n_devices)]
            np.testing.assert_allclose(affinity, wanted, rtol=1e-9, atol=1e-12 * sum(wanted))
            device = int(rng.choice(can))
            place(arrays, partial, n_inputs, op, device)
            plain.place(op, device)
            assert partial.finish[op] == plain.finish[op]
            assert partial.devices[op] == device
            assert partial.device_free.tolist() == plain.device_free
            assert partial.channel_free.tolist() == plain.channel_free


@quick
@given(problem=problems(), seed=st.integers(0, 1000))
def test_starts_finishes_and_affinity(problem: Problem, seed: int) -> None:
    compare(problem, np.random.default_rng(seed), repeat=2)


def several_channels(count: int) -> Cluster:
    """Each device sends over a channel of its own, but to the last over no channel."""
    links = tuple(
        Link(a, b, channel=-1 if b == count - 1 else a)
        for a in range(count)
        for b in range(count)
        if a != b
    )
    uniform = Cluster.uniform(count)
    return Cluster("each", uniform.devices, links, tuple(f"c{a}" for a in range(count)))


@pytest.mark.parametrize("seed", range(5))
def test_several_channels(seed: int) -> None:
    rng = np.random.default_rng(seed)
    compare(Problem(random_graph(rng, 30), several_channels(4)), rng, repeat=2)


@pytest.mark.parametrize("shared", [False, True])
def test_many_inputs(shared: bool) -> None:
    # More than the insertion sort takes, and as many as sibling affinity looks at.
    rng = np.random.default_rng(1)
    src = np.concatenate([np.arange(50), np.full(3, 50), np.arange(50, 54)])
    dst = np.concatenate([np.full(50, 50), np.arange(51, 54), np.full(4, 54)])
    graph = Graph.build(
        55,
        src,
        dst,
        flops=rng.integers(1, 5, 55) * 1e12,
        output_bytes=rng.integers(0, 4, 55) * 1e9,
    )
    compare(Problem(graph, mixed_cluster(rng, 4, shared=shared)), rng)


def test_affinity_looks_at_the_first_64_producers_of_a_consumer() -> None:
    n_ops = 101
    graph = Graph.from_arrays(range(100), [100] * 100, [1.0] * n_ops, [1.0] * n_ops)
    problem = Problem(graph, Cluster.uniform(2))
    placed = np.full(n_ops, 1, np.int32)
    placed[[0, 99, 100]] = -1
    affinity = affinity_of(problem, placed, 0)
    assert affinity.tolist() == [63.0, 0.0]


def test_affinity_of_a_small_graph() -> None:
    # Ops 0, 1 and 2 feed 3; 0 and 4 feed 5; tensors of 2, 3, 1 and 7 seconds.
    graph = Graph.from_arrays(
        [0, 1, 2, 0, 4], [3, 3, 3, 5, 5], [1.0] * 6, [2.0, 3.0, 1.0, 0.0, 7.0, 0.0]
    )
    problem = Problem(graph, Cluster.uniform(3))
    placed = np.array([-1, 0, 1, -1, 2, -1], np.int32)
    affinity = affinity_of(problem, placed, 0)
    # Op 1 is on device 0 and would cost 2, op 2 on device 1 1, op 4 on device 2 2.
    assert affinity.tolist() == [3.0, 4.0, 3.0]
