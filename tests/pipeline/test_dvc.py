"""The pipeline under DVC, from nothing to the report."""

from __future__ import annotations

import shutil
import sys

import pytest
import yaml

pytestmark = pytest.mark.slow

UP_TO_DATE = "Data and pipelines are up to date."


def test_afterwards_nothing_is_left_to_do(reproduced) -> None:
    assert UP_TO_DATE in reproduced.dvc("status")
    assert UP_TO_DATE in reproduced.dvc("repro")
    assert reproduced.run("git", "status", "--porcelain").stdout == ""


def test_every_stage_names_its_sources(reproduced) -> None:
    stages = yaml.safe_load((reproduced.path / "dvc.yaml").read_text())["stages"]
    for name, stage in stages.items():
        assert stage["cmd"] == f"python flows/{name}.py"
        assert f"flows/{name}.py" in stage["deps"]
        for path in stage["deps"]:
            assert (reproduced.path / path).exists(), f"{name} depends on {path}, which is missing"


def test_artifacts_are_kept_by_dvc_and_reports_by_git(reproduced) -> None:
    tracked = reproduced.run("git", "ls-files").stdout.split()
    assert "dvc.lock" in tracked
    assert not [name for name in tracked if name.startswith("data/graphs/")]
    assert (reproduced.path / "data/graphs/small.json").is_file()


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
