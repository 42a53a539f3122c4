"""The policy on its own: greedy, sampled, and never measured by itself."""

from __future__ import annotations

import pytest

from doppler import simulate
from doppler.evaluation.zero_shot import zero_shot

pytestmark = pytest.mark.slow


def test_samples_add_to_the_greedy_episode(problem, policy) -> None:
    outcome = zero_shot(problem, policy, samples=4, jitter_seeds=2, graph="g", cluster="c")
    case = outcome.case
    for name, placement in outcome.placements.items():
        assert simulate(problem, placement).makespan == case.methods[name].makespan_s
    assert (case.graph, case.cluster) == ("g", "c")
    assert set(case.methods) == {"greedy", "best_of_4"}
    greedy, sampled = case.methods["greedy"], case.methods["best_of_4"]
    assert greedy.extra["evaluations"] == 1
    assert sampled.extra["evaluations"] == 5
    assert sampled.makespan_s <= greedy.makespan_s


def test_what_is_best_known_comes_from_elsewhere_or_from_a_search(problem, policy) -> None:
    case = zero_shot(problem, policy, samples=1, best_known=0.5, search_seconds=9).case
    assert case.best_known_s == 0.5
    searched = zero_shot(problem, policy, samples=1, search_seconds=0.5).case
    alone = zero_shot(problem, policy, samples=1).case
    assert searched.best_known_s < alone.best_known_s
