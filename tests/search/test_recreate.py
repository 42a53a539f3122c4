"""Ruin and recreate: what is ruined, and where it goes again."""

from __future__ import annotations

import numpy as np
import pytest
from heuristic_problems import mixed_cluster, problems, random_graph
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_partial import PlainPartial

from doppler import Cluster, Placement, Problem, simulate
from doppler.heuristics.sibling_affinity import sibling_affinity_trace
from doppler.schedule.list_schedule import ListWeights
from doppler.search.local_search import rank_of
from doppler.search.recreate import (
    LARGEST,
    SMALLEST,
    make_recreation,
    recreate,
    ruin_and_recreate,
    ruin_region,
)

quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@quick
@given(problem=problems(), first=st.integers(0, 100))
def test_a_part_is_made_anew_and_stays_valid(problem: Problem, first: int) -> None:
    order, devices, _ = sibling_affinity_trace(problem)
    start = simulate(problem, Placement(devices, rank_of(order))).trace
    starts = np.empty(problem.n_ops)
    starts[start.op] = start.start
    scratch = make_recreation(problem.arrays)
    for _ in range(5):
        before = devices.copy()
        ruin_and_recreate(
            problem.arrays,
            1.0,
            first % problem.n_ops,
            starts,
            devices,
            scratch,
        )
        assert scratch.ruined.sum() <= LARGEST
        assert not (scratch.ruined & (problem.arrays.group >= 0)).any()
        assert np.array_equal(devices[~scratch.ruined], before[~scratch.ruined])
        rank = rank_of(scratch.order)
        assert (rank[problem.graph.src] < rank[problem.graph.dst]).all()
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


@pytest.mark.parametrize("seed", range(5))
def test_an_op_goes_where_the_score_is_least(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = Problem(random_graph(rng, 25), mixed_cluster(rng, 3))
    volume = problem.arrays.volume
    old = rng.integers(0, 3, 25).astype(np.int32)
    devices = old.copy()
    scratch = make_recreation(problem.arrays)
    scratch.ruined[:] = rng.random(25) < 0.4
    recreate(
        problem.arrays, problem.arrays.order, devices, ListWeights(1.0, 0.7, 1.3, 0.0, 0.0), scratch
    )
    plain = PlainPartial(problem)
    homes = {op: int(old[op]) for op in range(25) if not scratch.ruined[op]}
    for op in problem.arrays.order.tolist():
        if scratch.ruined[op]:
            scores = []
            for device in range(3):
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
            assert scores[devices[op]] == pytest.approx(min(scores), rel=1e-9)
            homes[op] = int(devices[op])
        plain.place(op, int(devices[op]))
