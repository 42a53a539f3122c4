from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import problems

from doppler import Cluster, Graph, Problem, simulate, workloads
from doppler.graph.structure import structure
from doppler.heuristics.base import Deadline
from doppler.heuristics.heft import upward_order
from doppler.heuristics.map_descent import (
    FOLLOW,
    begin,
    improve,
    improve_simulated,
    make_map_problem,
    make_map_state,
    simulated,
    weigh,
)
from doppler.heuristics.sibling_affinity import sibling_affinity
from doppler.heuristics.spmd import SymmetricMaps, spmd
from doppler.heuristics.symmetric_maps import MOST_KINDS, make_layout, merged_kinds, stage_counts
from doppler.schedule.ranks import rank_of
from doppler.simulator.kernel import make_workspace

quick = settings(max_examples=40)


@quick
@given(problem=problems(), seed=st.integers(0, 2**40), budget=st.sampled_from([0.0, 0.02]))
def test_placements_suit_the_problem_and_the_best_comes_first(
    problem: Problem, seed: int, budget: float
) -> None:
    maps = SymmetricMaps(problem)
    placements = maps.descend(Deadline(budget), seed, threads=2)
    for placement in placements:
        placement.validate(problem)
    makespans = [simulate(problem, placement).makespan for placement in placements]
    assert makespans == sorted(makespans)
    assert len({placement.devices.tobytes() for placement in placements}) == len(placements)
    assert maps.evaluations >= len(placements)


