from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler import Cluster, Device, Graph, Link, Problem, simulate_many, workloads
from doppler.cluster.link import fully_connected
from doppler.errors import ProblemError
from doppler.graph.graph import Machine
from doppler.graph.op_class import op_classes
from doppler.graph.spec import OpSpec, TensorSpec, Tile
from doppler.problem import Arrays

GPU = Device("gpu", flops=10.0, memory_bandwidth=5.0, memory=64.0, launch_overhead=0.5)
CPU = Device("cpu", "cpu", flops=2.0, slowdown=3.0)
MIXED = Cluster(
    "mixed",
    (GPU, CPU),
    (Link(0, 1, bandwidth=4.0, latency=0.25, channel=0, hops=2.0), Link(1, 0, bandwidth=8.0)),
    ("down",),
)


def arrays(graph: Graph, cluster: Cluster = MIXED) -> Arrays:
    return Problem(graph, cluster).arrays


def test_modeled_costs_by_hand() -> None:
    graph = Graph.build(
        2, [0], [1], flops=[100.0, 1.0], bytes_read=[3.0, 40.0], output_bytes=[2.0, 10.0]
    )
    found = arrays(graph)
    # Op 0 computes 100/10 s on the GPU, longer than it moves 5 bytes; op 1 moves 50 bytes.
    assert found.compute.tolist() == [[0.5 + 10.0, 50.0], [0.5 + 10.0, 0.5]]
    assert found.volume.tolist() == [2.0, 10.0]
    assert found.latency.tolist() == [[0.0, 0.25], [0.0, 0.0]]
    assert found.factor.tolist() == [[0.0, 0.25], [0.125, 0.0]]
    assert found.channel.tolist() == [[-1, 0], [-1, -1]]
    assert found.capacity.tolist() == [64.0, math.inf]
    assert found.n_channels == 1


def test_explicit_costs_by_hand() -> None:
    found = arrays(Graph.from_arrays([0], [1], [1.0, 2.0], [3.0, 4.0]))
    assert found.compute.tolist() == [[1.0, 3.0], [2.0, 6.0]]
    assert found.volume.tolist() == [3.0, 4.0]
    # The seconds hold the latency already; hops multiply them.
    assert found.latency.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert found.factor.tolist() == [[0.0, 2.0], [1.0, 0.0]]


def test_costs_by_device_class() -> None:
    graph = Graph.build(
        2,
        [],
        [],
        class_compute_s={"gpu": [1.0, math.inf], "cpu": [5.0, 7.0]},
        transfer_s=[1.0, 1.0],
    )
    assert arrays(graph).compute.tolist() == [[1.0, 15.0], [math.inf, 21.0]]


def test_a_class_that_a_graph_does_not_know_runs_nothing() -> None:
    graph = Graph.build(1, [], [], class_compute_s={"gpu": [1.0]}, transfer_s=[1.0])
    assert arrays(graph).compute.tolist() == [[1.0, math.inf]]
    with pytest.raises(
        ProblemError,
        match=r"graph: gives costs for device kinds tpu, and cluster 'mixed' has none",
    ):
        Problem(Graph.build(1, [], [], class_compute_s={"tpu": [1.0]}, transfer_s=[1.0]), MIXED)


def test_the_machine_of_the_file_is_the_cluster_if_none_is_given() -> None:
    graph = Graph.build(
        1,
        [],
        [],
        class_compute_s={"gpu": [1.0], "cpu": [5.0]},
        transfer_s=[1.0],
        machine=Machine(2, 1, 16e9),
    )
    problem = Problem(graph)
    assert problem.cluster == Cluster.accelerators_and_cpus(2, 1, 16e9)
    assert problem.arrays.compute.tolist() == [[1.0, 1.0, 5.0]]
    with pytest.raises(ProblemError, match=r"f\.json: the graph names no machine; give a cluster"):
        Problem(Graph.from_arrays([], [], [1.0], [1.0], source="f.json"))


