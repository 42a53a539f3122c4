"""The compiled simulator against the plain one, exactly, and its invariants."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from random_problems import placed_problems
from reference_simulator import peak_memory_slowly, simulate_slowly

from doppler import Cluster, Device, Graph, Link, Placement, Problem, simulate, simulate_many
from doppler.simulator import Result

Placed = tuple[Problem, Placement]


def transfers(result: Result) -> list[tuple[int, int, int, int, float, float]]:
    trace = result.trace
    return list(
        zip(
            trace.transfer_op.tolist(),
            trace.transfer_source.tolist(),
            trace.transfer_target.tolist(),
            trace.transfer_channel.tolist(),
            trace.transfer_start.tolist(),
            trace.transfer_end.tolist(),
            strict=True,
        )
    )


@settings(max_examples=400)
@given(placed_problems())
def test_equals_the_plain_simulator_exactly(placed: Placed) -> None:
    problem, placement = placed
    result = simulate(problem, placement)
    run = simulate_slowly(problem, placement)
    trace = result.trace
    assert result.makespan == run.makespan == trace.makespan
    assert dict(zip(trace.op.tolist(), trace.start.tolist(), strict=True)) == run.start
    assert dict(zip(trace.op.tolist(), trace.end.tolist(), strict=True)) == run.end
    assert sorted(transfers(result)) == sorted(sent.as_tuple() for sent in run.transfers)
    batch = simulate_many(
        problem,
        [placement.devices],
        None if placement.priority is None else [placement.priority],
        threads=1,
    )
    assert batch.tolist() == [run.makespan]
    assert result.peak_memory.tolist() == peak_memory_slowly(problem, placement, run)


@settings(max_examples=200)
@given(placed_problems())
def test_invariants(placed: Placed) -> None:
    problem, placement = placed
    result = simulate(problem, placement)
    trace, arrays = result.trace, problem.arrays
    start = np.empty(problem.n_ops)
    end = np.empty(problem.n_ops)
    start[trace.op], end[trace.op] = trace.start, trace.end
    device_of = placement.devices

    assert sorted(trace.op.tolist()) == list(range(problem.n_ops))
    assert (np.diff(trace.start) >= 0).all()
    assert (trace.device == device_of[trace.op]).all()
    assert result.makespan >= problem.lower_bound * (1 - 1e-12)

    sent = transfers(result)
    assert len({(op, target) for op, _, target, *_ in sent}) == len(sent), "sent twice"
    for op, source, target, channel, begins, arrives in sent:
        assert source == device_of[op] != target
        assert channel == arrays.channel[source, target]
        assert begins >= end[op]
        assert arrives >= begins
    for number in range(arrays.n_channels):
        turns = sorted((b, e) for *_, channel, b, e in sent if channel == number)
        assert all(first[1] <= second[0] for first, second in pairwise(turns))

    arrived = {(op, target): arrives for op, _, target, _, _, arrives in sent}
    ready = np.zeros(problem.n_ops)
    for u, v in zip(problem.graph.src.tolist(), problem.graph.dst.tolist(), strict=True):
        at = end[u] if device_of[u] == device_of[v] else arrived[u, int(device_of[v])]
        ready[v] = max(ready[v], at)
    assert (start >= ready).all(), "an op started before its inputs had arrived"

    for device in range(problem.n_devices):
        mine = sorted(np.flatnonzero(device_of == device), key=lambda op: (start[op], end[op]))
        free = 0.0
        for op in mine:  # type: ignore[assignment]
            assert start[op] >= free, "two ops overlap on a device"
            if start[op] > free:
                # The device idled over [free, start): nothing that it had yet to run was ready.
                left = [other for other in mine if start[other] >= start[op]]
                assert min(ready[other] for other in left) == start[op]
            free = end[op]


@settings(max_examples=60)
@given(placed_problems())
def test_jitter_is_seeded_and_changes_no_placement(placed: Placed) -> None:
    problem, placement = placed
    one = simulate(problem, placement, jitter=0.3, seed=7)
    again = simulate(problem, placement, jitter=0.3, seed=7)
    assert one.makespan == again.makespan
    assert (one.trace.op == again.trace.op).all()
    assert (one.trace.start == again.trace.start).all()
    assert transfers(one) == transfers(again)
    assert simulate_many(
        problem,
        [placement.devices],
        None if placement.priority is None else [placement.priority],
        jitter=0.3,
        seeds=[7],
    ).tolist() == [one.makespan]


@pytest.mark.parametrize("contended", [False, True])
def test_jitter_keeps_the_mean_of_durations_and_transfers(contended: bool) -> None:
    channels = ((-1, 0), (0, -1)) if contended else ((-1, -1), (-1, -1))
    links = tuple(Link(a, b, channel=channels[a][b]) for a, b in ((0, 1), (1, 0)))
    cluster = Cluster("pair", (Device("a"), Device("b")), links, ("bus",) if contended else ())
    problem = Problem(Graph.from_arrays([0], [1], [2.0, 3.0], [5.0, 0.0]), cluster)
    many = 40_000
    devices = np.tile(np.array([0, 1], np.int32), (many, 1))
    makespans = simulate_many(problem, devices, jitter=0.2)
    spread = 0.2 * np.sqrt(2.0**2 + 3.0**2 + 5.0**2)
    assert makespans.mean() == pytest.approx(10.0, abs=5 * spread / np.sqrt(many))
    assert makespans.std() == pytest.approx(spread, rel=0.05)
    assert len(set(makespans.tolist())) == many


def test_other_seeds_give_other_durations() -> None:
    problem = Problem(Graph.from_arrays([0], [1], [1.0, 1.0], [1.0, 1.0]), Cluster.uniform(2))
    placement = Placement([0, 1])
    seen = {simulate(problem, placement, jitter=0.1, seed=seed).makespan for seed in range(20)}
    assert len(seen) == 20


def layered(n_layers: int, width: int, seed: int) -> Graph:
    """Every op reads two of the layer before."""
    rng = np.random.default_rng(seed)
    dst = np.repeat(np.arange(width, n_layers * width), 2)
    src = (dst // width - 1) * width + rng.integers(0, width, dst.size)
    n_ops = n_layers * width
    return Graph.from_arrays(src, dst, rng.random(n_ops), rng.random(n_ops))


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("threads", [None, 1, 2, 5])
def test_a_batch_equals_one_by_one(count: int, threads: int | None) -> None:
    problem = Problem(layered(6, 7, 0), Cluster.load("a100_2x4"))
    rng = np.random.default_rng(count)
    devices = rng.integers(0, 8, (count, problem.n_ops)).astype(np.int32)
    priority = rng.permuted(np.tile(np.arange(problem.n_ops), (count, 1)), axis=1)
    for ranks in (None, priority):
        for jitter in (0.0, 0.1):
            alone = [
                simulate(
                    problem,
                    Placement(devices[i], None if ranks is None else ranks[i]),
                    jitter=jitter,
                    seed=100 + i,
                ).makespan
                for i in range(count)
            ]
            batch = simulate_many(
                problem,
                devices,
                ranks,
                jitter=jitter,
                seeds=range(100, 100 + count),
                threads=threads,
            )
            assert batch.tolist() == alone


def test_an_empty_batch_has_no_makespans() -> None:
    problem = Problem(layered(2, 2, 0), Cluster.uniform(2))
    assert simulate_many(problem, np.empty((0, problem.n_ops), np.int32)).shape == (0,)


@pytest.mark.parametrize("n_channels", [0, 3])
def test_many_devices_and_many_ops_equal_the_plain_simulator(n_channels: int) -> None:
    count = 64
    rng = np.random.default_rng(1)
    links = tuple(
        Link(a, b, channel=int(rng.integers(-1, n_channels)))
        for a in range(count)
        for b in range(count)
        if a != b
    )
    cluster = Cluster(
        "many",
        tuple(Device(f"d{i}") for i in range(count)),
        links,
        tuple(f"c{i}" for i in range(n_channels)),
    )
    problem = Problem(layered(8, 60, 2), cluster)
    for priority in (None, rng.permutation(problem.n_ops)):
        placement = Placement(rng.integers(0, count, problem.n_ops), priority)
        run = simulate_slowly(problem, placement)
        result = simulate(problem, placement)
        assert result.makespan == run.makespan
        assert sorted(transfers(result)) == sorted(s.as_tuple() for s in run.transfers)


def test_one_op() -> None:
    problem = Problem(Graph.from_arrays([], [], [3.0], [1.0]), Cluster.uniform(3))
    result = simulate(problem, Placement([2]))
    assert result.makespan == 3.0
    assert result.trace.op.tolist() == [0]
    assert result.trace.device.tolist() == [2]
    assert result.trace.transfer_op.size == 0


def test_ops_that_cost_nothing_take_no_time() -> None:
    problem = Problem(
        Graph.from_arrays([0, 1, 2], [1, 2, 3], np.zeros(4), np.zeros(4)), Cluster.uniform(2)
    )
    assert simulate(problem, Placement([0, 1, 0, 1])).makespan == 0.0


def test_an_op_on_a_device_that_cannot_run_it_never_ends() -> None:
    graph = Graph.from_arrays([0], [1], [1.0, 1.0], [1.0, 1.0], pinned=[0, 1])
    problem = Problem(graph, Cluster.uniform(2))
    good, bad = [0, 1], [1, 1]
    assert simulate_many(problem, [bad, good, [0, 0]], threads=1).tolist() == [np.inf, 3, np.inf]
