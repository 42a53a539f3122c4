"""One refinement at a time, and who was killed at it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from doppler.errors import DopplerError
from doppler.refinement.lock import Holder, OccupiedError, hold_machine

HOLD = """
import sys, time
from doppler.refinement.lock import hold_machine
with hold_machine(sys.argv[1], 0, "run-of-the-other"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_holder_is_noted_and_forgotten_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "state" / "lock"
    with hold_machine(path, 0, "mine") as before:
        assert before is None
        noted = json.loads((tmp_path / "state" / "lock.json").read_text())
        assert (noted["run"], noted["pid"]) == ("mine", os.getpid())
    assert os.listdir(tmp_path / "state") == ["lock"]


def test_an_error_in_the_block_frees_the_machine(tmp_path: Path) -> None:
    def fail() -> None:
        with hold_machine(tmp_path / "lock", 0, "one"):
            raise RuntimeError("it failed")

    with pytest.raises(RuntimeError, match="it failed"):
        fail()
    with hold_machine(tmp_path / "lock", 0, "two") as before:
        assert before is None


def test_a_second_one_is_told_who_holds_the_machine_and_finds_out_who_was_killed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lock"
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        words = rf"lock: a refinement is under way here, by process {other.pid} since .*waited 0 s"
        with pytest.raises(OccupiedError, match=words), hold_machine(path, 0, "mine"):
            pass
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
    with hold_machine(path, 30, "mine") as killed:
        assert isinstance(killed, Holder)
        assert (killed.run, killed.pid) == ("run-of-the-other", other.pid)
    with hold_machine(path, 0, "mine") as killed:
        assert killed is None


def test_a_note_that_makes_no_sense_is_no_one(tmp_path: Path) -> None:
    (tmp_path / "lock.json").write_text('{"run": 1')
    with hold_machine(tmp_path / "lock", 0, "mine") as killed:
        assert killed is None


def test_a_lock_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(DopplerError, match="lock: cannot be locked"),
        hold_machine(tmp_path / "file" / "lock", 0, "mine"),
    ):
        pass
