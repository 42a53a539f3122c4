"""Metrics in a CSV file and in W&B."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler.errors import DopplerError
from doppler.tracking import CsvTracker, Trackers, WandbTracker, track


class Recorder:
    def __init__(self) -> None:
        self.calls: list[object] = []

    def log(self, metrics, step) -> None:
        self.calls.append((dict(metrics), step))

    def finish(self) -> None:
        self.calls.append("finish")


def test_a_row_a_step_and_every_digit_of_a_number(tmp_path: Path) -> None:
    path = tmp_path / "reports" / "run.csv"
    with CsvTracker(path) as tracker:
        tracker.log({"loss": 0.1 + 0.2, "ratio": 1}, step=0)
        assert path.read_text() == "step,loss,ratio\n0,0.30000000000000004,1.0\n"
        tracker.log({"loss": 0.25, "ratio": 2}, step=5)
    assert path.read_text().splitlines()[1:] == ["0,0.30000000000000004,1.0", "5,0.25,2.0"]
    assert os.listdir(path.parent) == ["run.csv"]


def test_a_metric_that_comes_late_gets_a_column(tmp_path: Path) -> None:
    tracker = CsvTracker(tmp_path / "run.csv")
    tracker.log({"a": 1.0}, step=1)
    tracker.log({"b": 2.0}, step=2)
    tracker.log({"a": 3.0}, step=3)
    assert tracker.path.read_text() == "step,a,b\n1,1.0,\n2,,2.0\n3,3.0,\n"


@given(
    st.integers(1, 8),
    st.integers(0, 8),
    st.integers(0, 12),
)
def test_a_run_that_was_killed_and_resumed_leaves_the_same_file(
    tmp_path_factory, killed_after: int, resumed_at: int, torn: int
) -> None:
    directory = tmp_path_factory.mktemp("csv")

    def log(tracker: CsvTracker, steps: range) -> None:
        for step in steps:
            tracker.log({"loss": 1 / (step + 1)}, step)

    whole, resumed = directory / "whole.csv", directory / "resumed.csv"
    log(CsvTracker(whole), range(10))
    log(CsvTracker(resumed), range(killed_after))
    with resumed.open("a") as stream:
        stream.write(f"{killed_after},0.123456789"[:torn])
    log(CsvTracker(resumed), range(min(resumed_at, killed_after), 10))
    assert resumed.read_text() == whole.read_text()


def test_a_new_run_replaces_the_old_columns(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    CsvTracker(path).log({"old": 1.0}, step=0)
    CsvTracker(path).log({"new": 2.0}, step=0)
    assert path.read_text() == "step,new\n0,2.0\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name,value\na,1\n", "first column is not step"),
        ("step,a\n1,2,3\n", "differ in length"),
        ("step,a\n1\n", "differ in length"),
        ("step,a\nx,1\n", "invalid literal"),
    ],
)
def test_a_foreign_file_is_not_overwritten(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "run.csv"
    path.write_text(text)
    with pytest.raises(DopplerError, match=rf"run\.csv: is not a metrics file .*{reason}"):
        CsvTracker(path)
    assert path.read_text() == text


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DopplerError, match="cannot be written"):
        CsvTracker(tmp_path / "file" / "run.csv").log({"a": 1.0}, step=0)


def test_trackers_pass_everything_on_and_finish_even_after_an_error() -> None:
    first, second = Recorder(), Recorder()

    def run() -> None:
        with Trackers(first, second) as trackers:  # type: ignore[arg-type]
            trackers.log({"a": 1.0}, 3)
            raise RuntimeError("the run failed")

    with pytest.raises(RuntimeError, match="the run failed"):
        run()
    assert first.calls == second.calls == [({"a": 1.0}, 3), "finish"]


def test_trackers_know_what_was_logged_last() -> None:
    trackers = Trackers(Recorder())  # type: ignore[arg-type]
    assert trackers.last == {}
    trackers.log({"a": 1.0, "b": 2.0}, 1)
    trackers.log({"a": 3.0}, 2)
    assert trackers.last == {"a": 3.0}


def test_without_wandb_the_csv_alone_is_written(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with track("run", tmp_path / "run.csv", {}, tmp_path) as trackers:
        trackers.log({"a": 1.0}, 0)
    assert [type(tracker) for tracker in trackers.trackers] == [CsvTracker]
    assert os.listdir(tmp_path) == ["run.csv"]


def test_a_new_run_leaves_no_row_of_the_one_before(tmp_path: Path) -> None:
    first = CsvTracker(tmp_path / "run.csv")
    for step in (1, 2, 3, 4):
        first.log({"old": float(step)}, step)
    resumed = CsvTracker(first.path)
    resumed.begin(after=2)
    resumed.log({"old": 5.0}, 5)
    assert first.path.read_text() == "step,old\n1,1.0\n2,2.0\n5,5.0\n"
    again = Trackers(CsvTracker(first.path))
    again.begin(after=0)
    again.log({"new": 3.0}, 3)
    assert first.path.read_text() == "step,new\n3,3.0\n"


def records(path: Path) -> Iterator[Any]:
    """Read a run file of W&B: a magic number, then protocol buffers in LevelDB's log format."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
            record.ParseFromString(whole)
            yield record
            whole = b""


