"""Banded partitions: whole, balanced, together, and clear where the partitioner is missing."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import problems

from doppler import Cluster, Graph, Problem, simulate, workloads
from doppler.errors import MissingPackageError
from doppler.heuristics.bands import band_net, cut_bands, make_vertices, relabel
from doppler.heuristics.partition import Partitioner, available, candidates, partition

quick = settings(max_examples=40)


@quick
@given(
    problem=problems(memory=False),
    bands=st.integers(1, 6),
    seed=st.integers(0, 2**40),
    mapping=st.booleans(),
)
def test_a_partition_is_a_valid_placement(
    problem: Problem, bands: int, seed: int, mapping: bool
) -> None:
    first, again = (
        Partitioner(problem, threads=threads).cut(bands, 0.05, seed, mapping) for threads in (1, 2)
    )
    first.validate(problem)
    assert np.array_equal(first.devices, again.devices)


@quick
@given(problem=problems(), bands=st.integers(1, 5))
def test_hyperedges_are_outputs_with_what_consumes_them(problem: Problem, bands: int) -> None:
    arrays, vertices = problem.arrays, make_vertices(problem)
    of_op, work, position, member_ptr, member = vertices
    band = cut_bands(vertices, bands)
    # Bands follow each other in the order of position.
    assert (np.diff(band[np.argsort(position)]) >= 0).all()
    rng = np.random.default_rng(0)
    home = np.full(len(work), -1, np.int32)
    local, seen = np.full(len(work), -1, np.int32), np.zeros(problem.n_ops, np.bool_)
    for index in range(bands):
        chosen = np.flatnonzero(band == index).astype(np.int32)
        listed, pin_ptr, pins, ops = band_net(
            arrays, of_op, member_ptr, member, chosen, home, local, seen
        )
        assert (local == -1).all()
        assert not seen.any()
        assert listed[: chosen.size].tolist() == chosen.tolist()
        assert (home[listed] == -1).all()
        found = {}
        for net, op in enumerate(ops):
            names = pins[pin_ptr[net] : pin_ptr[net + 1]]
            assert len(set(names.tolist())) == names.size >= 2
            found[int(op)] = set(names.tolist())
        number = {int(v): problem.n_devices + i for i, v in enumerate(listed)}
        for op in range(problem.n_ops):
            ends = [op, *arrays.succ[arrays.succ_ptr[op] : arrays.succ_ptr[op + 1]]]
            there = {int(home[of_op[e]]) for e in ends if home[of_op[e]] >= 0}
            free = {number[int(of_op[e])] for e in ends if int(of_op[e]) in number}
            known = home[of_op[op]] >= 0 or of_op[op] in chosen
            if known and free and len(there | free) > 1:
                assert found.pop(op) == there | free
        assert not found
        home[chosen] = rng.integers(0, problem.n_devices, chosen.size)


def test_what_belongs_together_stays_together() -> None:
    # Four chains that no link should cut.
    count = 40
    src = [chain * count + i for chain in range(4) for i in range(count - 1)]
    graph = Graph.from_arrays(src, [v + 1 for v in src], [1.0] * 4 * count, [1.0] * 4 * count)
    problem = Problem(graph, Cluster.uniform(4))
    for bands in (1, 4):
        placement = Partitioner(problem).cut(bands, 0.03, seed=0)
        assert simulate(problem, placement).makespan == count


def test_other_seeds_give_other_partitions() -> None:
    problem = Problem(workloads.make("ffnn", tiles=6), Cluster.load("v100x8"))
    cut = [Partitioner(problem).cut(2, 0.05, seed).devices.tolist() for seed in (0, 1, 0)]
    assert cut[0] == cut[2] != cut[1]


def test_nodes_come_first_where_links_out_of_them_are_few() -> None:
    # Two pairs of chains, each pair with outputs that are costly to part.
    src, dst, volume = [], [], []
    for pair in range(2):
        for chain in range(2):
            for step in range(19):
                op = (pair * 2 + chain) * 20 + step
                src += [op, op]
                dst += [op + 1, (pair * 2 + 1 - chain) * 20 + step + 1]
    volume = [1e6] * 80
    graph = Graph.build(80, src, dst, flops=[1e9] * 80, output_bytes=volume)
    problem = Problem(graph, Cluster.load("a100_2x4"))
    devices = Partitioner(problem).cut(1, 0.03, seed=0, mapping=True).devices
    node = problem.nodes[devices].reshape(2, 40)
    assert (node == node[:, :1]).all()
    assert node[0, 0] != node[1, 0]


@quick
@given(seed=st.integers(0, 2**32 - 1))
def test_relabelled_hyperedges_keep_their_pins(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, n_labels = int(rng.integers(1, 20)), int(rng.integers(1, 8))
    nets = [rng.choice(count, rng.integers(1, count + 1), replace=False) for _ in range(6)]
    pin_ptr = np.concatenate([[0], np.cumsum([len(net) for net in nets])]).astype(np.int32)
    label = rng.integers(-1, n_labels, count).astype(np.int32)
    ptr, pins, kept = relabel(pin_ptr, np.concatenate(nets).astype(np.int32), label, n_labels)
    expected = [{int(label[pin]) for pin in net} - {-1} for net in nets]
    assert kept.tolist() == [i for i, names in enumerate(expected) if len(names) > 1]
    for index, net in enumerate(kept):
        names = pins[ptr[index] : ptr[index + 1]].tolist()
        assert len(names) == len(set(names))
        assert set(names) == expected[net]


def test_every_band_keeps_every_device_busy() -> None:
    problem = Problem(workloads.make("ffnn", tiles=6), Cluster.load("v100x8"))
    vertices = make_vertices(problem)
    band = cut_bands(vertices, 3)[vertices.of_op]
    devices = Partitioner(problem).cut(3, 0.1, seed=0).devices
    for index in range(3):
        inside = band == index
        load = np.bincount(devices[inside], problem.mean_compute[inside], minlength=8)
        heaviest = problem.mean_compute[inside].max()
        assert load.max() <= 1.1 * load.mean() + heaviest


def test_slower_devices_get_less() -> None:
    graph = Graph.build(400, [], [], flops=[1e12] * 400)
    problem = Problem(graph, Cluster.load("gpu_cpu"))
    devices = Partitioner(problem).cut(1, 0.05, seed=0).devices
    times = problem.arrays.compute[0]
    shares = np.bincount(devices, minlength=times.size) / 400
    expected = (1 / times) / (1 / times).sum()
    assert shares == pytest.approx(expected, abs=0.06)


def test_candidates_are_what_they_say_best_first() -> None:
    problem = Problem(workloads.make("chainmm", tiles=4), Cluster.load("v100_2x4"))
    found, again = candidates(problem, seed=3), candidates(problem, seed=3)
    makespans = [one.makespan for one in found]
    assert makespans == sorted(makespans) == [one.makespan for one in again]
    assert {one.label for one in found} >= {
        "partition, 1 band",
        "partition, 4 bands, node by node",
    }
    for one in found:
        assert simulate(problem, one.placement).makespan == one.makespan
    solution = partition(problem, seed=3)
    assert solution.makespan == makespans[0]
    assert solution.origin.startswith(found[0].label)


def test_a_missing_partitioner_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(Graph.from_arrays([0], [1], [1.0] * 2, [1.0] * 2), Cluster.uniform(2))
    assert available()
    monkeypatch.setitem(sys.modules, "mtkahypar", None)
    assert not available()
    with pytest.raises(MissingPackageError, match=r"pip install 'mtkahypar>=1\.7'"):
        partition(problem)


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    problem = Problem(workloads.make("chainmm", tiles=3), Cluster.load("v100x8"))
    for mapping in (False, True):
        Partitioner(problem).cut(2, 0.05, 0, mapping)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("most", "expected"), [((50, 9, 9, 9), 1), ((9, 9, 9, 9), 0)])
def test_large_graphs_get_few_candidates_without_a_budget(
    monkeypatch: pytest.MonkeyPatch, most: tuple[int, ...], expected: int
) -> None:
    problem = Problem(Graph.from_arrays([0], [1], [1.0] * 50, [1.0] * 50), Cluster.uniform(2))
    monkeypatch.setattr("doppler.heuristics.partition.MOST_OPS", most)
    assert len(candidates(problem)) == expected
    assert partition(problem).evaluations == 1


@pytest.mark.parametrize("devices", [24, 64])
def test_one_op_may_weigh_more_than_all_others(devices: int) -> None:
    """What the library adds up of its limits stays within 32 bits."""
    compute = np.ones(200)
    compute[7] = 1e4
    graph = Graph.from_arrays(range(199), range(1, 200), compute, np.ones(200))
    problem = Problem(graph, Cluster.uniform(devices))
    Partitioner(problem).cut(1, 0.05, 0).validate(problem)
