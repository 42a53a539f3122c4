"""What is shipped is what the pipeline made: the packaged policy, and the table of records."""

from __future__ import annotations

import hashlib
import subprocess
from importlib import resources
from pathlib import Path

import pytest
import yaml

from doppler.evaluation.reference import load_references
from doppler.evaluation.report import SUITES, UNSEEN
from doppler.evaluation.results import load_results

ROOT = Path(__file__).parents[2]
REPORTS = [ROOT / "reports" / f"{name}.json" for name in (*SUITES, *UNSEEN)]

pytestmark = pytest.mark.skipif(
    not all(path.exists() for path in REPORTS),
    reason="there are no reports of all suites yet: 'make repro' makes them",
)


def locks() -> list[str]:
    """What DVC recorded: here, or as committed by whoever experiments here."""
    committed = subprocess.run(
        ["git", "show", "HEAD:dvc.lock"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    here = ROOT / "dvc.lock"
    return [committed.stdout] + ([here.read_text()] if here.exists() else [])


def test_the_packaged_policy_is_the_one_that_the_pipeline_trained() -> None:
    packaged = resources.files("doppler.policy").joinpath("pretrained.safetensors").read_bytes()
    trained = {
        out["md5"]
        for text in filter(None, locks())
        for out in yaml.safe_load(text)["stages"]["reinforce"]["outs"]
        if out["path"] == "models/policy.safetensors"
    }
    if not trained:
        pytest.skip("nothing is recorded of a run of the pipeline")
    assert hashlib.md5(packaged).hexdigest() in trained, "run 'make package-policy'"


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_the_table_holds_at_least_what_the_reports_found(path: Path) -> None:
    table = load_references(ROOT / "benchmarks" / "best_known.json")
    for case in load_results(path):
        found = min(result.makespan_s for result in case.methods.values())
        entry = table.get((case.graph, case.cluster))
        assert entry is not None, f"{case.graph} on {case.cluster}: run 'make best-known'"
        assert entry.best_known_s <= found * (1 + 1e-9), (
            f"{case.graph} on {case.cluster}: run 'make best-known'"
        )
