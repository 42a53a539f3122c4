"""The pipeline under DVC, from nothing to the report."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

from doppler.cores import cores
from doppler.methods import SEARCHED
from doppler.viewer.units import count_of

pytestmark = pytest.mark.slow

UP_TO_DATE = "Data and pipelines are up to date."


def test_afterwards_nothing_is_left_to_do(reproduced) -> None:
    assert UP_TO_DATE in reproduced.dvc("status")
    assert UP_TO_DATE in reproduced.dvc("repro")
    assert reproduced.run("git", "status", "--porcelain").stdout == ""


@pytest.mark.parametrize(
    ("path", "stages"),
    [
        ("src/doppler/refinement/guard.py", {"refine"}),
        ("src/doppler/training/imitation.py", {"imitate"}),
        ("src/doppler/viewer/page.py", {"refine", "evaluate"}),
        ("src/doppler/cli/place.py", set()),
    ],
)
def test_an_edit_makes_the_stages_stale_that_import_it(reproduced, path, stages) -> None:
    edited = reproduced.path / path
    text = edited.read_text()
    try:
        edited.write_text(f"{text}\n# edited\n")
        assert {*json.loads(reproduced.dvc("status", "--json"))} == stages
    finally:
        edited.write_text(text)


def test_artifacts_are_kept_by_dvc_and_reports_by_git(reproduced) -> None:
    tracked = reproduced.run("git", "ls-files").stdout.split()
    assert "dvc.lock" in tracked
    assert not [name for name in tracked if name.startswith(("data/graphs/", "models/policy"))]
    for name in ("imitate.json", "reinforce.json", "reinforce.csv", "large.json", "index.html"):
        assert f"reports/{name}" in tracked
    for name in ("index.html", "metrics.json", "report.csv", "suite.json", "zero_shot.json"):
        assert f"reports/{name}" in tracked
    assert not [name for name in tracked if name.startswith("reports/timelines/")]
    for name in ("data/traces/small@uniform-2.safetensors", "models/policy.safetensors"):
        assert (reproduced.path / name).is_file()


def test_metrics_and_plots_are_shown(reproduced) -> None:
    shown = json.loads(reproduced.dvc("metrics", "show", "--json"))[""]["data"]
    assert shown["reports/imitate.json"]["data"]["place_loss"] > 0
    assert shown["reports/reinforce.json"]["data"]["incumbents_to_bound"] >= 1
    for suite in ("suite", "large", "operators"):
        assert shown["reports/metrics.json"]["data"][f"{suite}.cases"] == 1
    assert shown["reports/metrics.json"]["data"]["held_out.cases"] == 2
    assert shown["reports/metrics.json"]["data"]["zero_shot.greedy"] >= 1
    reproduced.dvc("plots", "show", "--out", "plots")
    page = (reproduced.path / "plots/index.html").read_text()
    shutil.rmtree(reproduced.path / "plots")
    assert "ratio_to_bound" in page
    assert "place_loss" in page


def test_an_experiment_runs_what_it_changes_and_its_metrics_can_be_compared(reproduced) -> None:
    try:
        said = reproduced.dvc("exp", "run", "-S", "reinforce.updates=2", "--name", "shorter")
        assert "Stage 'imitate' didn't change, skipping" in said
        assert "Running stage 'reinforce'" in said
        curve = (reproduced.path / "reports/reinforce.csv").read_text().splitlines()
        assert [row.split(",")[0] for row in curve] == ["step", "1", "2"]
        changed = json.loads(reproduced.dvc("metrics", "diff", "--json"))
        assert changed["reports/reinforce.json"]["gradient_norm"]["diff"] != 0
        assert "reports/imitate.json" not in changed
        assert "shorter" in reproduced.dvc("exp", "show", "--csv")
    finally:
        reproduced.run("git", "checkout", "-q", ".")
        reproduced.dvc("checkout", "--force")
    assert UP_TO_DATE in reproduced.dvc("status")


def test_artifacts_come_back_from_the_remote(reproduced) -> None:
    reproduced.dvc("push")
    shutil.rmtree(reproduced.path / ".dvc/cache")
    shutil.rmtree(reproduced.path / "data/graphs")
    reproduced.dvc("pull")
    assert (reproduced.path / "data/graphs/small.json").is_file()
    assert UP_TO_DATE in reproduced.dvc("status")
    assert reproduced.run("git", "status", "--porcelain").stdout == ""


def test_a_failing_flow_fails_the_stage_and_names_the_fault(reproduced) -> None:
    values = reproduced.params()
    values["graphs"]["small"]["sizes"]["mm"] = 4
    reproduced.write_params(values)
    try:
        done = reproduced.run(sys.executable, "-m", "dvc", "repro", "graphs", code=None)
    finally:
        reproduced.run("git", "checkout", "-q", "params.yaml")
        reproduced.dvc("checkout", "--force")
    assert done.returncode != 0
    assert "error: " in done.stderr
    assert "'mm'" in done.stderr.split("error: ")[1]
    assert "failed to reproduce 'graphs'" in done.stderr
    assert UP_TO_DATE in reproduced.dvc("status")


def test_the_report_holds_every_method_on_the_suite_and_the_graphs_held_out(reproduced) -> None:
    (case,) = json.loads((reproduced.path / "reports/suite.json").read_text())
    assert (case["graph"], case["cluster"], case["devices"]) == ("small", "p100x4", 4)
    assert set(case["methods"]) == set(SEARCHED)
    assert (case["jitter"], case["trained"]) == (0.1, "graph")
    for name, graph in (("large", "large"), ("operators", "grid")):
        (other,) = json.loads((reproduced.path / f"reports/{name}.json").read_text())
        assert (other["graph"], other["trained"]) == (graph, "none")
    assert case["cores"] == (1 if sys.platform == "linux" else cores())
    for name, cluster in (("zero_shot", "uniform:3"), ("zero_shot_large", "uniform:4")):
        (unseen,) = json.loads((reproduced.path / f"reports/{name}.json").read_text())
        assert (unseen["graph"], unseen["cluster"]) == ("held_out", cluster)
        assert set(unseen["methods"]) == {"greedy", "best_of_2", "hint", "place_at_0_s"}
    page = (reproduced.path / "reports/index.html").read_text()
    assert "critical_path" in page
    assert f"time spent is of {count_of(case['cores'], 'core')}" in page
    assert "ratio_to_bound" in page
