"""The registry under DVC: brought from the remote, recorded, sent there."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from doppler.errors import DopplerError, StorageError
from doppler.files import write_atomic
from doppler.registry import DIRECTORY

RECORD = Path(f"{DIRECTORY}.dvc")


class Storage:
    """What DVC has recorded of the registry, and whether the registry is ahead of it.

    A note in ``state`` says that the registry is being changed. If the process is killed, the next
    one finds it and records the registry first, since a pull would undo what was not recorded.

    Parameters
    ----------
    state : pathlib.Path
        Folder for the note.
    """

    def __init__(self, state: Path) -> None:
        self._note = state / "unrecorded"

    def pull(self) -> str:
        """Bring the registry that is recorded; say what happened.

        Raises
        ------
        StorageError
            If there is a remote, but it does not answer.
        DopplerError
            If the record was changed while the registry was ahead of it.
        """
        if self._note.exists() and Path(DIRECTORY).exists():
            self._settle()
            return "recorded the registry that an interrupted refinement left"
        self._note.unlink(missing_ok=True)
        if not RECORD.exists():
            return "nothing is recorded of the registry yet"
        done = _dvc("pull", str(RECORD))
        if done.returncode == 0:
            return "the registry is the one that is recorded"
        if "unsaved files" in done.stderr:
            return "warning: the registry holds what is not recorded yet, so it stays as it is"
        if not has_remote():
            return f"warning: there is no remote to pull the registry from ({_reason(done)})"
        raise StorageError(f"{RECORD}: cannot be pulled ({_reason(done)})")

    def begin(self) -> None:
        """Note that the registry is going to be changed."""
        write_atomic(self._note, _digest(RECORD))

    def record(self) -> None:
        """Record the registry as it is.

        Raises
        ------
        StorageError
            If DVC cannot.
        """
        if RECORD.exists() and not _is_record(RECORD):
            RECORD.unlink()  # A writer was killed.
        done = _dvc("add", DIRECTORY)
        if done.returncode != 0:
            raise StorageError(f"{DIRECTORY}: cannot be recorded ({_reason(done)})")
        self._note.unlink(missing_ok=True)

    def push(self) -> str:
        """Send what is recorded to the remote, if there is one; say what happened.

        Raises
        ------
        StorageError
            If the remote does not answer.
        """
        if not has_remote():
            return "warning: there is no remote to push the registry to"
        done = _dvc("push", str(RECORD))
        if done.returncode != 0:
            raise StorageError(f"{RECORD}: cannot be pushed ({_reason(done)})")
        return "the registry is recorded and pushed"

    def _settle(self) -> None:
        """Record what an interrupted refinement left, unless the record has moved on."""
        before = self._note.read_text(encoding="utf-8")
        whole = not RECORD.exists() or _is_record(RECORD)
        if whole and _digest(RECORD) != before and _dvc("status", "-q", str(RECORD)).returncode:
            raise DopplerError(
                f"{RECORD}: was changed while {DIRECTORY} held what it does not name; keep one by "
                f"'dvc add {DIRECTORY}' or 'dvc pull --force {RECORD}', then remove {self._note}"
            )
        self.record()


def has_remote() -> bool:
    """Whether DVC knows a remote to use."""
    return bool(_dvc("config", "core.remote").stdout.strip())


def commit(message: str) -> str:
    """Commit what is recorded of the registry to Git, and nothing else; say what happened.

    Raises
    ------
    StorageError
        If Git cannot.
    """
    names = [str(RECORD), str(RECORD.parent / ".gitignore")]
    _git("add", "--", *names)
    if not _git("status", "--porcelain", "--", *names):
        return "there is nothing to commit"
    _git("commit", "--quiet", "--message", message, "--", *names)
    return f"committed {_git('rev-parse', '--short', 'HEAD')}"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise StorageError(f"git {arguments[0]} failed ({_reason(done)})")
    return done.stdout.strip()


def _dvc(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], capture_output=True, text=True, check=False
    )


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR:", "error:", "fatal:"))]
    return (errors or lines or [f"exit code {done.returncode}"])[0].removeprefix("ERROR: ")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def _is_record(path: Path) -> bool:
    try:
        document: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        return bool(document["outs"][0]["md5"]) and bool(document["outs"][0]["path"])
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, IndexError):
        return False
