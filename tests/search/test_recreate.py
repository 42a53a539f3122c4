"""Ruin and recreate: what is ruined, and where it goes again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import mixed_cluster, problems, random_graph, random_placement
from reference_partial import PlainPartial

from doppler import Cluster, Graph, Placement, Problem, simulate
from doppler.heuristics.sibling_affinity import sibling_affinity_schedule
from doppler.schedule.list_schedule import ListWeights
from doppler.schedule.ranks import rank_of
from doppler.search.recreate import (
    LARGEST,
    SMALLEST,
    make_recreation,
    recreate,
    ruin_and_recreate,
    ruin_region,
    sort_by_start,
)

quick = settings(max_examples=60)
WEIGHTS = ListWeights(1.0, 0.7, 1.3, 0.0, 0.0)


def times(problem: Problem, placement: Placement) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of each op in a run."""
    trace = simulate(problem, placement).trace
    start, end = np.empty(problem.n_ops), np.empty(problem.n_ops)
    start[trace.op], end[trace.op] = trace.start, trace.end
    return start, end


def is_topological(problem: Problem, order: np.ndarray) -> bool:
    rank = rank_of(order)
    return bool((rank[problem.graph.src] < rank[problem.graph.dst]).all())


@quick
@given(problem=problems(), seed=st.integers(0, 1000))
def test_ops_are_sorted_by_their_start(problem: Problem, seed: int) -> None:
    start, _ = times(problem, random_placement(problem, seed))
    scratch = make_recreation(problem.arrays)
    sort_by_start(problem.arrays, start, scratch)
    assert (np.diff(start[scratch.order]) >= 0).all()
    assert np.array_equal(scratch.position[scratch.order], np.arange(problem.n_ops))
    # Even where ops take no time.
    assert is_topological(problem, scratch.order)


@quick
@given(problem=problems(), first=st.integers(0, 100))
def test_a_part_is_made_anew_and_stays_valid(problem: Problem, first: int) -> None:
    order, devices, _ = sibling_affinity_schedule(problem)
    scratch = make_recreation(problem.arrays)
    for _ in range(5):
        start, end = times(problem, Placement(devices, rank_of(order)))
        sort_by_start(problem.arrays, start, scratch)
        sorted_ops = scratch.order.copy()
        before = devices.copy()
        begin, stop = ruin_and_recreate(
            problem.arrays, 1.0, first % problem.n_ops, start, end, devices, scratch
        )
        assert 0 <= begin <= scratch.position[first % problem.n_ops] < stop <= problem.n_ops
        assert scratch.ruined.sum() <= LARGEST
        assert not (scratch.ruined & (problem.arrays.group >= 0)).any()
        assert np.array_equal(devices[~scratch.ruined], before[~scratch.ruined])
        stretch = scratch.order[begin:stop]
        assert set(np.flatnonzero(scratch.ruined)) <= set(stretch.tolist())
        assert np.array_equal(scratch.order, sorted_ops)
        assert is_topological(problem, scratch.order)
        Placement(devices).validate(problem)


@pytest.mark.parametrize("size", [SMALLEST, 20, LARGEST])
def test_a_region_is_connected(size: int) -> None:
    problem = Problem(random_graph(np.random.default_rng(2), 200), Cluster.uniform(2))
    scratch = make_recreation(problem.arrays)
    edges = list(zip(problem.graph.src.tolist(), problem.graph.dst.tolist(), strict=True))
    for first in range(0, 200, 7):
        ruin_region(problem.arrays, first, size, scratch)
        region = set(np.flatnonzero(scratch.ruined).tolist())
        assert first in region
        assert len(region) <= size
        reached = {first}
        while (
            more := {op for u, v in edges if {u, v} & reached and {u, v} <= region for op in (u, v)}
            - reached
        ):
            reached |= more
        assert reached == region


