from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import mixed_cluster, problems, random_graph

from doppler import Cluster, Graph, Problem
from doppler.heuristics.enumerative import enumerative, meta_op_stages


def stages(problem: Problem) -> list[tuple[list[int], int]]:
    pointers, members, meta_op = meta_op_stages(problem)
    return [
        (members[first:last].tolist(), int(meta))
        for first, last, meta in zip(pointers[:-1], pointers[1:], meta_op, strict=True)
    ]


def communication(
    problem: Problem, placed: dict[int, int], earlier: list[int], shards: list[int]
) -> float:
    """Seconds of the transfers that the shards need beyond those of the ops assigned earlier."""
    a = problem.arrays
    moved = {
        (u, placed[op])
        for op in earlier
        for u in a.pred[a.pred_ptr[op] : a.pred_ptr[op + 1]].tolist()
    }
    needed = {
        (u, placed[op])
        for op in shards
        for u in a.pred[a.pred_ptr[op] : a.pred_ptr[op + 1]].tolist()
    }
    return sum(
        a.latency[placed[u], d] + a.volume[u] * a.factor[placed[u], d]
        for u, d in sorted(needed - moved)
        if placed[u] != d
    )


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), n_devices=st.integers(1, 3))
def test_no_assignment_of_a_stage_is_cheaper(seed: int, n_devices: int) -> None:
    rng = np.random.default_rng(seed)
    problem = Problem(random_graph(rng, 16), mixed_cluster(rng, n_devices))
    devices = enumerative(problem).placement.devices.tolist()
    placed: dict[int, int] = {}
    taken: dict[tuple[int, int], int] = {}
    every = stages(problem)
    for shards, meta in every:
        total = sum(len(other) for other, number in every if number == meta)
        most = -(-total // n_devices)
        earlier = list(placed)
        costs = []
        for assignment in itertools.product(range(n_devices), repeat=len(shards)):
            counts = np.bincount(assignment, minlength=n_devices)
            if all(taken.get((meta, d), 0) + counts[d] <= most for d in range(n_devices)):
                trial = placed | dict(zip(shards, assignment, strict=True))
                costs.append(communication(problem, trial, earlier, shards))
        for shard in shards:
            placed[shard] = devices[shard]
            taken[meta, devices[shard]] = taken.get((meta, devices[shard]), 0) + 1
        assert max(taken[key] for key in taken if key[0] == meta) <= most
        assert communication(problem, placed, earlier, shards) == pytest.approx(min(costs))


@settings(max_examples=40)
@given(problem=problems())
def test_stages_go_by_depth_and_hold_every_op_once(problem: Problem) -> None:
    depth = problem.graph.depth
    every = stages(problem)
    assert sorted(op for shards, _ in every for op in shards) == list(range(problem.n_ops))
    for shards, _ in every:
        assert len({int(depth[op]) for op in shards}) == 1
        assert len({problem.graph.meta_ops[op] for op in shards}) == 1 or (
            len(set(problem.graph.meta_ops)) == problem.n_ops
        )
    depths = [int(depth[shards[0]]) for shards, _ in every]
    assert depths == sorted(depths)


def test_shards_stay_with_their_inputs_and_spread_evenly() -> None:
    # 24 producers and 24 consumers, too many to enumerate; a matching without transfers exists.
    count = 24
    rng = np.random.default_rng(1)
    partner = rng.permutation(count)
    graph = Graph.build(
        2 * count,
        np.arange(count),
        count + partner,
        flops=np.ones(2 * count) * 1e9,
        output_bytes=np.ones(2 * count) * 1e9,
        meta_ops=["first"] * count + ["second"] * count,
        shards=[*range(count), *range(count)],
    )
    devices = enumerative(Problem(graph, Cluster.uniform(4))).placement.devices
    assert np.bincount(devices[:count]).tolist() == [6] * 4
    assert np.array_equal(devices[:count], devices[count + partner])


def test_exchanges_repair_a_greedy_start() -> None:
    # Each consumer reads a large and a small tensor; greedy fills the quota in order of shards.
    count = 32
    rng = np.random.default_rng(5)
    large = rng.integers(0, 4, count)
    src = np.concatenate([large, 4 + rng.integers(0, 4, count)])
    dst = np.tile(np.arange(8, 8 + count), 2)
    graph = Graph.build(
        8 + count,
        src,
        dst,
        flops=np.ones(8 + count) * 1e9,
        output_bytes=[*[4e9] * 4, *[1e9] * 4, *[0] * count],
        meta_ops=["large"] * 4 + ["small"] * 4 + ["read"] * count,
    )
    problem = Problem(graph, Cluster.uniform(4))
    devices = enumerative(problem).placement.devices
    reads = list(range(8, 8 + count))
    placed = dict(enumerate(devices.tolist()))
    cost = communication(problem, placed, [], reads)
    for one, other in itertools.combinations(reads, 2):
        trial = placed | {one: placed[other], other: placed[one]}
        assert communication(problem, trial, [], reads) >= cost - 1e-9


def test_a_graph_without_meta_ops_is_staged_by_depth_and_cost() -> None:
    graph = Graph.from_arrays([0, 1, 2, 3], [4, 4, 5, 5], [1.0, 1.0, 1.0, 2.0, 3.0, 3.0], [1.0] * 6)
    problem = Problem(graph, Cluster.uniform(2))
    assert [shards for shards, _ in stages(problem)] == [[0, 1, 2], [3], [4, 5]]
