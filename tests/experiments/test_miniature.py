"""Every experiment in miniature, from its parameters to the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from doppler.experiments.names import EXPERIMENTS
from doppler.experiments.report import build_report, write_report
from doppler.experiments.running import run_cell
from doppler.experiments.settings import load_experiments
from doppler.experiments.store import Store

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_experiment_runs_and_the_report_reads_it(tmp_path: Path) -> None:
    pytest.importorskip("ortools")
    values = yaml.safe_load((ROOT / "experiments/params.yaml").read_text())
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump({**values, "scale": "miniature"}))
    params = load_experiments(path, ROOT / "params.yaml")
    for name in EXPERIMENTS:
        store = Store(tmp_path / "cells" / name, "code")
        for cell in params.cells(name):
            # What is given comes from a file, and goes to another process.
            result, seconds = run_cell(name, json.loads(json.dumps(cell.given)))
            store.save(cell, result, seconds)
            assert store.has(cell)
    report = build_report(tmp_path / "cells")
    assert not report.faults
    written = write_report(report, tmp_path / "experiments")
    assert {file.suffix for file in written} == {".json", ".html", ".md"}
    data = json.loads((tmp_path / "experiments.json").read_text())
    assert {cell["experiment"] for cell in data["cells"]} == {*EXPERIMENTS}
    assert {claim["verdict"] for claim in data["claims"]} <= {
        "reproduced",
        "surpassed",
        "not reproduced",
    }
    # All that was run says something of some claim.
    assert [claim["claim"] for claim in data["claims"] if claim["ours"] is not None]