def test_measured_seconds_replace_modeled_ones_where_a_device_has_them() -> None:
    graph = workloads.chainmm(16, tiles=1)
    name = op_classes(graph)[0]
    known = Device("known", flops=10.0, launch_overhead=0.5, slowdown=3.0, measured={name: 0.125})
    other = replace(known, name="other", measured={"relu(4)->4": 1.0})
    modeled = Device("modeled", flops=10.0, launch_overhead=0.5)
    cluster = Cluster("three", (known, other, modeled), fully_connected(3))
    found = arrays(graph, cluster).compute
    measured = np.array(op_classes(graph)) == name
    assert 0 < measured.sum() < graph.n_ops
    # They hold the overhead, and are of this device, so no slowdown applies.
    assert (found[measured, 0] == 0.125).all()
    assert np.array_equal(found[~measured, 0], found[~measured, 2])
    assert np.array_equal(found[:, 1], found[:, 2])


def test_explicit_seconds_come_before_measured_ones() -> None:
    specs = [OpSpec("relu", (Tile("x", ((0, 4),)),), (4,))]
    tensors = {"x": TensorSpec((4,))}
    device = Device("d", measured={"relu(4)->4": 7.0}, slowdown=2.0)
    for explicit in ({"compute_s": [3.0]}, {"class_compute_s": {"gpu": [3.0]}}):
        graph = Graph.build(1, [], [], specs=specs, tensors=tensors, transfer_s=[1.0], **explicit)
        assert op_classes(graph) == ("relu(4)->4",)
        assert arrays(graph, Cluster("one", (device,), ())).compute.tolist() == [[6.0]]


def test_a_pin_rules_out_a_device_that_was_measured() -> None:
    specs = [OpSpec("relu", (Tile("x", ((0, 4),)),), (4,))]
    graph = Graph.build(1, [], [], specs=specs, tensors={"x": TensorSpec((4,))}, pinned=[1])
    devices = tuple(Device(name, measured={"relu(4)->4": 7.0}) for name in "ab")
    cluster = Cluster("two", devices, fully_connected(2))
    assert arrays(graph, cluster).compute.tolist() == [[math.inf, 7.0]]


def test_a_pinned_op_runs_on_its_device_alone() -> None:
    graph = Graph.from_arrays([], [], [1.0, 1.0], [1.0, 1.0], pinned=[1, -1])
    assert arrays(graph).compute.tolist() == [[math.inf, 3.0], [1.0, 3.0]]


def test_a_pin_to_a_missing_device() -> None:
    graph = Graph.from_arrays([], [], [1.0, 1.0], [1.0, 1.0], pinned=[-1, 2], names=["a", "b"])
    with pytest.raises(
        ProblemError,
        match=r"op 1 \(b\) is pinned to device 2, and cluster 'mixed' has devices 0 to 1",
    ):
        Problem(graph, MIXED)


def test_a_colocated_op_runs_where_its_whole_group_can() -> None:
    graph = Graph.build(
        4,
        [],
        [],
        class_compute_s={"gpu": [1.0, math.inf, 1.0, 1.0], "cpu": [1.0, 1.0, 1.0, 1.0]},
        transfer_s=np.ones(4),
        colocation=[7, 7, 9, -1],
    )
    found = arrays(graph)
    assert np.isfinite(found.compute).tolist() == [
        [False, True],
        [False, True],
        *[[True, True]] * 2,
    ]
    # A group of one op is no group.
    assert found.group.tolist() == [0, 0, -1, -1]
    assert found.n_groups == 1


def test_groups_are_numbered_from_zero() -> None:
    graph = Graph.from_arrays([], [], np.ones(6), np.ones(6), colocation=[5, 2, 5, 2, -1, -1])
    found = arrays(graph)
    assert found.group.tolist() == [1, 0, 1, 0, -1, -1]
    assert found.n_groups == 2


