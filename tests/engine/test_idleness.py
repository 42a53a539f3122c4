from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from random_problems import placed_problems

from doppler import Graph, Placement, Problem, Trace, simulate
from doppler.engine import longest_idle


def trace(
    ops: list[tuple[int, int, float, float]],
    sent: Sequence[tuple[int, int, int, float, float]] = (),
) -> Trace:
    """Of (op, device, start, end) and (op, source, target, start, end)."""
    op, device, start, end = zip(*ops, strict=True)
    columns = list(zip(*sent, strict=True)) if sent else [()] * 5
    whole = [np.array(column, np.int32) for column in columns[:3]]
    moments = [np.array(column, np.float64) for column in columns[3:]]
    return Trace(  # type: ignore[misc]
        np.array(op, np.int32),
        np.array(device, np.int32),
        np.array(start),
        np.array(end),
        *whole,  # type: ignore[arg-type]
        *moments,
        transfer_channel=np.full(len(sent), -1, np.int32),
        device_names=("a", "b"),
    )


def graph(n_ops: int, *edges: tuple[int, int]) -> Graph:
    return Graph.from_arrays(
        [u for u, _ in edges], [v for _, v in edges], [1.0] * n_ops, [1.0] * n_ops
    )


def test_an_entry_that_waits_for_nothing_is_found() -> None:
    run = trace([(0, 0, 0.0, 1.0), (1, 0, 1.5, 2.0), (2, 1, 0.25, 9.0)])
    assert longest_idle(graph(3), run) == 0.5


def test_waiting_for_an_input_is_no_idling() -> None:
    run = trace([(0, 0, 0.0, 2.0), (1, 1, 5.0, 6.0)], [(0, 0, 1, 2.0, 4.75)])
    assert longest_idle(graph(2, (0, 1)), run) == 0.25


def test_it_counts_from_when_the_first_of_the_ops_that_follow_was_ready() -> None:
    # Op 2 is ready at 1; the device waits for op 1, which has the better priority, until 4.
    run = trace(
        [(0, 0, 0.0, 1.0), (3, 1, 0.0, 3.0), (1, 0, 4.0, 5.0), (2, 0, 5.0, 6.0)],
        [(3, 1, 0, 3.0, 4.0)],
    )
    assert longest_idle(graph(4, (0, 2), (3, 1)), run) == 3.0


@settings(max_examples=100)
@given(placed_problems())
def test_the_simulator_never_idles(placed: tuple[Problem, Placement]) -> None:
    problem, placement = placed
    run = simulate(problem, placement).trace
    assert longest_idle(problem.graph, run) == pytest.approx(0.0, abs=1e-12)
