"""Which placement is better."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import problems

from doppler import Placement, Problem, simulate
from doppler.simulator import Score
from doppler.simulator.kernel import make_workspace
from doppler.simulator.score import better, score_of

scores = st.builds(Score, st.floats(0, 3), st.sampled_from([0.0, 0.0, 0.5, 2.0]))


def test_what_fits_comes_before_what_does_not() -> None:
    fits, longer, over, further = Score(2.0), Score(3.0), Score(1.0, 0.1), Score(0.5, 0.2)
    assert sorted([further, over, longer, fits]) == [fits, longer, over, further]
    assert min(over, longer) == longer
    assert fits.fits
    assert not over.fits


@given(scores, scores)
def test_kernels_judge_as_python_does(one: Score, other: Score) -> None:
    assert better(one, other) == (one < other)
    assert (one > other) == (other < one)
    assert (one <= other) == (not other < one)
    assert (one >= other) == (not one < other)
    assert [one < other, other < one, one.key == other.key].count(True) == 1


@settings(max_examples=60)
@given(problem=problems(), seed=st.integers(0, 1000), ordered=st.booleans())
def test_a_score_is_what_the_simulation_says(problem: Problem, seed: int, ordered: bool) -> None:
    rng = np.random.default_rng(seed)
    arrays = problem.arrays
    devices = np.array([rng.choice(np.flatnonzero(np.isfinite(row))) for row in arrays.compute])
    for op in np.flatnonzero(arrays.group >= 0):
        devices[op] = devices[np.flatnonzero(arrays.group == arrays.group[op])[0]]
    placement = Placement(devices, rng.permutation(problem.n_ops) if ordered else None)
    result = simulate(problem, placement)
    priority = np.empty(0, np.int32) if placement.priority is None else placement.priority.copy()
    work = make_workspace(problem.n_ops, problem.n_devices, problem.graph.n_edges)
    limited = problem.may_overflow
    score = score_of(arrays, placement.devices.copy(), priority, limited, work)
    assert score.makespan == result.makespan
    over = np.maximum(result.peak_memory - arrays.capacity, 0.0)
    expected = float((over / arrays.capacity).sum()) if limited else 0.0
    assert score.overflow == pytest.approx(expected, rel=1e-12)
    assert isinstance(score, Score)
    assert score.fits == bool((result.peak_memory <= arrays.capacity).all())
