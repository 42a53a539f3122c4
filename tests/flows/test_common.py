"""What all flows share, without any server running: each starts one for itself alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from unprivileged import unprivileged

FLOWS = Path(__file__).parents[2] / "flows"

pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path: Path):
    pytest.importorskip("prefect")
    (tmp_path / "params.yaml").write_text((FLOWS.parent / "params.yaml").read_text())
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PREFECT_") and "proxy" not in name.lower()
    }

    def start(*arguments: str | Path, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            unprivileged(sys.executable, *map(str, arguments)),
            cwd=tmp_path,
            env=clean
            | {
                "PYTHONPATH": os.pathsep.join([str(FLOWS), *sys.path]),
                "PREFECT_HOME": str(tmp_path / "prefect"),
            }
            | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


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
    print("server:", get_current_settings().api.url.split(":")[2].split("/")[0])
    publish("stage", "Stage", markdown_table(["tries", "share"], [(meet("fault"), 1 / 3)]))
    try:
        meet("input")
    finally:
        print("tries:", tries, flush=True)

main(stage, Params)
"""


def test_a_fault_is_tried_again_and_a_wrong_input_ends_the_stage(start) -> None:
    """Whatever proxies are set: the server is on this machine."""
    dead = {"HTTP_PROXY": "http://127.0.0.1:9", "ALL_PROXY": "socks://127.0.0.1:9"}
    with start("-c", STAGE, **dead, no_proxy="[::1],example.org") as stage:
        out, err = stage.communicate(timeout=300)
    assert stage.returncode == 2, err
    assert "tries: {'fault': 2, 'input': 1}" in out
    assert err.endswith("\nerror: layer.json: op 3 feeds itself\n")
    port = int(out.split("server: ")[1].split()[0])
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0, "the server still runs"


ROUTES = """
import os
import environment
import httpx
client = httpx.Client()
for url in ("http://localhost:1", "http://127.0.0.1:1", "http://127.0.0.7:1", "http://[::1]:1",
            "https://api.wandb.ai", "http://example.org"):
    if client._transport_for_url(httpx.URL(url)) is not client._transport:
        print(url)
print(sorted(name for name in os.environ if name.lower().endswith("_proxy")))
"""


def test_proxies_are_kept_for_what_is_elsewhere(start) -> None:
    proxies = {"https_proxy": "socks5h://127.0.0.1:9", "HTTP_PROXY": "127.0.0.1:9"}
    local = "http://127.0.0.7:4200/api"
    with start("-c", ROUTES, **proxies, NO_PROXY="example.org", PREFECT_API_URL=local) as routes:
        out, err = routes.communicate(timeout=60)
    assert (out, err) == (
        "https://api.wandb.ai\n['HTTP_PROXY', 'NO_PROXY', 'https_proxy', 'no_proxy']\n",
        "",
    )


def test_what_keeps_prefect_from_working_is_one_line(start, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(0o555)
    off = {"PREFECT_API_URL": "http://127.0.0.1:1/api"}
    cases = [
        *(("graphs", off), ("nightly", off), ("serve", off)),
        ("graphs", {"PREFECT_HOME": str(closed / "home")}),
        ("graphs", {"PREFECT_LOGGING_LEVEL": "loud"}),
        ("graphs", {"PREFECT_API_URL": "http://prefect.example/api", "ALL_PROXY": "socks://a"}),
        ("graphs", {"PREFECT_API_DATABASE_CONNECTION_URL": "sqlite+aiosqlite:////proc/x.db"}),
    ]
    started = [start(FLOWS / f"{flow}.py", **variables) for flow, variables in cases]
    ended = [process.communicate(timeout=300) for process in started]
    no_server = "no Prefect server answers (", "); start it, or unset PREFECT_API_URL"
    expected = [
        *[("http://127.0.0.1:1/api: ", *no_server)] * 3,
        (f"{closed}/home: Prefect's server cannot keep its data there (Permission denied); ",),
        ("Prefect does not load with its settings: ", "level", "'WARNING'"),
        ("http://prefect.example/api: ", *no_server, "socks"),
        ("the Prefect server did not start; .cache/prefect/server.log tells why",),
    ]
    for process, (out, err), parts in zip(started, ended, expected, strict=True):
        assert (process.returncode, out, err.count("\n")) == (2, "", 1), err
        assert err.startswith(f"error: {parts[0]}")
        assert all(part in err for part in parts), err