@quick
@given(problem=problems(memory=False), seed=st.integers(0, 1000))
def test_moves_keep_what_is_known_of_a_placement_true(problem: Problem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = structure(problem.graph)
    plan = make_map_problem(problem, found.meta, found.kind)
    layout = make_layout(found, found.kind, problem.nodes, 1)
    maps = layout.table, layout.pointers, layout.choices
    state, fresh = make_map_state(plan), make_map_state(plan)
    work = make_workspace(problem.n_ops, problem.n_devices, 0)
    priority = rank_of(upward_order(problem))
    begin(plan, layout.table, state, rng.integers(FOLLOW, 1, found.n_kinds).astype(np.int32), 0.5)
    makespan = simulated(problem.arrays, plan, state, priority, work)
    for kind in rng.integers(0, found.n_kinds, 10).tolist():
        before, cost = state.devices.copy(), float(state.total[0])
        moved = improve(plan, *maps, state, kind, 0.5, 50)
        assert moved or np.array_equal(before, state.devices)
        assert state.total[0] <= cost
        makespan = min(makespan, simulated(problem.arrays, plan, state, priority, work))
        left, _ = improve_simulated(
            problem.arrays, plan, *maps, state, kind, 0.5, 50, 3, priority, np.inf, work
        )
        assert left in (np.inf, simulated(problem.arrays, plan, state, priority, work))
        fresh.devices[:] = state.devices
        weigh(plan, fresh, 0.5)
        assert state.cost == pytest.approx(fresh.cost)
        assert state.total[0] == pytest.approx(fresh.total[0])
    assert makespan < np.inf


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_layout_keeps_each_layer_on_its_stage_and_no_map_twice(stages: int) -> None:
    graph = workloads.llama_layer(layers=4, tiles=2)
    problem = Problem(graph, Cluster.load("v100_4x4"))
    found = structure(graph)
    layout = make_layout(found, found.kind, problem.nodes, stages)
    group = layout.table // (problem.n_devices // stages)
    assert (group == found.layer * stages // 4).all()
    for kind in range(found.n_kinds):
        chosen = layout.choices[layout.pointers[kind] : layout.pointers[kind + 1]]
        maps = layout.table[chosen][:, found.kind == kind]
        assert len(np.unique(maps, axis=0)) == len(maps) >= 1


def test_maps_reach_nodes_and_devices_within_by_different_coordinates() -> None:
    graph = workloads.chainmm(tiles=4)
    problem = Problem(graph, Cluster.load("v100_4x4"))
    found = structure(graph)
    layout = make_layout(found, found.kind, problem.nodes, 1)
    product = np.flatnonzero([name == "AB" for name in graph.meta_ops])
    for node, within in ((0, 1), (1, 0), (0, 2), (2, 1)):
        wanted = found.tiles[product, node] * 4 + found.tiles[product, within]
        assert (layout.table[:, product] == wanted).all(axis=1).any()


def test_stages_are_equal_groups_of_devices_no_more_than_layers() -> None:
    nodes = np.repeat(np.arange(4, dtype=np.int32), 4)
    assert stage_counts(1, nodes) == [1]
    assert stage_counts(3, nodes) == [1, 2]
    assert stage_counts(8, nodes) == [1, 2, 4]
    assert stage_counts(8, np.zeros(3, np.int32)) == [1]


def test_kinds_beyond_a_limit_choose_together() -> None:
    count = MOST_KINDS + 50
    graph = Graph.build(2 * count, [], [], meta_ops=[f"m{op // 2}" for op in range(2 * count)])
    work = np.arange(2.0 * count)
    kind = merged_kinds(structure(graph), work)
    assert np.array_equal(np.unique(kind), np.arange(MOST_KINDS))
    assert (kind[:100] == MOST_KINDS - 1).all()


@pytest.mark.parametrize(
    ("graph", "cluster", "bound"),
    [
        (workloads.chainmm(tiles=8), "v100_4x4", 1.05),
        (workloads.ffnn(tiles=8), "v100_4x4", 1.1),
        (workloads.llama_layer(layers=4, tiles=4), "a100_2x4", 1.1),
        (workloads.llama_layer(layers=4, tiles=4), "v100_4x4", 1.4),
    ],
    ids=["chainmm", "ffnn", "llama", "llama on four nodes"],
)
def test_symmetric_workloads_come_near_the_lower_bound(
    graph: Graph, cluster: str, bound: float
) -> None:
    problem = Problem(graph, Cluster.load(cluster))
    solution = spmd(problem)
    assert solution.makespan < bound * problem.lower_bound
    assert solution.makespan < sibling_affinity(problem).makespan


def test_a_graph_without_names_and_tiles_is_placed_by_its_symmetry() -> None:
    graph = workloads.llama_layer(layers=4, tiles=4)
    bare = Graph.build(
        graph.n_ops,
        graph.src,
        graph.dst,
        flops=graph.flops,
        output_bytes=graph.output_bytes,
        param_bytes=graph.param_bytes,
        bytes_read=graph.bytes_read,
        kinds=graph.kinds,
    )
    problem = Problem(bare, Cluster.load("a100_2x4"))
    assert spmd(problem).makespan < 0.7 * sibling_affinity(problem).makespan


def test_a_placement_that_does_not_fit_is_changed_until_it_does() -> None:
    # One map for both ops of a pair, but the pairs differ in size.
    graph = Graph.build(
        8,
        [0, 2, 4, 6],
        [1, 3, 5, 7],
        flops=[1e9] * 8,
        param_bytes=[3e9, 0, 3e9, 0, 1e9, 0, 1e9, 0],
        meta_ops=["a", "b"] * 4,
        tiles=[[op // 2] for op in range(8)],
    )
    problem = Problem(graph, Cluster.uniform(2, memory=4.5e9))
    solution = spmd(problem)
    peak = simulate(problem, solution.placement).peak_memory
    assert (peak <= 4.5e9).all()


def test_coordinates_may_be_any_number() -> None:
    tiles = [[2**31 - 1, 2**31 - 1, 2**31 - 1], [0, 0, 0], [1, 2, 3]]
    graph = Graph.from_arrays([0, 0], [1, 2], [1.0] * 3, [0.0] * 3, tiles=tiles)
    problem = Problem(graph, Cluster.uniform(4))
    spmd(problem).placement.validate(problem)
