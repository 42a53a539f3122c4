"""What holds of the operator graphs, and of each of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import doppler
from doppler import Cluster, Placement, Problem
from doppler.errors import EngineError, GraphError
from doppler.graph import Graph
from doppler.graph.workloads import OPERATOR_GRAPHS, inception, lstm_grid, make, random_layers

SMALL = {
    "random_layers": {"layers": 6, "width": 5},
    "lstm_grid": {"steps": 5, "layers": 3},
    "inception": {"modules": 3, "branches": 3},
}


def reads(graph: Graph) -> list[set[int]]:
    pointers, producers = graph.predecessors
    return [set(producers[pointers[op] : pointers[op + 1]].tolist()) for op in range(graph.n_ops)]


@pytest.mark.parametrize("name", sorted(OPERATOR_GRAPHS))
def test_an_op_costs_something_and_reads_its_inputs(name: str) -> None:
    graph = make(name, **SMALL[name])
    assert graph.specs is None
    assert len(set(graph.names)) == graph.n_ops
    assert (graph.output_bytes > 0).all()
    for op, inputs in enumerate(reads(graph)):
        assert graph.bytes_read[op] >= graph.output_bytes[sorted(inputs)].sum() * (1 - 1e-12)


@pytest.mark.parametrize("name", sorted(OPERATOR_GRAPHS))
@pytest.mark.parametrize("cluster", ["uniform:3", "v100_4x4", "gpu_cpu"])
def test_it_can_be_placed_on_any_cluster(name: str, cluster: str) -> None:
    problem = Problem(make(name, **SMALL[name]), Cluster.load(cluster))
    placement = doppler.place(problem, method="heft", budget=0.0)
    assert doppler.simulate(problem, placement).makespan >= problem.lower_bound * (1 - 1e-9)


@pytest.mark.parametrize("name", sorted(OPERATOR_GRAPHS))
def test_a_file_gives_it_back(name: str, tmp_path: Path) -> None:
    graph = make(name, **SMALL[name])
    doppler.save_graph(graph, tmp_path / "graph.json")
    back = doppler.load_graph(tmp_path / "graph.json")
    for key in ("src", "dst", "flops", "output_bytes", "param_bytes", "bytes_read"):
        np.testing.assert_array_equal(getattr(back, key), getattr(graph, key))


@pytest.mark.parametrize("name", sorted(OPERATOR_GRAPHS))
def test_to_run_it_is_refused(name: str) -> None:
    graph = make(name, **SMALL[name])
    message = f"{name}: the graph has no executable ops: it says what they cost, not what they"
    with pytest.raises(EngineError, match=message):
        doppler.execute(graph, Placement(np.zeros(graph.n_ops, np.int32)), "cpu")


@given(
    layers=st.integers(1, 8),
    width=st.integers(1, 9),
    degree=st.integers(1, 4),
    seed=st.integers(0, 5),
)
@settings(max_examples=40)
def test_random_layers_go_down_layer_by_layer(
    layers: int, width: int, degree: int, seed: int
) -> None:
    graph = random_layers(layers, width, degree, seed=seed)
    layer = np.array([int(name.removeprefix("layer")) for name in graph.meta_ops])
    assert (np.diff(layer) >= 0).all()
    assert set(layer.tolist()) == set(range(layers))
    assert (graph.depth == layer).all(), "an op reads of the layer before, and of none after"
    assert max(map(len, reads(graph))) <= 2 * degree - 1
    counts = np.bincount(layer)
    assert counts.min() >= width / 2
    assert counts.max() <= 1.5 * width
    assert all(
        graph.shards[layer == number].tolist() == list(range(count))
        for number, count in enumerate(counts)
    )


def test_random_layers_are_seeded_and_as_heavy_as_asked() -> None:
    one, two, other = (random_layers(20, 100, seed=seed, ccr=0.25) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.src, two.src)
    np.testing.assert_array_equal(one.flops, two.flops)
    assert one.n_edges != other.n_edges
    problem = Problem(one, Cluster.uniform(2))
    ratio = problem.mean_transfer.mean() / problem.mean_compute.mean()
    assert ratio == pytest.approx(0.25, rel=0.05)
    equal = random_layers(spread=0.0, flops=2e9)
    assert set(equal.flops.tolist()) == {2e9}
    assert len(set(equal.output_bytes.tolist())) == 1


def test_a_cell_reads_the_step_before_and_the_layer_below() -> None:
    graph = lstm_grid(4, 3, hidden=8, batch=2)
    assert reads(graph)[0] == set()
    assert reads(graph)[3 * 2 + 1] == {3 * 1 + 1, 3 * 2}
    assert graph.names[3 * 2 + 1] == "step2.layer1"
    assert graph.tiles[3 * 2 + 1].tolist() == [2, 1]
    assert graph.n_edges == 3 * 3 + 4 * 2
    assert graph.depth.max() == 3 + 2
    assert graph.flops[0] == 2 * 2 * (4 * 8) * (2 * 8)
    layer = graph.param_bytes.reshape(4, 3).sum(axis=0)
    assert layer == pytest.approx(4 * 4 * 8 * 2 * 8), "the weights of a layer, once"


def test_the_branches_of_a_module_differ_in_length_and_end_in_one_op() -> None:
    graph = inception(2, 4, channels=10)
    names = list(graph.names)
    module = [name for name in names if name.startswith("module0.")]
    lengths = [sum(f".branch{branch}." in name for name in module) for branch in range(4)]
    assert lengths == [1, 3, 5, 2]
    concat = names.index("module0.concat")
    assert len(reads(graph)[concat]) == 4
    assert graph.output_bytes[concat] == graph.output_bytes[sorted(reads(graph)[concat])].sum()
    entry = names.index("stem")
    assert reads(graph)[names.index("module0.branch0.conv0")] == {entry}
    assert (graph.src[graph.dst == names.index("reduction1")] == concat).all()
    exits = set(range(graph.n_ops)) - set(graph.src.tolist())
    assert [names[op] for op in exits] == ["head"]


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("random_layers", {"width": 0}, "random_layers: width is 0, must be a whole number >= 1"),
        ("random_layers", {"ccr": -1.0}, "random_layers: ccr is -1.0, must be a number from 0 to"),
        ("random_layers", {"flops": float("nan")}, "random_layers: flops is nan, must be"),
        ("random_layers", {"spread": "x"}, "random_layers: spread is 'x', must be"),
        ("random_layers", {"seed": -1}, "random_layers: seed is -1, must be a whole number >= 0"),
        ("random_layers", {"layers": 10**9}, "random_layers: .* inputs, must be at most"),
        ("random_layers", {"tiles": 2}, "unknown size of random_layers 'tiles'"),
        ("lstm_grid", {"steps": 1.5}, "lstm_grid: steps is 1.5, must be a whole number >= 1"),
        ("lstm_grid", {"steps": 10**9}, "lstm_grid: .* cells, must be at most"),
        ("inception", {"branches": 500}, "inception: 500 branches cannot share 384 channels"),
        ("inception", {"modules": True}, "inception: modules is True, must be a whole number"),
    ],
)
def test_a_wrong_size_is_named(name: str, sizes: dict[str, object], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make(name, **sizes)


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("random_layers", {"spread": 1e300}, "spread is 1e.300, must be a number from 0 to 1e.100"),
        ("random_layers", {"ccr": 10**400}, r"ccr is 1000.*, must be a number from 0 to 1e.100"),
        ("lstm_grid", {"hidden": 10**400}, "hidden is more than 1,099,511,627,776"),
        ("inception", {"channels": 10**200}, "channels is more than 1,099,511,627,776"),
    ],
)
def test_sizes_beyond_all_numbers_are_named(name: str, sizes: dict, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make(name, **sizes)
