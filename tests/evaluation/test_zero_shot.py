"""The policy on its own: greedy, sampled, beside its hint, and never measured by itself."""

from __future__ import annotations

import pytest
from random_problems import weighty_graph

from doppler import Cluster, Graph, Problem, simulate
from doppler.evaluation.zero_shot import zero_shot

pytestmark = pytest.mark.slow


def test_samples_add_to_the_greedy_episode(problem, policy) -> None:
    outcome = zero_shot(problem, policy, samples=4, jitter_seeds=2, graph="g", cluster="c")
    case = outcome.case
    for name, placement in outcome.placements.items():
        assert simulate(problem, placement).makespan == case.methods[name].makespan_s
    assert (case.graph, case.cluster) == ("g", "c")
    assert set(case.methods) == {"greedy", "best_of_4", "hint", "place_at_0_s"}
    origins = {name: str(result.extra["origin"]) for name, result in case.methods.items()}
    assert origins["greedy"].startswith("greedy episode")
    assert "episode" in origins["best_of_4"]
    assert origins["hint"].startswith(("partition", "symmetric map"))
    counts = {name: int(result.extra["evaluations"]) for name, result in case.methods.items()}
    assert counts["greedy"] + 4 < counts["best_of_4"]


def test_without_noise_more_candidates_are_never_worse(problem, policy) -> None:
    case = zero_shot(problem, policy, samples=4, jitter=0.0, jitter_seeds=2).case
    reached = {name: result.makespan_s for name, result in case.methods.items()}
    assert reached["best_of_4"] <= reached["greedy"]
    assert reached["place_at_0_s"] <= min(reached["greedy"], reached["hint"])


def test_no_heuristic_stands_in_for_an_episode_that_does_not_fit(policy) -> None:
    graph = Graph.from_arrays(
        [], [], [1.0] * 6, [0.0] * 6, param_bytes=[5e9, 1e9, 4e9, 2e9, 3e9, 3e9]
    )
    outcome = zero_shot(Problem(graph, Cluster.uniform(3, memory=6e9)), policy, samples=1)
    assert "place_at_0_s" in outcome.placements
    for name in ("greedy", "best_of_1"):
        if name in outcome.case.methods:
            assert "episode" in str(outcome.case.methods[name].extra["origin"])
        else:
            assert "lacks" in outcome.failures[name]
    assert outcome.failures.keys() | outcome.case.methods.keys() >= {"greedy", "best_of_1", "hint"}


def test_what_is_best_known_comes_from_elsewhere_or_from_a_search(policy) -> None:
    problem = Problem(weighty_graph(1, 80), Cluster.uniform(4))
    case = zero_shot(problem, policy, samples=1, best_known=0.5, search_seconds=9).case
    assert case.best_known_s == 0.5
    searched = zero_shot(problem, policy, samples=1, search_seconds=0.5).case
    alone = zero_shot(problem, policy, samples=1).case
    assert searched.best_known_s < alone.best_known_s
