"""What all flows share, without any server running: Prefect starts one for the flow alone."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

FLOWS = Path(__file__).parents[2] / "flows"

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path):
    pytest.importorskip("prefect")
    (tmp_path / "params.yaml").write_text((FLOWS.parent / "params.yaml").read_text())

    def run(code: str) -> subprocess.CompletedProcess[str]:
        environment = {k: v for k, v in os.environ.items() if k != "PREFECT_API_URL"} | {
            "PYTHONPATH": os.pathsep.join([str(FLOWS), *sys.path]),
            "PREFECT_HOME": str(tmp_path / "prefect"),
        }
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return run


STAGE = """
import os
from common import flow, main, markdown_table, publish, step
from doppler.errors import GraphError
from doppler.params import Params
from prefect.settings import get_current_settings

tries = {"fault": 0, "input": 0}

@step("meet a {kind}")
def meet(kind: str) -> int:
    tries[kind] += 1
    if kind == "input":
        raise GraphError("layer.json: op 3 feeds itself")
    if tries[kind] == 1:
        raise OSError("the disk was busy")
    return tries[kind]

@flow(name="stage")
def stage(params: Params) -> None:
    assert not get_current_settings().server.analytics_enabled
    publish("stage", "Stage", markdown_table(["tries", "share"], [(meet("fault"), 1 / 3)]))
    try:
        meet("input")
    finally:
        print("tries:", tries, flush=True)

main(stage)
"""


def test_a_fault_is_tried_again_and_a_wrong_input_ends_the_stage(run) -> None:
    done = run(STAGE)
    assert done.returncode == 2, done.stderr
    assert "tries: {'fault': 2, 'input': 1}" in done.stdout
    assert "\nerror: layer.json: op 3 feeds itself\n" in done.stderr
    port = re.search(r"Starting temporary server on http://127\.0\.0\.1:(\d+)", done.stderr)
    assert port, done.stderr
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", int(port[1]))) != 0, "the server still runs"


def test_a_table_in_markdown(run) -> None:
    code = "from common import markdown_table; print(markdown_table(['a', 'b'], [('x', 0.123456)]))"
    assert run(code).stdout == "| a | b |\n| --- | --- |\n| x | 0.1235 |\n"
