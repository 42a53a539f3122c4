"""What a campaign begins with, decides and leaves; small graphs on the cores of this machine."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from production import SMALL

from doppler import Cluster, Placement, Problem, workloads
from doppler.cluster import save_cluster
from doppler.errors import EngineError, PromotionError, RegistryError
from doppler.graph import Graph
from doppler.graph.fingerprint import fingerprint
from doppler.policy.checkpoint import load_policy, read_header, save_policy
from doppler.refinement import campaign as module
from doppler.refinement.budget import Spent
from doppler.refinement.campaign import (
    Campaign,
    RefinementResult,
    Start,
)
from doppler.refinement.candidates import same_placement
from doppler.refinement.history import RunHistory
from doppler.refinement.paired_test import compare_paired
from doppler.refinement.promotion import (
    HELD_OUT,
    PartResult,
    Promotion,
    compare_policies,
    errors_spent,
)
from doppler.refinement.settings import ErrorBudget, Guard, PromotionParams, SystemParams
from doppler.registry import CLUSTER, POLICY, Registry, placement_name
from doppler.training.case import new_policy

NOW = "2026-12-01T02:00:00+00:00"
PROMOTION = PromotionParams(pairs=12, looks=1, min_gain=0.0, policy_pairs=0)
WON = compare_paired(lambda: 1.0, lambda: 0.9, pairs=8)
LOST = compare_paired(lambda: 1.0, lambda: 1.1, pairs=8)


def settings(count: int = 2, promotion: PromotionParams = PROMOTION) -> SystemParams:
    return SystemParams(
        graph="small",
        backend="cpu",
        devices=count,
        profile_seconds=0.3,
        budget=0.0,
        timeout=30.0,
        guard=Guard(),
        error_budget=ErrorBudget(),
        promotion=promotion,
    )


@pytest.fixture(scope="module")
def graph() -> Graph:
    return workloads.chainmm(8, 8, 8, 8, 8, tiles=1)


def make(graph: Graph, folder: Path, **options: object) -> Campaign:
    return Campaign(graph, settings(**options), 0, folder)  # type: ignore[arg-type]


def split(graph: Graph, first: int = 0) -> Placement:
    info = {"graph": graph.name, "graph_fingerprint": fingerprint(graph)}
    return Placement(((first + np.arange(graph.n_ops)) % 2).astype(np.int32), None, info)


def held(graph: Graph, folder: Path) -> dict[str, Path]:
    """The files of a version: policy, cluster, the placement of a graph."""
    files = {
        POLICY: save_policy(new_policy(0, sizes=SMALL), folder / POLICY),
        CLUSTER: folder / CLUSTER,
        placement_name(graph): split(graph).save(folder / placement_name(graph)),
    }
    save_cluster(Cluster.uniform(2), files[CLUSTER])
    return files


def refined(start: Start, **changes: object) -> RefinementResult:
    """What a refinement came to: ops and devices swapped, another policy."""
    other = split(start.problem.graph, first=1)
    found = RefinementResult(other, new_policy(1, sizes=SMALL), start.problem, RunHistory(), 0.0)
    return dataclasses.replace(found, **changes)  # type: ignore[arg-type]


def test_it_begins_with_what_a_version_holds(graph: Graph, tmp_path: Path) -> None:
    files = held(graph, tmp_path / "held")
    start = make(graph, tmp_path / "state").start(files)
    assert start.policy == files[POLICY]
    assert start.cluster == files[CLUSTER]
    assert same_placement(start.placement, split(graph))
    # Nothing was measured or searched.
    assert not (tmp_path / "state").exists()


def test_what_a_version_does_not_hold_is_made_once(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = held(graph, tmp_path / "held")
    # Another graph: the devices are known, the placement is not.
    other = workloads.chainmm(8, 8, 8, 8, 8, tiles={"m": 2, "k": 1, "n": 1, "p": 1, "q": 1})
    start = make(other, tmp_path / "other").start(files)
    assert start.placement.info["graph_fingerprint"] == fingerprint(other)
    assert start.cluster == files[CLUSTER]
    # Another number of devices, and a policy alone: they are measured, once.
    for count, found in ((1, files), (2, {POLICY: files[POLICY]})):
        state = tmp_path / f"state-{count}"
        start = make(graph, state, count=count).start(found)
        assert start.problem.n_devices == count
        with monkeypatch.context() as patch:
            patch.setattr(module, "profile", None)
            patch.setattr(module, "place", None)
            again = make(graph, state, count=count).start(found)
        assert again.problem.fingerprint == start.problem.fingerprint
        assert same_placement(again.placement, start.placement)


def test_a_whole_refinement(graph: Graph, tmp_path: Path) -> None:
    files = held(graph, tmp_path / "held")
    campaign = make(graph, tmp_path / "state")
    start = campaign.start(files)
    told: list[int] = []
    found = campaign.refine(start, episodes=6, progress=lambda done, _: told.append(done))
    assert told == [1, 2, 3, 4, 5, 6]
    assert found.metrics["runs"] == 6
    decision = campaign.compare(start, found, (), NOW)
    # As few runs as these explore nothing.
    assert decision.placement == PartResult("placed as the champion places it")
    assert not decision.promote
    assert decision.metrics == {"promoted": 0.0}
    saved = campaign.save(start, found, decision, {"a": 1}, losers=True)
    version = Registry(tmp_path / "registry").add(saved)
    assert set(version.files) == {POLICY, CLUSTER, "placement-chainmm.json"}
    assert read_header(version.path(POLICY))["info"] == {"a": 1}
    assert "fitted to 6 measured runs" in version.path(CLUSTER).read_text()
    again = campaign.start(version.paths())
    assert same_placement(again.placement, found.placement)
    load_policy(again.policy)


def test_placements_are_compared_on_the_devices(graph: Graph, tmp_path: Path) -> None:
    campaign = make(graph, tmp_path)
    start = campaign.start(held(graph, tmp_path))
    decision = campaign.compare(start, refined(start), (), NOW)
    result = decision.placement.result
    assert result is not None
    assert (result.pairs, result.problems) == (12, ("chainmm",))
    assert result.error == pytest.approx(0.05 / 11)
    assert decision.policy.text == "the champion's is kept, none is compared"
    assert {"ratio", "low", "high"} < set(decision.metrics)
    # So many tests before leave too little of the month's error for twelve pairs.
    spent = [Spent(NOW, 0.0) for _ in range(250)]
    late = campaign.compare(start, refined(start), spent, NOW).placement
    assert late.result is None
    assert late.text.startswith("not compared: 12 pairs cannot tell at 0.0002, what the month's")
    # Wrong placements fail on the devices, and so are not promoted.
    wrong = refined(start, placement=Placement(np.full(graph.n_ops, 5)))
    lost = campaign.compare(start, wrong, (), NOW).placement
    assert lost.text.startswith("challenger failed in the warm-up")
    assert not lost.promote


@pytest.mark.parametrize(
    ("placement", "policy", "new"),
    [
        (PartResult("a", WON), PartResult("b", LOST), (True, False)),
        (PartResult("a", LOST), PartResult("b", WON), (False, True)),
        (PartResult("a", WON), PartResult("b", WON), (True, True)),
        (PartResult("a"), PartResult("b", WON), (False, True)),
        (PartResult("a", LOST), PartResult("b", LOST), (False, False)),
    ],
)
def test_what_is_promoted_is_what_won(
    graph: Graph, tmp_path: Path, placement: PartResult, policy: PartResult, new: tuple[bool, bool]
) -> None:
    campaign = make(graph, tmp_path / "state")
    start = campaign.start(held(graph, tmp_path / "held"))
    found, decision = refined(start), Promotion(placement, policy)
    assert decision.promote == (placement.promote or policy.promote)
    kept = campaign.start(campaign.save(start, found, decision, {"stage": "test"}))
    assert same_placement(kept.placement, found.placement if new[0] else start.placement)
    expected = found.policy if new[1] else load_policy(start.policy)
    weights = load_policy(kept.policy).state_dict()
    assert all((weights[name] == each).all() for name, each in expected.state_dict().items())


def test_the_evidence_says_what_was_spent(graph: Graph, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    for number in range(3):
        path = tmp_path / "policy"
        path.write_text(str(number))
        registry.add({POLICY: path})
    registry.promote("v1", {"by": "hand"})
    decision = Promotion(PartResult("a", LOST), PartResult("b", WON))
    registry.promote("v2", decision.evidence)
    registry.reject("v3", Promotion(PartResult("a"), PartResult("b")).evidence)
    spent = errors_spent(registry.history.events)
    assert [each.error for each in spent] == pytest.approx([0.025, 0.025])
    evidence = registry.describe("v2")["decisions"][0]["evidence"]
    assert evidence["text"] == "placement: a; policy: b"
    assert evidence["policy"]["text"] == WON.text


def test_placements_of_other_graphs_are_carried_on(graph: Graph, tmp_path: Path) -> None:
    other = workloads.chainmm(8, 8, 8, 8, 8, tiles=2)
    files = held(graph, tmp_path / "held")
    # Of another graph, but by the name of this one; and this one's by another name.
    name = placement_name(graph)
    files["placement.json"] = files[name].rename(tmp_path / "moved.json")
    files[name] = split(other).save(tmp_path / "other.json")
    campaign = make(graph, tmp_path / "state")
    start = campaign.start(files)
    assert same_placement(start.placement, split(graph))
    decision = Promotion(PartResult("a", WON), PartResult("b"))
    saved = campaign.save(start, refined(start), decision, {}, files)
    assert len(saved) == 4
    assert same_placement(campaign.start(saved).placement, split(graph, first=1))
    assert same_placement(make(other, tmp_path / "x").start(saved).placement, split(other))


def test_two_placements_of_a_graph_are_refused(graph: Graph, tmp_path: Path) -> None:
    files = held(graph, tmp_path)
    files["placement.json"] = split(graph).save(tmp_path / "placement.json")
    with pytest.raises(RegistryError, match=r"placement.json: is of the same graph as placement-"):
        make(graph, tmp_path / "state").start(files)


def test_policies_are_compared_on_problems_that_both_see() -> None:
    draws: list[int] = []

    def draw(number: int) -> Problem:
        draws.append(number)
        sizes = np.random.default_rng(number).integers(1, 9, 5) * 2000
        return Problem(workloads.chainmm(*sizes.tolist(), tiles=2), Cluster.uniform(3))

    compare = partial(compare_policies, draw=draw, pairs=12, error=0.004, samples=0)
    trained, untrained = load_policy("pretrained"), new_policy(0)
    result = compare(trained, untrained)
    assert not result.promote
    numbers, counts = np.unique(draws, return_counts=True)
    assert (counts == 2).all()
    assert numbers[0] >= HELD_OUT
    same = compare(trained, trained)
    assert (same.promote, same.ratio) == (False, 1.0)


def test_a_champion_that_fails_ends_it(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise EngineError("gpu0 is lost")

    campaign = make(graph, tmp_path)
    start = campaign.start(held(graph, tmp_path))
    monkeypatch.setattr(module, "measurement", lambda *_: lost)
    with pytest.raises(PromotionError, match=r"gpu0 is lost\), so nothing is decided"):
        campaign.compare(start, refined(start), (), NOW)


def test_placements_are_the_same_if_they_run_alike(graph: Graph) -> None:
    one, order = split(graph), np.arange(graph.n_ops, dtype=np.int32)
    assert same_placement(one, Placement(one.devices.copy(), None, {"method": "another"}))
    assert not same_placement(one, Placement(1 - one.devices))
    assert not same_placement(one, Placement(one.devices, order))
    assert same_placement(Placement(one.devices, order), Placement(one.devices, order.copy()))
    assert not same_placement(Placement(one.devices, order), Placement(one.devices, order[::-1]))
