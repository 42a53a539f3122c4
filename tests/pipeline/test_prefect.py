"""What the Prefect server is told of a stage."""

from __future__ import annotations

import json
import sys
import urllib.request

import pytest

pytestmark = pytest.mark.slow


def ask(server: str, path: str) -> list[dict]:
    """Return all records of a kind that the server holds."""
    request = urllib.request.Request(
        f"{server}/{path}/filter", data=b"{}", headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def test_the_server_shows_the_run_its_parameters_and_one_task_a_graph(server, reproduced) -> None:
    (flow,) = [flow for flow in ask(server, "flows") if flow["name"] == "graphs"]
    run = next(run for run in ask(server, "flow_runs") if run["flow_id"] == flow["id"])
    assert run["state_type"] == "COMPLETED"
    assert run["parameters"]["params"]["traces"]["count"] == 2
    tasks = [task for task in ask(server, "task_runs") if task["flow_run_id"] == run["id"]]
    assert {task["name"] for task in tasks} == {"build small", "build smaller", "build held_out"}
    assert {task["empirical_policy"]["retries"] for task in tasks} == {2}


def test_a_table_is_published(server, reproduced) -> None:
    tables = [x["data"] for x in ask(server, "artifacts") if x["key"] == "graphs"]
    assert "| small | chainmm |" in tables[0]


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
