"""The experiments under DVC: cells are kept, a killed run goes on, a second does nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CELLS = "data/experiments/miniature/seconds"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def experimenting(clone):
    """The clone with the pipeline of the experiments; one of them is enough here."""
    folder = clone.path / "experiments"
    kept = (folder / "params.yaml").read_text()
    shutil.copy(ROOT / "experiments/dvc.yaml", folder / "dvc.yaml")
    # The graphs of this clone are other ones.
    values = yaml.safe_load(kept.replace("ffnn_small", "small"))
    values["scale"] = "miniature"
    values["miniature"]["seconds"] = {
        "suites": {
            "small": {"budget": 0.3, "cases": [{"graphs": ["small"], "clusters": ["uniform:2"]}]}
        },
        "methods": ["doppler", "critical_path"],
        "seeds": 4,
        "jitter_seeds": 2,
    }
    (folder / "params.yaml").write_text(yaml.safe_dump(values))
    yield clone
    (folder / "params.yaml").write_text(kept)
    for name in ("dvc.yaml", "dvc.lock"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(clone.path / "data/experiments", ignore_errors=True)


def cells(clone) -> dict[str, float]:
    """When each cell was written."""
    return {path.name: path.stat().st_mtime for path in (clone.path / CELLS).glob("*.json")}


def test_a_killed_run_goes_on_and_a_second_does_nothing(experimenting) -> None:
    command = [sys.executable, "-m", "dvc", "repro", "experiments/dvc.yaml:seconds"]
    process = subprocess.Popen(
        command,
        cwd=experimenting.path,
        env=experimenting.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while not cells(experimenting):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = cells(experimenting)

    experimenting.dvc("repro", "experiments/dvc.yaml:seconds")
    after = cells(experimenting)
    assert len(after) == 4
    assert {name: after[name] for name in before} == before
    for path in (experimenting.path / CELLS).glob("*.json"):
        runs = json.loads(path.read_text())["result"]["runs"]
        assert {run["method"] for run in runs} == {"doppler", "critical_path"}

    said = experimenting.dvc("repro", "experiments/dvc.yaml:seconds")
    assert "Data and pipelines are up to date." in said
    assert cells(experimenting) == after


def test_more_seeds_run_only_the_cells_that_are_new(experimenting) -> None:
    path = experimenting.path / "experiments/params.yaml"
    values = yaml.safe_load(path.read_text())
    before = cells(experimenting)
    values["miniature"]["seconds"]["seeds"] = 5
    path.write_text(yaml.safe_dump(values))
    experimenting.dvc("repro", "experiments/dvc.yaml:seconds")
    after = cells(experimenting)
    assert len(after) == 5
    assert {name: after[name] for name in before} == before