def test_a_group_that_suits_no_device() -> None:
    graph = Graph.from_arrays(
        [], [], [1.0, 1.0], [1.0, 1.0], pinned=[0, 1], colocation=[4, 4], names=["a", "b"]
    )
    with pytest.raises(
        ProblemError,
        match=r"op 0 \(a\): its colocation group 4 has no device that suits all its ops",
    ):
        Problem(graph, MIXED)


def test_an_op_that_suits_no_device() -> None:
    graph = Graph.build(
        1, [], [], class_compute_s={"gpu": [1.0], "cpu": [math.inf]}, transfer_s=[1.0], pinned=[1]
    )
    with pytest.raises(ProblemError, match="no device of the cluster can run it"):
        Problem(graph, MIXED)


def test_costs_are_never_no_number() -> None:
    free = Cluster(
        "free", (Device("a", flops=math.inf), Device("b")), (Link(0, 1, math.inf), Link(1, 0))
    )
    graph = Graph.build(2, [0], [1], flops=[0.0, 1e300], output_bytes=[0.0, 1e300])
    found = arrays(graph, free)
    assert not np.isnan(found.compute).any()
    assert not np.isnan(found.volume[:, None, None] * found.factor).any()


def test_may_overflow_compares_everything_with_the_smallest_device() -> None:
    sizes: dict[str, Any] = {"output_bytes": [10.0, 20.0], "param_bytes": [30.0, 4.0]}
    graph = Graph.from_arrays([], [], [1.0, 1.0], [1.0, 1.0], **sizes)
    assert not Problem(graph, MIXED).may_overflow
    assert not Problem(graph, Cluster.uniform(2)).may_overflow
    assert Problem(graph, Cluster.uniform(2, memory=63.0)).may_overflow
    assert not Problem(graph, Cluster.uniform(2, memory=64.0)).may_overflow


def test_levels_by_hand() -> None:
    # 0 -> 1 -> 3, 0 -> 2 -> 3
    graph = Graph.from_arrays([0, 0, 1, 2], [1, 2, 3, 3], [1, 2, 5, 1], [10, 20, 40, 80])
    problem = Problem(graph, Cluster.uniform(2))
    seconds = problem.mean_compute
    assert seconds.tolist() == [1, 2, 5, 1]
    assert problem.mean_transfer.tolist() == [10, 20, 40, 80]
    assert problem.b_level(seconds).tolist() == [7, 3, 6, 1]
    assert problem.t_level(seconds).tolist() == [0, 1, 1, 6]
    assert problem.b_level(seconds, transfers=True).tolist() == [57, 23, 46, 1]
    assert problem.t_level(seconds, transfers=True).tolist() == [0, 11, 11, 56]
    assert problem.longest_path(seconds) == 7
    assert problem.longest_path(seconds, transfers=True) == 57


def test_means_are_over_the_devices_and_links_that_there_are() -> None:
    graph = Graph.build(
        2,
        [0],
        [1],
        flops=[10.0, 20.0],
        output_bytes=[8.0, 0.0],
        pinned=[-1, 1],
    )
    problem = Problem(graph, MIXED)
    # Op 0: the GPU moves 8 bytes in 1.6 s after 0.5 s, the CPU computes for 5 s.
    assert problem.mean_compute.tolist() == pytest.approx([(2.1 + 5.0) / 2, 10.0])
    assert problem.mean_transfer.tolist() == pytest.approx([0.125 + 8 * (0.25 + 0.125) / 2, 0.125])
    assert Problem(graph, Cluster("one", (CPU, GPU), MIXED.links, ("down",))).n_devices == 2


def test_one_device_moves_nothing() -> None:
    problem = Problem(Graph.from_arrays([0], [1], [1.0, 2.0], [5.0, 5.0]), Cluster.uniform(1))
    assert problem.mean_transfer.tolist() == [0.0, 0.0]
    assert problem.lower_bound == pytest.approx(3.0, rel=1e-12)


