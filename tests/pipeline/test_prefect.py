"""What the Prefect server is told of a stage."""

from __future__ import annotations

import json
import sys
import urllib.request

import pytest
import yaml

pytestmark = pytest.mark.slow


def ask(server: str, path: str) -> list[dict]:
    """Return all records of a kind that the server holds."""
    request = urllib.request.Request(
        f"{server}/{path}/filter", data=b"{}", headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def completed_run(server: str, name: str) -> dict:
    """Return a run of a flow that ended well."""
    (flow,) = [flow for flow in ask(server, "flows") if flow["name"] == name]
    return next(
        run
        for run in ask(server, "flow_runs")
        if run["flow_id"] == flow["id"] and run["state_type"] == "COMPLETED"
    )


def test_the_server_shows_every_stage_and_its_parameters(server, reproduced) -> None:
    for name in yaml.safe_load((reproduced.path / "dvc.yaml").read_text())["stages"]:
        assert name in completed_run(server, name)["parameters"]["params"]


def test_the_server_shows_one_task_a_graph_of_the_training_with_its_retries(
    server, reproduced
) -> None:
    run = completed_run(server, "graphs")
    tasks = [task for task in ask(server, "task_runs") if task["flow_run_id"] == run["id"]]
    assert {task["name"] for task in tasks} == {"build small", "build smaller"}
    assert {task["empirical_policy"]["retries"] for task in tasks} == {2}


def test_the_server_shows_one_task_a_case_of_the_evaluation(server, reproduced) -> None:
    run = completed_run(server, "evaluate")
    tasks = [task for task in ask(server, "task_runs") if task["flow_run_id"] == run["id"]]
    assert {(task["name"], task["state_type"]) for task in tasks} == {
        ("compare on small@p100x4", "COMPLETED"),
        ("compare on large@v100_2x4", "COMPLETED"),
        ("compare on grid@uniform:2", "COMPLETED"),
        ("zero-shot on held_out@uniform:3", "COMPLETED"),
        ("zero-shot on held_out@uniform:4", "COMPLETED"),
    }


def test_a_table_is_published(server, reproduced) -> None:
    tables = {artifact["key"]: artifact["data"] for artifact in ask(server, "artifacts")}
    assert "| small | chainmm |" in tables["graphs"]
    assert "| small@uniform:2 |" in tables["traces"]
    assert "| place_loss |" in tables["imitate"]
    assert "| smaller@uniform:2 |" in tables["reinforce"]
    assert "| small | p100x4 |" in tables["suite"]
    assert "| held_out | uniform:3 |" in tables["zero-shot"]


def test_wrong_parameters_stop_a_stage_before_it_reaches_the_server(clone) -> None:
    values = clone.params()
    values["sede"] = 1
    clone.write_params(values)
    try:
        elsewhere = clone.environment | {"PREFECT_API_URL": "http://127.0.0.1:1/api"}
        done = type(clone)(clone.path, elsewhere).run(sys.executable, "flows/graphs.py", code=2)
    finally:
        clone.run("git", "checkout", "-q", "params.yaml")
    assert done.stdout == ""
    assert done.stderr.startswith("error: params.yaml: unknown parameter 'sede': did you mean")
    assert done.stderr.count("\n") == 1