def with_wandb(code: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, which is where W&B keeps its settings."""
    pytest.importorskip("wandb")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        env=clean
        | {
            "HOME": str(folder / "home"),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "WANDB_ERROR_REPORTING": "false",
        }
        | variables,
        check=False,
        timeout=120,
    )


OFFLINE = """
import logging
from doppler.tracking import track

logging.basicConfig(level=logging.INFO)

def tracked():
    return track("imitate", "run.csv", {"seed": 3}, group="ab12-cd34", memory="state/id")

def killed(after, steps):
    trackers = tracked()
    trackers.begin(after)
    for step in steps:
        trackers.log({"loss": 1.0 / step}, step)
    return trackers

killed(0, range(1, 4)).finish()
with killed(2, range(3, 6)) as trackers:
    trackers.log_table("suite", ["graph", "heft"], [["layer", 1.25], ["chain", None]])
    files = {"policy.safetensors": "policy.safetensors"}
    trackers.log_model("doppler-imitate", files, {"stage": "imitate"})
    manifest = {"id": "v3", "parent": "v2", "metrics": {"ratio": 0.97}}
    trackers.log_artifact(manifest, files, aliases=["champion"])
    assert trackers.report("Refinement", "# Text", ["loss"]) is None
with killed(0, range(1, 3)):
    pass
"""


@pytest.mark.slow
def test_an_offline_run_keeps_everything_and_is_resumed_under_its_id(tmp_path: Path) -> None:
    (tmp_path / "policy.safetensors").write_bytes(b"weights" * 100)
    done = with_wandb(OFFLINE, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "W&B is offline, so no report is made there" in done.stderr
    assert "W&B fails" not in done.stderr
    assert "will be ignored" not in done.stderr
    assert len((tmp_path / "run.csv").read_text().splitlines()) == 3
    kept = [[*records(path)] for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb")]

    def of_kind(run: list, kind: str) -> list:
        return [getattr(each, kind) for each in run if each.WhichOneof("record_type") == kind]

    runs = [of_kind(run, "run")[0] for run in kept]
    assert {(run.run_group, run.job_type, run.display_name) for run in runs} == {
        ("ab12-cd34", "imitate", "imitate")
    }
    # The first was killed, the second resumed it, the third is another.
    ids = [run.run_id for run in runs]
    assert sorted(map(ids.count, {*ids})) == [1, 2]
    assert (tmp_path / "state" / "id").read_text() == min(ids, key=ids.count)
    (resumed,) = [run for run in kept if of_kind(run, "artifact")]
    assert ids.count(of_kind(resumed, "run")[0].run_id) == 2
    items = [item for row in of_kind(resumed, "history") for item in row.item]
    assert {"loss", "suite"} <= {item.key or item.nested_key[0] for item in items}
    models = [each for each in of_kind(resumed, "artifact") if each.type == "model"]
    stage, version = models
    assert (stage.name, version.name) == ("doppler-imitate", "doppler-policy")
    assert {"registry-v3", "champion"} <= {*version.aliases}
    assert json.loads(version.metadata)["parent"] == "v2"
    (entry,) = version.manifest.contents
    assert (entry.path, entry.size) == ("policy.safetensors", 700)


@pytest.mark.slow
@pytest.mark.parametrize(
    "variable",
    [
        {"WANDB_BASE_URL": "localhost:8080"},
        {"WANDB_MODE": "Online"},
        {"WANDB_API_KEY": "short"},
    ],
    ids=lambda variable: next(iter(variable)),
)
def test_a_wrong_variable_of_wandb_is_one_warning(tmp_path: Path, variable: dict) -> None:
    code = """
from doppler.tracking import track
with track("imitate", "run.csv", {}) as trackers:
    for step in range(3):
        trackers.log({"loss": 1.0}, step)
    trackers.log_model("doppler-imitate", {"run.csv": "run.csv"}, {})
"""
    done = with_wandb(code, tmp_path, **variable)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "run.csv").read_text().splitlines()) == 4
    assert done.stderr.startswith("W&B fails, the run is not tracked there from here on: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_disabled_wandb_takes_everything_and_keeps_nothing(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    policy = tmp_path / "policy.safetensors"
    policy.write_bytes(b"weights")
    with track("run", tmp_path / "run.csv", {}, tmp_path) as trackers:
        trackers.log({"a": 1.0}, 0)
        trackers.log_artifact({"id": "v2", "parent": "v1"}, {policy.name: policy})
        assert trackers.report("Refinement", "# Text") is None
    assert sorted(os.listdir(tmp_path)) == ["policy.safetensors", "run.csv"]


class OnlineRun:
    """Stands for a run that W&B's servers know, of which there are none in a test."""

    offline, disabled, entity, project, id = False, False, "team", "doppler", "abcd1234"

    def __init__(self, broken: str = "") -> None:
        self.broken = broken
        self.used: list[str] = []
        self.logged: list[tuple[object, list[str]]] = []

    def log(self, metrics: dict, step: int | None = None) -> None:
        if "log" in self.broken:
            raise RuntimeError("a bug of W&B")

    def use_artifact(self, name: str) -> None:
        if name.endswith("v7"):
            raise ValueError(f"{name} is not there")
        self.used.append(name)

    def log_artifact(self, artifact: object, aliases: list[str]) -> None:
        if "artifact" in self.broken:
            raise ConnectionError("no way to the server")
        self.logged.append((artifact, aliases))

    def finish(self) -> None:
        if "finish" in self.broken:
            raise TimeoutError("the server does not take the data")


@pytest.mark.parametrize("broken", ["start", "log", "artifact", "finish", "artifact finish"])
def test_whatever_wandb_fails_at_is_one_warning(tmp_path: Path, caplog, broken: str) -> None:
    pytest.importorskip("wandb")
    policy = tmp_path / "policy.safetensors"
    policy.write_bytes(b"weights")

    def start(known: str | None) -> OnlineRun:
        if broken == "start":
            raise ValueError("no setting\nof W&B")
        return OnlineRun(broken)

    tracker = WandbTracker(start)  # type: ignore[arg-type]
    with Trackers(CsvTracker(tmp_path / "run.csv"), tracker) as trackers:
        trackers.begin(after=0)
        for step in (1, 2):
            trackers.log({"loss": 1.0}, step)
        for _ in range(2):
            trackers.log_model("doppler-imitate", {policy.name: policy}, {})
    assert tracker.failed
    (record,) = caplog.records
    assert record.message.startswith("W&B fails, the run is not tracked there from here on: ")
    assert "\n" not in record.message
    assert (tmp_path / "run.csv").read_text() == "step,loss\n1,1.0\n2,1.0\n"


def test_an_online_artifact_has_its_parent_as_an_input(tmp_path: Path, caplog) -> None:
    pytest.importorskip("wandb")
    policy = tmp_path / "policy.safetensors"
    policy.write_bytes(b"weights")
    run = OnlineRun()
    trackers = Trackers(Recorder(), WandbTracker(lambda known: run))  # type: ignore[arg-type, return-value]
    for parent in (None, "v2", "v7"):
        manifest = {"id": "v8", "parent": parent}
        trackers.log_artifact(manifest, {policy.name: policy}, aliases=["champion"])
    assert run.used == ["doppler-policy:registry-v2"]
    assert "W&B does not know the parent of this version: doppler-policy:reg" in caplog.text
    artifact, aliases = run.logged[-1]
    assert aliases == ["registry-v8", "champion"]
    assert artifact.metadata == {"id": "v8", "parent": "v7"}  # type: ignore[attr-defined]


def test_without_the_package_of_reports_the_log_says_so(monkeypatch, caplog) -> None:
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    assert Trackers(WandbTracker(lambda known: OnlineRun())).report("Refinement", "# Text") is None  # type: ignore[arg-type, return-value]
    assert "pip install wandb-workspaces" in caplog.text
    assert Trackers(Recorder()).report("Refinement", "# Text") is None  # type: ignore[arg-type]


def test_an_online_report_has_the_text_and_the_curves(monkeypatch, caplog) -> None:
    reports = pytest.importorskip("wandb_workspaces.reports.v2")
    saved: list = []

    def save(report) -> None:
        saved.append(report)
        report.id = "abc"

    monkeypatch.setattr(reports.Report, "save", save)
    monkeypatch.setattr(reports.Report, "url", property(lambda report: f"https://w/{report.id}"))
    tracker = Trackers(WandbTracker(lambda known: OnlineRun()))  # type: ignore[arg-type, return-value]
    assert tracker.report("Refinement", "# Text\n", ["regret", "makespan"]) == "https://w/abc"
    (report,) = saved
    text, grid = report.blocks
    assert (report.entity, report.project, report.title) == ("team", "doppler", "Refinement")
    assert text._to_model().content == "# Text\n"
    assert [panel._to_model().config.metrics for panel in grid.panels] == [["regret"], ["makespan"]]
    assert [(runs.entity, runs.project) for runs in grid.runsets] == [("team", "doppler")]

    def refuse(report) -> None:
        raise ConnectionError("no way to the server")

    monkeypatch.setattr(reports.Report, "save", refuse)
    assert tracker.report("Refinement", "# Text") is None
    assert "W&B fails, the run is not tracked there from here on: no way to the serv" in caplog.text
