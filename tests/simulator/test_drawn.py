"""Runs with durations that were drawn before: exact, and cut short only where they lose."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import placed_problems
from reference_simulator import Run, simulate_slowly

from doppler import Cluster, Graph, Placement, Problem
from doppler.simulator.kernel import SPREAD, Workspace, make_workspace, run, run_drawn

Placed = tuple[Problem, Placement]
NONE = np.empty(0)
exhaustive = settings(max_examples=200)


def workspace(problem: Problem) -> Workspace:
    return make_workspace(problem.n_ops, problem.n_devices, 0)


def queue_of(placement: Placement) -> np.ndarray:
    return np.empty(0, np.int32) if placement.priority is None else placement.priority.copy()


def drawn(
    problem: Problem,
    placement: Placement,
    op_factor: np.ndarray = NONE,
    transfer_factor: np.ndarray = NONE,
    below: np.ndarray = NONE,
    limit: float = np.inf,
    work: Workspace | None = None,
) -> float:
    return run_drawn(
        problem.arrays,
        placement.devices.copy(),
        queue_of(placement),
        op_factor,
        transfer_factor,
        below,
        limit,
        work or workspace(problem),
    )


def slowly(
    problem: Problem, placement: Placement, op_factor: np.ndarray, transfer_factor: np.ndarray
) -> Run:
    return simulate_slowly(
        problem,
        placement,
        lambda op: float(op_factor[op]) if op_factor.size else 1.0,
        lambda op, target: (
            float(transfer_factor[(op * int(SPREAD) + target) % transfer_factor.size])
            if transfer_factor.size
            else 1.0
        ),
    )


@st.composite
def factors(draw: st.DrawFn, n_ops: int) -> tuple[np.ndarray, np.ndarray]:
    """Of ops and transfers; either may be without."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.1, 1.0]))
    ops = np.exp(spread * rng.standard_normal(n_ops)) if draw(st.booleans()) else NONE
    size = draw(st.sampled_from([0, 1, 4, 64]))
    return ops, np.exp(spread * rng.standard_normal(size))


@exhaustive
@given(placed_problems())
def test_without_factors_it_is_the_run_without_noise(placed: Placed) -> None:
    problem, placement = placed
    one, other = workspace(problem), workspace(problem)
    devices, queue = placement.devices.copy(), queue_of(placement)
    makespan, _ = run(problem.arrays, devices, queue, 0.0, 0, False, one)
    assert drawn(problem, placement, work=other) == makespan
    assert np.array_equal(one.start, other.start)
    assert np.array_equal(one.end, other.end)


@exhaustive
@given(st.data(), placed_problems())
def test_with_factors_it_equals_the_plain_simulator_exactly(
    data: st.DataObject, placed: Placed
) -> None:
    problem, placement = placed
    op_factor, transfer_factor = data.draw(factors(problem.n_ops))
    work = workspace(problem)
    expected = slowly(problem, placement, op_factor, transfer_factor)
    assert drawn(problem, placement, op_factor, transfer_factor, work=work) == expected.makespan
    assert dict(enumerate(work.start.tolist())) == expected.start
    assert dict(enumerate(work.end.tolist())) == expected.end


@exhaustive
@given(st.data(), placed_problems(), st.floats(0.0, 2.0), st.booleans())
def test_a_limit_cuts_short_what_exceeds_it_and_nothing_else(
    data: st.DataObject, placed: Placed, share: float, tailed: bool
) -> None:
    problem, placement = placed
    op_factor, transfer_factor = data.draw(factors(problem.n_ops))
    fastest = problem.arrays.compute.min(axis=1)
    below = problem.b_level(fastest * op_factor if op_factor.size else fastest) if tailed else NONE
    makespan = drawn(problem, placement, op_factor, transfer_factor)
    for limit in (share * makespan, 0.999999 * makespan, 1.000001 * makespan):
        found = drawn(problem, placement, op_factor, transfer_factor, below, limit)
        # Sums of the same times in another order may differ in the last digits.
        if makespan <= limit * (1 - 1e-9):
            assert found == makespan
        elif makespan > limit * (1 + 1e-9):
            assert found == np.inf
        else:
            assert found in (makespan, np.inf)


def test_the_limit_itself_is_no_excess() -> None:
    # Whole seconds, which add up exactly.
    graph = Graph.from_arrays([0, 0, 1, 2], [1, 2, 3, 3], [1.0, 2.0, 3.0, 1.0], [1.0] * 4)
    problem = Problem(graph, Cluster.uniform(2))
    placement = Placement([0, 0, 1, 1], range(4))
    below = problem.b_level(problem.arrays.compute.min(axis=1))
    makespan = drawn(problem, placement)
    assert drawn(problem, placement, below=below, limit=makespan) == makespan
    assert drawn(problem, placement, below=below, limit=makespan - 1.0) == np.inf


@pytest.mark.parametrize("limit", [np.inf, 1e9])
def test_an_op_on_a_device_that_cannot_run_it_never_ends(limit: float) -> None:
    graph = Graph.from_arrays([0], [1], [1.0, 1.0], [1.0, 1.0], pinned=[0, 1])
    problem = Problem(graph, Cluster.uniform(2))
    assert drawn(problem, Placement([1, 1]), limit=limit) == np.inf
    assert drawn(problem, Placement([0, 1]), limit=limit) == 3.0
