"""What a checkout says of itself."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from doppler.registry import describe_origin


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_revision_params_and_data(tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    params.write_text("seed: 0\n")
    (tmp_path / "dvc.lock").write_text(
        "schema: '2.0'\nstages:\n  graphs:\n    outs:\n"
        "    - {path: data/graphs, md5: 12.dir}\n    - {path: models/p, md5: 34}\n"
        "  other: {cmd: x}\n"
    )
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "x")
    revision = git(tmp_path, "rev-parse", "HEAD")
    assert describe_origin(tmp_path, seed=3) == {
        "git": revision,
        "params": hashlib.sha256(b"seed: 0\n").hexdigest(),
        "data": {"data/graphs": "12.dir"},
        "seed": 3,
    }
    params.write_text("seed: 1\n")
    assert describe_origin(tmp_path)["git"] == f"{revision}+"


def test_what_is_not_there_or_damaged_is_none(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    nothing = {"git": None, "params": None, "data": None}
    assert describe_origin(tmp_path) == nothing
    for text in ("stages: [", "[]", "stages: {a: {outs: [{path: data/x}]}}", "\0"):
        (tmp_path / "dvc.lock").write_text(text)
        assert describe_origin(tmp_path) == nothing
