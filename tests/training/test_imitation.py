"""Stage I: the loss, what it learns, and the cases' turns."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from random_problems import any_problem, equal_cluster
from training_cases import (
    Rows,
    blank_policy,
    mixed_cases,
    small_case,
    small_policy,
    taught,
    weights_of,
)

from doppler import Graph, Problem
from doppler.errors import DopplerError
from doppler.policy.likelihood import log_probabilities
from doppler.policy.network import DualPolicy
from doppler.training.case import TrainingCase, pick_case
from doppler.training.demonstrations import Demonstrations
from doppler.training.imitation import ImitationSettings, imitate
from doppler.training.teaching import TEACHERS


def run(
    policy: DualPolicy,
    cases: list[TrainingCase],
    traces: list[Demonstrations],
    updates: int = 1,
    count: int = 4,
    threads: int = 1,
    **schedule: float,
) -> Rows:
    rows = Rows()
    settings = ImitationSettings(updates=updates, log_every=1, **schedule, traces=count)
    imitate(policy, cases, traces, settings, tracker=rows, threads=threads)
    return rows


def test_every_tied_choice_counts_as_right() -> None:
    case, policy = small_case(), blank_policy()
    traces = taught(case.problem, "critical_path", 3)
    tied = traces.tied | (np.random.default_rng(0).random(traces.tied.shape) < 0.3)
    traces = traces._replace(tied=tied)
    heads = policy(case.inputs)
    episodes = case.roller.follow(policy.weights(heads), traces.order, traces.choice)
    with torch.no_grad():
        found = log_probabilities(policy, heads, case.problem, episodes.record)
    probability = found.place.exp().numpy()
    right = (probability * tied).sum(axis=-1)
    best = probability.argmax(axis=-1)

    (row,) = run(policy, [case], [traces], count=3).rows
    assert row[1]["place_loss"] == pytest.approx(-np.log(right).mean(), rel=1e-5)
    assert row[1]["select_loss"] == pytest.approx(-float(found.select.mean()), rel=1e-5)
    accuracy = np.take_along_axis(tied, best[..., None], -1).mean()
    assert row[1]["place_accuracy"] == pytest.approx(accuracy)


def test_nothing_is_learned_where_all_is_right_and_forced() -> None:
    """A chain has one order; where all devices tie, every placement is right."""
    graph = Graph.from_arrays([0, 1, 2], [1, 2, 3], [1.0] * 4, [1.0] * 4)
    case, policy = TrainingCase("chain", Problem(graph, equal_cluster(3)), 1), small_policy()
    traces = taught(case.problem, "critical_path", 2)
    rows = run(policy, [case], [traces._replace(tied=np.ones_like(traces.tied))])
    assert rows.column("place_loss") == pytest.approx([0.0], abs=1e-6)
    assert rows.column("select_loss") == pytest.approx([0.0], abs=1e-6)
    assert rows.column("gradient_norm") == pytest.approx([0.0], abs=1e-5)


@pytest.mark.parametrize("teacher", sorted(TEACHERS))
def test_imitation_comes_close_to_its_teacher(teacher: str) -> None:
    cases = mixed_cases()
    traces = [taught(case.problem, teacher, 4) for case in cases]
    rows = run(blank_policy(), cases, traces, 150, learning_rate=1e-2, final_learning_rate=1e-3)
    for loss in ("select_loss", "place_loss"):
        assert np.mean(rows.column(loss)[-15:]) < 0.5 * np.mean(rows.column(loss)[:6])
    assert np.mean(rows.column("place_accuracy")[-15:]) > 0.75


def test_the_number_of_threads_changes_no_bit() -> None:
    found = []
    for threads in (1, 2):
        policy, cases = small_policy(), mixed_cases(threads)
        traces = [taught(case.problem, "critical_path", 4) for case in cases]
        rows = run(policy, cases, traces, 8, threads=threads)
        found.append((weights_of(policy), rows.rows))
    assert found[0] == found[1]


@pytest.mark.parametrize("teacher", sorted(TEACHERS))
@pytest.mark.parametrize("seed", range(8))
def test_any_problems_leave_finite_weights(teacher: str, seed: int) -> None:
    case, policy = TrainingCase("hard", any_problem(seed), 1), small_policy()
    rows = run(policy, [case], [taught(case.problem, teacher, 2)], 3)
    assert all(np.isfinite(list(row.values())).all() for _, row in rows.rows)
    assert all(bool(torch.isfinite(each).all()) for each in policy.parameters())


@pytest.mark.parametrize(("n_ops", "n_devices"), [(1, 1), (1, 3), (6, 1)])
def test_one_op_or_one_device(n_ops: int, n_devices: int) -> None:
    case, policy = small_case(0, n_ops, n_devices), small_policy()
    rows = run(policy, [case], [taught(case.problem, "critical_path", 2)], 3)
    assert all(np.isfinite(list(row.values())).all() for _, row in rows.rows)
    assert all(bool(torch.isfinite(each).all()) for each in policy.parameters())


def test_every_case_has_its_turn_in_every_round() -> None:
    rounds = [[pick_case(3, 5 * r + n, 5) for n in range(5)] for r in range(40)]
    assert all(sorted(each) == [0, 1, 2, 3, 4] for each in rounds)
    assert len({tuple(each) for each in rounds}) > 20
    assert set(Counter(each[0] for each in rounds)) == {0, 1, 2, 3, 4}
    assert [pick_case(3, n, 5) for n in range(5)] != [pick_case(4, n, 5) for n in range(5)]


def test_traces_that_are_not_of_the_cases() -> None:
    cases = mixed_cases()
    traces = [taught(case.problem, "critical_path", 1) for case in cases]
    with pytest.raises(DopplerError, match="3 training cases need as many traces, not 2"):
        run(small_policy(), cases, traces[:2])
    with pytest.raises(DopplerError, match="graph0@equal2: its traces are of another problem; rec"):
        run(small_policy(), cases, traces[::-1])
