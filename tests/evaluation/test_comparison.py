"""Methods side by side: what is measured, and what a failure of one leaves of the rest."""

from __future__ import annotations

import sys

import pytest

from doppler import Cluster, Problem, simulate, workloads
from doppler.cluster import Device
from doppler.cluster.link import fully_connected
from doppler.cores import cores
from doppler.errors import MemoryLimitError, MissingPackageError, ParamsError, UnknownNameError
from doppler.evaluation.comparison import compare
from doppler.methods import FRESH_SEED, HEURISTICS


def tight(memory: float) -> Problem:
    graph = workloads.ffnn(8, 128, 512, 128, tiles=2)
    devices = tuple(Device(f"gpu{d}", memory=memory) for d in range(2))
    return Problem(graph, Cluster("tight", devices, fully_connected(2)))


def test_every_result_is_that_of_the_placement_beside_it(problem) -> None:
    said: list[str] = []
    outcome = compare(problem, tuple(HEURISTICS), budget=0.02, say=said.append)
    assert said == list(HEURISTICS)
    assert set(outcome.case.methods) == set(outcome.placements) == set(HEURISTICS)
    assert outcome.failures == {}
    assert outcome.case.cores == cores()
    for name, result in outcome.case.methods.items():
        placement = outcome.placements[name]
        assert result.makespan_s == simulate(problem, placement).makespan, name
        fifo = simulate(problem, placement, runtime="fifo").makespan
        assert result.extra["makespan_fifo_s"] == fifo
        assert result.makespan_s >= outcome.case.lower_bound_s * (1 - 1e-12)
        assert result.makespan_std_s > 0
        assert result.expected_fifo_s > 0
    assert outcome.case.judged_by == "expected_makespan_s"
    assert outcome.case.jitter == 0.1
    assert outcome.case.best_known_s == min(r.makespan_s for r in outcome.case.methods.values())


def test_what_is_expected_is_the_mean_over_fresh_seeds(problem) -> None:
    outcome = compare(problem, ["heft"], budget=0, jitter=0.2, jitter_seeds=3)
    result, placement = outcome.case.methods["heft"], outcome.placements["heft"]
    seeds = range(FRESH_SEED, FRESH_SEED + 3)
    for runtime, mean in (
        ("priority", result.expected_makespan_s),
        ("fifo", result.expected_fifo_s),
    ):
        runs = [
            simulate(problem, placement, runtime=runtime, jitter=0.2, seed=seed).makespan
            for seed in seeds
        ]
        assert mean == pytest.approx(sum(runs) / 3)


def test_without_jitter_what_is_expected_is_the_makespan(problem) -> None:
    case = compare(problem, ["heft", "round_robin"], budget=0, jitter=0.0).case
    assert case.judged_by == "makespan_s"
    for result in case.methods.values():
        assert result.expected_makespan_s == result.makespan_s
        assert result.makespan_std_s == 0


def test_for_the_run_time_that_ignores_priorities(problem) -> None:
    outcome = compare(problem, ["heft"], budget=0, runtime="fifo", jitter_seeds=2)
    result = outcome.case.methods["heft"]
    placement = outcome.placements["heft"]
    assert result.makespan_s == simulate(problem, placement, runtime="fifo").makespan
    assert result.expected_makespan_s == result.expected_fifo_s


def test_a_better_makespan_known_from_elsewhere_counts(problem) -> None:
    case = compare(problem, ["round_robin"], budget=0, best_known=1e-3).case
    assert case.best_known_s == 1e-3
    case = compare(problem, ["round_robin"], budget=0, best_known=1e6).case
    assert case.best_known_s == case.methods["round_robin"].makespan_s


def test_names_can_be_those_of_the_suite(problem) -> None:
    case = compare(problem, ["heft"], budget=0, graph="layer", cluster="four").case
    assert (case.graph, case.cluster) == ("layer", "four")


def test_a_method_that_does_not_fit_leaves_the_others() -> None:
    outcome = compare(tight(9e5), ["single_device", "round_robin"], budget=0)
    assert set(outcome.case.methods) == {"round_robin"}
    assert "device 'gpu0' lacks" in outcome.failures["single_device"]


def test_if_none_fits_the_error_says_how_much_is_missing() -> None:
    with pytest.raises(MemoryLimitError, match=r"device 'gpu0' lacks .* MB"):
        compare(tight(100.0), ["single_device", "round_robin"], budget=0)


def test_a_method_whose_package_is_missing_leaves_the_others(problem, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "mtkahypar", None)
    outcome = compare(problem, ["partition", "heft"], budget=0)
    assert set(outcome.case.methods) == {"heft"}
    assert "needs Mt-KaHyPar" in outcome.failures["partition"]
    with pytest.raises(MissingPackageError, match="needs Mt-KaHyPar"):
        compare(problem, ["partition"], budget=0)


def test_an_unknown_method_is_refused_before_any_runs(problem) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'heft'"):
        compare(problem, ["random", "hefft"], budget=60)


def test_a_budget_out_of_range_is_refused(problem) -> None:
    with pytest.raises(ParamsError, match="budget is -1"):
        compare(problem, ["heft"], budget=-1)


@pytest.mark.slow
def test_the_learned_method_takes_a_policy(problem, policy) -> None:
    methods = ["doppler", "critical_path"]
    case = compare(problem, methods, budget=0.3, policy=policy, trained="none").case
    assert case.trained == "none"
    assert case.methods["doppler"].extra["origin"]
    assert case.wins("doppler")
