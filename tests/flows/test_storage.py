"""The registry under DVC: what a refinement that was killed leaves is neither lost nor undone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FLOWS = Path(__file__).parents[2] / "flows"

pytestmark = pytest.mark.slow

BEGIN = """
import sys
from pathlib import Path
from doppler.registry import Registry
from storage import Storage, commit

storage, registry = Storage(Path("state")), Registry()

def add(content):
    Path("new").write_text(content)
    storage.begin()
    return registry.promote(registry.add({"policy.safetensors": "new"}).id)
"""


@pytest.fixture
def checkout(tmp_path: Path):
    """Run code in an empty checkout with a remote; returns what it printed."""
    pytest.importorskip("dvc")
    path = tmp_path / "checkout"
    path.mkdir()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(FLOWS), *sys.path]),
        "DVC_NO_ANALYTICS": "1",
        "DVC_SITE_CACHE_DIR": str(tmp_path / "site"),
    }
    for name in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{name}_NAME": "n", f"GIT_{name}_EMAIL": "e@example.org"}

    def run(*command: str, code: int = 0) -> str:
        done = subprocess.run(
            command,
            cwd=path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
        return done.stdout if code == 0 else done.stderr

    def checkout(code: str, *, exit_code: int = 0) -> str:
        return run(sys.executable, "-c", BEGIN + code, code=exit_code)

    checkout.path = path  # type: ignore[attr-defined]
    checkout.run = run  # type: ignore[attr-defined]
    run("git", "init", "-q")
    run(sys.executable, "-m", "dvc", "init", "-q")
    run(*(sys.executable, "-m", "dvc", "remote", "add", "-q"), "-d", "far", str(tmp_path / "far"))
    return checkout


CAUGHT = """
from doppler.errors import DopplerError
try:
    storage.pull()
except DopplerError as error:
    print(error)
"""
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


def test_what_is_recorded_comes_back_and_what_is_not_is_kept(checkout) -> None:
    said = checkout("print(storage.pull()); add('one'); storage.record(); print(storage.push())")
    assert said == "nothing is recorded of the registry yet\nthe registry is recorded and pushed\n"
    shutil.rmtree(checkout.path / "models/registry")
    shutil.rmtree(checkout.path / ".dvc/cache")
    assert checkout("print(storage.pull()); print(registry.champion.id, registry.problems())") == (
        "the registry is the one that is recorded\nv1 []\n"
    )
    # Somebody promotes by hand: nothing is undone.
    checkout("Path('new').write_text('two'); registry.add({'policy.safetensors': 'new'})")
    said = checkout("print(storage.pull()); print(len(registry.versions()))")
    assert said == (
        "warning: the registry holds what is not recorded yet, so it stays as it is\n2\n"
    )


def test_a_refinement_that_was_killed_is_recorded_before_anything_is_pulled(checkout) -> None:
    checkout("add('one'); storage.record()")
    # All of the new version is in DVC's cache, but the record is the old one: a pull undoes it.
    record = (checkout.path / "models/registry.dvc").read_bytes()
    checkout(
        f"add('two'); from storage import _dvc; _dvc('add', 'models/registry'); {KILLED}",
        exit_code=-9,
    )
    (checkout.path / "models/registry.dvc").write_bytes(record)
    said = checkout("print(storage.pull()); print(registry.champion.id, registry.problems())")
    assert said == "recorded the registry that an interrupted refinement left\nv2 []\n"
    assert not (checkout.path / "state/unrecorded").exists()
    # A record that was being written, and one that was written.
    for cut in (30, None):
        checkout(f"add('more'); {KILLED}", exit_code=-9)
        if cut is not None:
            (checkout.path / "models/registry.dvc").write_bytes(record[:cut])
        assert "recorded" in checkout("print(storage.pull())")
    assert checkout("print(storage.pull())") == "the registry is the one that is recorded\n"


def test_a_record_that_moved_on_meanwhile_is_for_people_to_decide(checkout) -> None:
    checkout("add('one'); storage.record(); add('two'); storage.record()")
    two = (checkout.path / "models/registry.dvc").read_bytes()
    checkout(f"add('three'); storage.record(); add('four'); {KILLED}", exit_code=-9)
    (checkout.path / "models/registry.dvc").write_bytes(two)
    said = checkout(CAUGHT)
    assert said.startswith("models/registry.dvc: was changed while models/registry held what it")
    assert "'dvc pull --force models/registry.dvc', then remove state/unrecorded" in said


def test_without_a_remote_there_are_warnings(checkout) -> None:
    checkout("add('one'); storage.record()")
    checkout.run(sys.executable, "-m", "dvc", "remote", "remove", "far")
    shutil.rmtree(checkout.path / "models/registry")
    shutil.rmtree(checkout.path / ".dvc/cache")
    said = checkout("print(storage.pull()); print(storage.push())").splitlines()
    assert said[0].startswith("warning: there is no remote to pull the registry from (")
    assert said[1] == "warning: there is no remote to push the registry to"


def test_a_commit_holds_the_record_and_nothing_else(checkout) -> None:
    (checkout.path / "mine").write_text("work in progress")
    checkout.run("git", "add", "mine")
    said = checkout("add('one'); storage.record(); print(commit('Promote')); print(commit('x'))")
    assert said.startswith("committed ")
    assert said.endswith("\nthere is nothing to commit\n")
    committed = checkout.run("git", "show", "--name-only", "--format=%s").split()
    assert committed == ["Promote", "models/.gitignore", "models/registry.dvc"]
    assert checkout.run("git", "diff", "--cached", "--name-only").split()[-1] == "mine"
