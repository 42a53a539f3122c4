"""``-`` and pipes: every input is read once, and stdout holds the result alone."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from doppler import load_graph


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], str]:
    """Make a file what stdin holds."""

    def give(path: Path) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
        return "-"

    return give


@pytest.fixture
def piped() -> Iterator[Callable[[Path], str]]:
    """Name a file as the shell does for ``<(cat FILE)``."""
    readers, threads = [], []

    def pipe(path: Path) -> str:
        reader, writer = os.pipe()

        def fill() -> None:
            with os.fdopen(writer, "wb") as stream:
                stream.write(path.read_bytes())

        readers.append(reader)
        threads.append(threading.Thread(target=fill))
        threads[-1].start()
        return f"/dev/fd/{reader}"

    yield pipe
    for reader, thread in zip(readers, threads, strict=True):
        os.close(reader)
        thread.join()


@pytest.fixture(params=["given", "piped"])
def once(request: pytest.FixtureRequest) -> Callable[[Path], str]:
    """Both ways of giving what can be read once."""
    way: Callable[[Path], str] = request.getfixturevalue(request.param)
    return way


def test_show_tells_what_it_is_of_what_it_reads_once(cli, layer, placement, once, tmp_path) -> None:
    assert cli("show", once(layer), "--json").json()["kind"] == "graph"
    assert cli("show", once(placement), "--json").json()["kind"] == "placement"
    run = tmp_path / "run.json"
    cli("simulate", layer, placement, "--cluster", "uniform:2", "--trace", run, "--json").json()
    assert cli("show", once(run), "--json").json()["kind"] == "trace"
    with_graph = cli("show", placement, "--graph", once(layer), "--cluster", "uniform:2", "--json")
    assert with_graph.json()["makespan_s"] > 0
    both = cli("show", run, "--beside", once(run), "--json").json()
    assert len(both["beside"]) == 1


def test_commands_read_what_can_be_read_once(cli, layer, placement, once, tmp_path) -> None:
    cluster = tmp_path / "two.yaml"
    cluster.write_text(
        "devices: [{name: a, count: 2, flops: 1e12}]\nlinks: [{between: [a, a], bandwidth: 1e9}]\n"
    )
    heft = ("--method", "heft", "--json")
    assert cli("place", once(layer), "--cluster", "uniform:2", *heft).json()["ops"] == 4
    assert cli("place", layer, "--cluster", once(cluster), *heft).json()["devices"] == 2
    simulated = cli("simulate", layer, once(placement), "--cluster", "uniform:2", "--json").json()
    assert simulated["ops"] == 4
    out = tmp_path / "out.json"
    assert cli("convert", once(layer), out, "--json").json()["ops"] == 4


def test_a_policy_from_a_pipe(cli, layer, policy, piped) -> None:
    done = cli("place", layer, "-c", "uniform:2", "--policy", piped(policy), "-b", "0", "--json")
    assert done.json()["ops"] == 4


def test_stdin_cannot_be_two_things(cli, layer, given) -> None:
    refusal = cli("simulate", given(layer), "-", "--cluster", "uniform:2").refusal()
    assert "/dev/stdin: is empty" in refusal
    assert "already read" in refusal


def test_stdout_holds_the_result_alone(cli, layer, placement, tmp_path) -> None:
    text = cli("convert", layer, "-").out
    (tmp_path / "again.json").write_text(text)
    assert load_graph(tmp_path / "again.json").n_ops == 4
    assert cli("convert", layer, "-", "--to", "text").out == layer.read_text()
    two = ("--cluster", "uniform:2")
    placed = cli("place", layer, *two, "--method", "heft", "-o", "-")
    assert json.loads(placed.out)["format"] == "doppler-placement"
    trace = cli("simulate", layer, placement, *two, "--trace", "-")
    assert json.loads(trace.out)["otherData"]["format"] == "doppler-trace"
    assert cli("show", layer, "-o", "-").out.startswith("<!")


def test_json_and_the_result_do_not_share_stdout(cli, layer) -> None:
    refusal = cli("convert", layer, "-", "--json").refusal()
    assert "--json: stdout is for the result" in refusal


def test_a_pipe_is_no_file_of_a_version(cli, policy, placement, piped, tmp_path) -> None:
    registry = tmp_path / "registry"
    pipe = piped(placement)
    refusal = cli("registry", "add", "-d", registry, "--policy", policy, "--placement", pipe)
    assert "a pipe is read once" in refusal.refusal()
    assert not (registry / "versions").exists()


def test_commands_make_a_pipeline(layer, tmp_path) -> None:
    doppler = f"{sys.executable} -c 'from doppler.cli import main; main()'"
    script = (
        f"{doppler} convert {layer} - | {doppler} place - -c uniform:2 -m heft -o - "
        f"| {doppler} simulate <({doppler} convert {layer} -) - -c uniform:2 --json"
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["ops"] == 4
    assert done.stderr == ""
