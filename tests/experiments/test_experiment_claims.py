"""Claims follow from the cells: what is planted is found, what is not there is not claimed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sample_cells import ABLATION, EPISODES, QUALITY, Samples

from doppler.experiments.claims import claims, meetings
from doppler.experiments.results import Results, load_results
from doppler.experiments.statistics import Estimate
from doppler.experiments.verdict import VERDICTS, Claim, counted


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> list[Claim]:
    """Return the claims of a folder with every experiment."""
    folder = tmp_path_factory.mktemp("cells")
    Samples(folder).everything()
    return claims(load_results(folder))


def find(made: Results | list[Claim], *words: str) -> Claim:
    found = claims(made) if isinstance(made, Results) else made
    (one,) = (claim for claim in found if all(w in claim.topic + claim.claim for w in words))
    return one


def verdict(value: float, low: float | None, high: float | None, **more: Any) -> str:
    return Claim("t", "c", Estimate(value, low, high, 5), **more).verdict


def test_rule() -> None:
    assert verdict(0.6, 0.55, 0.65, paper=0.527) == "surpassed"
    assert verdict(0.6, 0.50, 0.65, paper=0.527) == "reproduced"
    assert verdict(0.2, 0.1, 0.3, paper=0.527) == "reproduced"
    assert verdict(0.2, -0.1, 0.3, paper=0.527) == "not reproduced"
    assert verdict(0.2, 0.0, 0.3, paper=0.527) == "not reproduced", "none is in the interval"
    assert verdict(0.6, None, None, paper=0.527) == "not reproduced", "one seed proves nothing"
    assert verdict(0.6, 0.55, 0.65, paper="needed") == "reproduced"
    assert verdict(-0.2, -0.3, -0.1) == "not reproduced"
    bar: dict[str, Any] = {"bar": 1.1, "none": None, "higher": False}
    assert verdict(1.0, 0.95, 1.05, **bar) == "surpassed"
    assert verdict(1.0, 0.85, 1.15, **bar) == "reproduced"
    assert verdict(1.2, 1.05, 1.35, **bar) == "not reproduced"
    assert verdict(1.0, None, None, **bar) == "reproduced"
    assert verdict(1.0, 0.95, 1.05, met=False, **bar) == "not reproduced"
    assert Claim("t", "c", counted(1.0, 9), bar=1.0, none=None).verdict == "surpassed"
    assert Claim("t", "c", counted(0.9, 9), bar=1.0, none=None).verdict == "not reproduced"
    assert Claim("t", "c", None).verdict == "not reproduced"


def test_remarks_say_what_the_verdict_does_not() -> None:
    assert Claim("t", "c", None).remark == "not run"
    assert Claim("t", "c", Estimate(0.2, None, None, 1)).remark == "no interval"
    smaller = Claim("t", "c", Estimate(0.2, 0.1, 0.3, 5), paper=0.5)
    assert smaller.remark == "smaller than the paper's"
    assert Claim("t", "c", Estimate(-0.2, -0.3, -0.1, 5)).remark == "the opposite is the case"
    assert Claim("t", "c", Estimate(0.2, -0.1, 0.3, 5)).remark == ""


def test_without_any_cell_nothing_is_reproduced_and_all_claims_are_there() -> None:
    empty = claims(Results())
    assert {claim.verdict for claim in empty} == {"not reproduced"}
    assert {claim.remark for claim in empty} == {"not run"}
    assert len({claim.claim for claim in empty}) > 40


def test_json(everything: list[Claim]) -> None:
    for claim in everything:
        entry = json.loads(json.dumps(claim.to_json(), allow_nan=False))
        assert {"claim", "paper", "ours", "low", "high", "verdict"} <= entry.keys()
        assert entry["verdict"] in VERDICTS
        assert entry["low"] <= entry["ours"] <= entry["high"], claim.claim
        assert entry["paper"] is None or isinstance(entry["paper"], float | str)
    names = [(claim.topic, claim.claim) for claim in everything]
    assert len(set(names)) == len(names)


def test_headlines(everything: list[Claim]) -> None:
    ours = find(everything, "learned baseline", "geometric mean, equal seconds")
    assert ours.estimate.value == pytest.approx(1 - 1 / QUALITY["gdp"], abs=0.01)
    assert ours.estimate.points == 12, "workloads and published graphs, not the large suite"
    largest = find(everything, "Below critical path", "doppler is", "largest", "equal episodes")
    assert largest.paper == 0.782
    mean = find(everything, "Below critical path", "doppler is", "mean", "equal episodes")
    assert largest.estimate.value > mean.estimate.value
    assert mean.estimate.value == pytest.approx(1 - 1 / EPISODES["critical_path"], abs=0.01)
    fifo = find(everything, "doppler-paper is below critical path under the same", "mean")
    expected = 1 - EPISODES["doppler-paper"] / EPISODES["critical_path, first ready"]
    assert fifo.estimate.value == pytest.approx(expected, abs=0.01)
    lost = find(everything, "enumerative", "doppler-paper", "mean")
    assert lost.verdict == "not reproduced"
    assert lost.remark == "the opposite is the case"


def test_a_large_effect_surpasses_the_paper(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    for graph in ("a", "b", "c"):
        samples.main("workloads", graph, "c", {"doppler": 1, "gdp": 3.0, "critical_path": 1.0})
    results = load_results(tmp_path)
    assert find(results, "learned baseline", "largest", "equal seconds").verdict == "surpassed"
    mean = find(results, "Below critical path", "mean, equal seconds")
    assert mean.verdict == "not reproduced", "no effect was planted"


def test_the_best_learned_baseline_is_chosen_case_by_case(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    samples.main("workloads", "a", "c", {"doppler": 1, "gdp": 2.0, "placeto": 1.5})
    samples.main("workloads", "b", "c", {"doppler": 1, "gdp": 1.5, "placeto": 2.0})
    mean = find(load_results(tmp_path), "learned baseline", "mean, equal seconds")
    assert mean.estimate.value == pytest.approx(1 - 1 / 1.5, abs=0.01)


def test_a_lost_cell_is_listed(tmp_path: Path, everything: list[Claim]) -> None:
    assert find(everything, "every cell", "exactly").verdict == "surpassed"
    samples = Samples(tmp_path, noise=0.0)
    samples.main("workloads", "won", "c", {"doppler": 1, "heft": 1.2})
    samples.main("large", "lost", "c", {"doppler": 1, "heft": 0.9, "spmd": 0.95})
    samples.main("large", "tied", "c", {"doppler": 1, "heft": 0.999})
    results = load_results(tmp_path)
    exactly = find(results, "every cell", "exactly")
    assert exactly.verdict == "not reproduced"
    assert exactly.estimate.value == pytest.approx(1 / 3)
    assert "11.11% above heft, lost on c" in exactly.note
    assert find(results, "every cell", "within").estimate.value == pytest.approx(2 / 3)
    lost = [each for each in meetings(results.seconds) if each.excess > 0.01]
    assert {each.case for each in lost} == {"lost on c"}
    assert len(lost) == 5 * 4


@pytest.mark.parametrize("family", ["paper", "ours"])
def test_policies(tmp_path: Path, everything: list[Claim], family: str) -> None:
    name = {"paper": "as published", "ours": "ours"}[family]
    for variant in ("SEL only", "PLC only"):
        claim = find(everything, variant, f", {name}, best")
        assert find(everything, variant, f", {name}, mean").verdict == "reproduced"
        assert claim.verdict == "reproduced"
        assert claim.estimate.value == pytest.approx(1 - 1 / ABLATION[family][variant], abs=0.02)
    same = {family: dict.fromkeys(ABLATION[family], 1.0)}
    samples = Samples(tmp_path)
    for graph in ("a", "b"):
        samples.ablation(graph, "c", same)
    same_too = load_results(tmp_path)
    assert find(same_too, "SEL only", f", {name}, best").verdict == "not reproduced"


def test_message_passing(tmp_path: Path, everything: list[Claim]) -> None:
    assert find(everything, "makespan of once over per step").verdict == "surpassed"
    faster = find(everything, "training time saved by once")
    assert faster.estimate.value == pytest.approx(1 - 5 / 40, abs=0.02)
    Samples(tmp_path).ablation("a", "c", {"messages": {"both": 1.1, "message passing per step": 1}})
    worse = find(load_results(tmp_path), "makespan of once over per step")
    assert worse.verdict == "not reproduced"
    assert worse.estimate.value == pytest.approx(0.1, abs=0.02)


def test_stages(tmp_path: Path, everything: list[Claim]) -> None:
    claim = find(everything, "is below I+II,")
    assert claim.verdict == "reproduced"
    assert claim.estimate.value == pytest.approx(1 - 1 / 1.08, abs=0.02)
    Samples(tmp_path).stages({"I+II": 0.9, "I+II+III": 1.0})
    results = load_results(tmp_path)
    assert find(results, "is below I+II,").remark == "the opposite is the case"
    assert find(results, "is below II,").remark == "not run"


def test_learning_must_show_on_every_workload(tmp_path: Path, everything: list[Claim]) -> None:
    assert find(everything, "gdp: the last eighth").verdict == "reproduced"
    near = find(everything, "gdp is at most 10%", "under priorities")
    same = find(everything, "gdp is at most 10%", "under the same run-time")
    assert same.estimate.value == pytest.approx(1.7 / 1.68 - 1, abs=0.01)
    assert near.estimate.value == pytest.approx(1.7 / 1.65 - 1, abs=0.01)
    assert near.verdict == "surpassed"
    samples = Samples(tmp_path)
    samples.episodes("workloads", "learns", "c")
    samples.episodes("workloads", "does_not", "c", fall=1.0)
    claim = find(load_results(tmp_path), "gdp: the last eighth")
    assert claim.verdict == "not reproduced"
    assert "does_not" in claim.note
    assert "chance on 1 of them" in claim.note


def test_transfer(tmp_path: Path, everything: list[Claim]) -> None:
    assert find(everything, "few-shot on another machine is at most").verdict == "surpassed"
    helped = find(everything, "another machine is below as few")
    assert helped.verdict == "reproduced"
    assert helped.estimate.value == pytest.approx(1 - 0.99 / 1.07, abs=0.02)
    Samples(tmp_path / "slow").transfer(factor=1.1)
    slow = load_results(tmp_path / "slow")
    assert find(slow, "another workload is at most").verdict == "not reproduced"
    assert find(slow, "another workload is below").remark == "the opposite is the case"
    Samples(tmp_path / "many").transfer(few=100)
    many = find(load_results(tmp_path / "many"), "another workload is at most")
    assert many.verdict == "not reproduced"
    assert many.remark == "what else it asks for is not met"
    assert many.note == "With 39.1% of the episodes."


def test_scaling(tmp_path: Path, everything: list[Claim]) -> None:
    assert find(everything, "training step, time").verdict == "surpassed"
    Samples(tmp_path).scaling({"doppler": 2.0})
    results = load_results(tmp_path)
    steep = find(results, "training step, time")
    assert steep.verdict == "not reproduced"
    assert steep.estimate.value == pytest.approx(2, abs=0.05)
    assert find(results, "training step, memory").verdict == "surpassed"


def test_robustness_at_the_least_sure_level(tmp_path: Path, everything: list[Claim]) -> None:
    assert find(everything, "jitter: doppler").verdict == "reproduced"
    Samples(tmp_path).robustness("a", "c", advantage=0.95)
    assert find(load_results(tmp_path), "wrong costs: doppler").remark == "the opposite is the case"


def test_search_and_synchronous(everything: list[Claim]) -> None:
    found = [claim for claim in everything if claim.topic == "The policy helps the search"]
    assert [claim.claim.split("with ")[1] for claim in found] == ["0.1 s", "1 s", "5 s"]
    gains = [claim.estimate.value for claim in found]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] == pytest.approx(1 - 1 / 1.3, abs=0.02)
    saved = find(everything, "time saved on the same placements, all")
    assert saved.estimate.value == pytest.approx(1 - 1 / 1.3, abs=0.02)
    best = find(everything, "time saved each kind")
    assert best.estimate.value == pytest.approx(saved.estimate.value, abs=0.02)


def test_the_best_of_each_kind_is_chosen_apart(tmp_path: Path) -> None:
    runs = [
        {"method": "doppler", "work_conserving_s": 1.0, "synchronous_s": 3.0},
        {"method": "best_synchronous", "work_conserving_s": 1.5, "synchronous_s": 2.0},
    ]
    samples = Samples(tmp_path)
    for graph in "ab":
        given = {"graph": graph, "cluster": "c", "seed": 0}
        samples.store("synchronous", given, {"runs": runs})
    found = find(load_results(tmp_path), "time saved each kind")
    assert found.estimate.value == pytest.approx(0.5)


def test_exact(tmp_path: Path, everything: list[Claim]) -> None:
    all_of_60 = find(everything, "proven optimum")
    assert all_of_60.estimate.value == 1
    assert all_of_60.verdict == "reproduced", "60 graphs do not prove 95%"
    for graphs, missed, expected in ((90, 0, "surpassed"), (40, 4, "not reproduced"), (20, 0, "")):
        folder = tmp_path / str(graphs)
        Samples(folder).exact(graphs, missed)
        claim = find(load_results(folder), "proven optimum")
        assert claim.verdict == (expected or "not reproduced")
        assert ("3.00%" in claim.note) == (missed > 0)
        assert ("Fewer than 30" in claim.note) == (graphs < 30)


def test_measured(tmp_path: Path, everything: list[Claim]) -> None:
    claim = find(everything, "Measured", "enumerative")
    assert claim.estimate.value == pytest.approx(1 - 1 / QUALITY["enumerative"], abs=0.02)
    assert find(everything, "rank correlation").estimate.value == pytest.approx(1)
    Samples(tmp_path).measured({"doppler": 1.0, "heft": 0.9, "critical_path": 1.0})
    results = load_results(tmp_path)
    assert find(results, "best of all others on each").remark == "the opposite is the case"
    assert find(results, "Measured", "critical path").verdict == "not reproduced"