def test_lower_bound_of_equal_devices_is_the_work_over_their_number() -> None:
    problem = Problem(Graph.from_arrays([], [], np.ones(12), np.ones(12)), Cluster.uniform(4))
    assert problem.lower_bound == pytest.approx(3.0, rel=1e-9)


def test_lower_bound_of_a_chain_is_its_length_on_the_fastest_device() -> None:
    graph = Graph.from_arrays([0, 1], [1, 2], [1.0, 2.0, 3.0], np.zeros(3))
    assert Problem(graph, MIXED).lower_bound == pytest.approx(6.0)


def test_lower_bound_of_mixed_devices_splits_the_work_by_speed() -> None:
    # A device three times as slow takes a quarter of 12 equal ops' work.
    graph = Graph.from_arrays([], [], np.ones(12), np.zeros(12))
    assert Problem(graph, MIXED).lower_bound == pytest.approx(9.0, rel=0.02)
    assert Problem(graph, MIXED).lower_bound <= 9.0 + 1e-9


def test_lower_bound_of_work_that_costs_nothing() -> None:
    assert Problem(Graph.from_arrays([], [], [0.0], [0.0]), Cluster.uniform(3)).lower_bound == 0.0


COSTS = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.7])


@st.composite
def tiny(draw: st.DrawFn) -> Problem:
    """At most five ops on two devices that suit them differently, some pinned or colocated."""
    n_ops = draw(st.integers(1, 5))
    pairs = [(u, v) for u in range(n_ops) for v in range(u + 1, n_ops)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    costs = st.lists(COSTS, min_size=n_ops, max_size=n_ops)
    graph = Graph.build(
        n_ops,
        [u for u, _ in edges],
        [v for _, v in edges],
        class_compute_s={"gpu": draw(costs), "cpu": draw(costs)},
        transfer_s=draw(costs),
        pinned=draw(st.lists(st.sampled_from([-1, -1, 0]), min_size=n_ops, max_size=n_ops)),
        colocation=draw(st.lists(st.sampled_from([-1, 0]), min_size=n_ops, max_size=n_ops)),
    )
    return Problem(graph, MIXED)


def best_makespan(problem: Problem) -> float:
    """Try every placement with every order of the ops."""
    n_ops = problem.n_ops
    orders = np.array(list(itertools.permutations(range(n_ops))), np.int32)
    placed = np.array(list(itertools.product(range(2), repeat=n_ops)), np.int32)
    group = problem.arrays.group == 0
    if group.any():
        placed = placed[[len({*row[group].tolist()}) == 1 for row in placed]]
    makespans = simulate_many(
        problem,
        np.repeat(placed, len(orders), axis=0),
        np.tile(orders, (len(placed), 1)),
        threads=1,
    )
    return float(makespans.min())


@settings(max_examples=150)
@given(tiny())
def test_no_placement_beats_the_lower_bound(problem: Problem) -> None:
    best = best_makespan(problem)
    assert math.isfinite(best)
    assert problem.lower_bound <= best * (1 + 1e-12)


def test_repr_names_graph_and_cluster() -> None:
    problem = Problem(Graph.from_arrays([], [], [1.0], [1.0], name="g"), MIXED)
    assert repr(problem) == "Problem(Graph('g', ops=1, edges=0), 'mixed')"


def test_an_op_beyond_all_seconds_cannot_run() -> None:
    cluster = Cluster("slow", (Device("gpu", "gpu", flops=1e-300),), ())
    graph = Graph.build(1, [], [], flops=[1e300])
    with pytest.raises(ProblemError, match="no device of the cluster can run it"):
        Problem(graph, cluster)


@pytest.mark.parametrize(("compute", "transfer"), [(1.7e308, 0.0), (0.0, 1.7e308)])
def test_times_that_add_up_beyond_all_numbers_are_refused(compute: float, transfer: float) -> None:
    graph = Graph.from_arrays([0, 1], [1, 2], [compute] * 3, [transfer] * 3)
    with pytest.raises(ProblemError, match="add up beyond all numbers"):
        Problem(graph, Cluster.uniform(2))