def recreated(
    problem: Problem, devices: np.ndarray, ruined: np.ndarray, begin: int, stop: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Recreate a stretch of the run of the devices; returns devices, order, start, end."""
    start, end = times(problem, Placement(devices))
    scratch = make_recreation(problem.arrays)
    sort_by_start(problem.arrays, start, scratch)
    scratch.ruined[:] = ruined
    found = devices.copy()
    recreate(problem.arrays, np.int64(begin), np.int64(stop), start, end, found, WEIGHTS, scratch)
    return found, scratch.order, start, end


def least_scores(
    plain: PlainPartial, op: int, homes: dict[int, int], device_count: int
) -> list[float]:
    """Score of each device for an op, given where the ops that count are."""
    problem = plain.problem
    volume = problem.arrays.volume
    scores = []
    for device in range(device_count):
        sent = sum(
            plain.transfer(plain.device[u], device, volume[u])
            for u in plain.inputs[op]
            if plain.device[u] != device and (u, device) not in plain.arrived
        )
        away = max(
            (
                plain.transfer(device, homes[w], volume[op])
                for w in plain.consumers[op]
                if homes.get(w, device) != device
            ),
            default=0.0,
        )
        scores.append(
            plain.start(op, device)
            + problem.arrays.compute[op, device]
            + 0.7 * plain.affinity(op, device, homes)
            + 1.3 * (sent + away)
        )
    return scores


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_an_op_goes_where_the_score_is_least(seed: int, shared: bool) -> None:
    rng = np.random.default_rng(seed)
    problem = Problem(random_graph(rng, 25), mixed_cluster(rng, 3, shared=shared))
    old = rng.integers(0, 3, 25).astype(np.int32)
    ruined = rng.random(25) < 0.4
    devices, order, _, _ = recreated(problem, old, ruined, 0, 25)
    plain = PlainPartial(problem)
    homes = {op: int(old[op]) for op in range(25) if not ruined[op]}
    moved = 0
    for op in order.tolist():
        if ruined[op]:
            scores = least_scores(plain, op, homes, 3)
            assert scores[devices[op]] == pytest.approx(min(scores), rel=1e-9)
            homes[op] = int(devices[op])
            moved += devices[op] != old[op]
        else:
            assert devices[op] == old[op]
        plain.place(op, int(devices[op]))
    assert moved > 0


@pytest.mark.parametrize("seed", range(8))
def test_a_stretch_is_scheduled_after_what_ran_before(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = Problem(random_graph(rng, 40), mixed_cluster(rng, 3))
    old = rng.integers(0, 3, 40).astype(np.int32)
    ruined = rng.random(40) < 0.6
    begin, stop = 12, 30
    devices, order, start, end = recreated(problem, old, ruined, begin, stop)
    stretch = set(order[begin:stop].tolist())
    # Without channels the run as far as the stretch is known: ends, and what was sent where.
    plain = PlainPartial(problem)
    arrays = problem.arrays
    for op in order[:begin].tolist():
        home = int(old[op])
        plain.device[op] = home
        plain.finish[op] = float(end[op])
        plain.device_free[home] = max(plain.device_free[home], float(end[op]))
    before = set(plain.device)
    for op in before:
        for consumer in plain.consumers[op]:
            target = int(old[consumer])
            if consumer in before and target != plain.device[op]:
                sent = plain.transfer(plain.device[op], target, arrays.volume[op])
                plain.arrived[op, target] = plain.finish[op] + sent
    homes = {op: int(old[op]) for op in range(40) if not (ruined[op] and op in stretch)}
    for op in order[begin:stop].tolist():
        if ruined[op]:
            scores = least_scores(plain, op, homes, 3)
            assert scores[devices[op]] == pytest.approx(min(scores), rel=1e-9)
            homes[op] = int(devices[op])
        plain.place(op, int(devices[op]))
    stays = np.array([not (ruined[op] and op in stretch) for op in range(40)])
    assert np.array_equal(devices[stays], old[stays])
    assert (start[order[:begin]] <= start[order[begin]]).all()


@quick
@given(problem=problems(), seed=st.integers(0, 1000))
def test_only_the_ruined_of_the_stretch_move(problem: Problem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    old = random_placement(problem, seed).devices.copy()
    ruined = (rng.random(problem.n_ops) < 0.7) & (problem.arrays.group < 0)
    begin, last = np.sort(rng.integers(0, problem.n_ops, 2)).tolist()
    stop = last + 1
    devices, order, _, _ = recreated(problem, old, ruined, begin, stop)
    outside = np.ones(problem.n_ops, bool)
    outside[order[begin:stop]] = False
    assert np.array_equal(devices[outside | ~ruined], old[outside | ~ruined])
    Placement(devices).validate(problem)


def test_channels_are_taken_as_free_from_the_stretch_on() -> None:
    # The channel is asked for by ops that ran before; a resumed schedule knows only the time.
    graph = Graph.from_arrays([0, 1], [1, 2], [1.0, 1.0, 1.0], [1.0, 1.0, 0.0])
    rng = np.random.default_rng(0)
    problem = Problem(graph, mixed_cluster(rng, 2, shared=True))
    old = np.array([0, 1, 0], np.int32)
    devices, order, _, _ = recreated(problem, old, np.array([False, False, True]), 2, 3)
    assert order.tolist() == [0, 1, 2]
    # Where its input is: nothing is sent, and it starts first.
    assert devices.tolist() == [0, 1, 1]
