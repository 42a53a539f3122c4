"""The way in and out: help, versions, exit codes, interrupts, closed pipes; in real processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from unprivileged import unprivileged

import doppler
from doppler import methods

COMMANDS = ("convert", "show", "place", "simulate", "compare", "bound")
COMMAND = [sys.executable, "-c", "from doppler.cli import main; main()"]


def test_the_version(cli) -> None:
    assert cli("--version").out.strip() == f"doppler {doppler.__version__}"


def test_help_names_every_command(cli) -> None:
    for arguments in ([], ["--help"], ["-h"]):
        done = cli(*arguments)
        assert done.code == 0
        for command in (*COMMANDS, "registry"):
            assert command in done.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_examples(cli, command) -> None:
    done = cli(command, "--help")
    assert done.code == 0
    assert "Examples:\n" in done.out
    assert f"doppler {command} " in done.out.split("Examples:")[1]
    assert "--json" in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plce"], "No such command 'plce'"),
        (["--wrong"], "No such option: --wrong"),
        (["place"], "Missing argument"),
        (["place", "a", "b", "-c", "uniform:2"], "unexpected extra argument"),
    ],
)
def test_wrong_usage_is_one_line(cli, arguments, message) -> None:
    refusal = cli(*arguments).refusal()
    assert message in refusal
    assert "--help'" in refusal


def test_a_message_stays_on_one_line_whatever_a_name_holds(cli) -> None:
    assert "a b" in cli("show", "a\nb").refusal()


def test_an_interrupt_ends_with_130(cli, layer, monkeypatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(methods, "place", interrupted)
    done = cli("place", layer, "-c", "uniform:2", "-m", "heft")
    assert (done.code, done.out, done.err) == (130, "", "error: interrupted\n")


def test_help_loads_neither_torch_nor_numba() -> None:
    code = """
import sys
from doppler.cli import main
try:
    main(["--help"])
except SystemExit as stop:
    assert not stop.code, stop.code
assert not {"torch", "numba", "numpy", "rich", "networkx"} & {*sys.modules}
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_a_process_prints_json_alone_and_exits_with_its_code(layer: Path) -> None:
    place = [*COMMAND, "place", str(layer), "--cluster", "uniform:2", "-m", "heft"]
    done = subprocess.run([*place, "--json"], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("{")
    wrong = subprocess.run([*place, "-m", "x"], capture_output=True, text=True, timeout=300)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("error: unknown method")


def test_a_closed_pipe_is_no_error(layer: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "show", str(layer)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    assert process.wait(timeout=120) == 1
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_behind_stdout_is_one_line(layer: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            unprivileged(*COMMAND, "show", str(layer), "--json"),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error: stdout: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("arguments", [("show", "missing.json"), ("--nonsense",)])
def test_a_stderr_that_cannot_be_written_changes_no_exit_code(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        command = unprivileged(*COMMAND, *arguments)
        assert subprocess.run(command, stderr=full, timeout=120).returncode == 2


@pytest.mark.slow
def test_an_interrupted_search_ends_soon_and_writes_nothing(layer: Path, tmp_path: Path) -> None:
    graph, out = layer.parent / "big.json", tmp_path / "out" / "placement.json"
    doppler.save_graph(doppler.workloads.ffnn(), graph)
    process = subprocess.Popen(
        [
            *(*COMMAND, "place", str(graph), "-c", "v100x8", "-m", "local_search"),
            *("--budget", "600", "-o", str(out)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(20)
    process.send_signal(signal.SIGINT)
    out_text, err_text = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out_text, err_text) == ("", "error: interrupted\n")
    assert not out.parent.exists() or not list(out.parent.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell that closes a stream")
def test_a_closed_stdout_is_no_error(layer: Path) -> None:
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "show", str(layer)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
