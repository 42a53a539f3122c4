"""Locks between processes and between threads."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from doppler.errors import DopplerError, LockedError
from doppler.locks import hold

HOLD = """
import sys, time
from doppler.locks import hold
with hold(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_lock_is_held_for_the_block_alone(tmp_path: Path) -> None:
    path = tmp_path / "made" / "lock"

    def fail() -> None:
        with hold(path):
            raise RuntimeError("it failed")

    with pytest.raises(RuntimeError, match="it failed"):
        fail()
    words = f"{path}: another process has held this lock for 0 s"
    with hold(path), pytest.raises(LockedError, match=words), hold(path):
        pass


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(LockedError), hold(path, 0.01):
            pass
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
    with hold(path, 30):
        pass


def test_a_lock_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "lock", tmp_path / "folder"):
        with pytest.raises(DopplerError, match=f"{path}: cannot be locked"), hold(path):
            pass
