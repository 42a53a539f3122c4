"""The registry under real Git and DVC: pushed, lost, pulled; and linked into DVC's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import Clone  # type: ignore[attr-defined]

from doppler.errors import RegistryError
from doppler.registry import POLICY, Registry

pytest.importorskip("dvc")


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    """An empty Git repository with DVC and a remote in a folder."""
    environment = os.environ | {
        "DVC_NO_ANALYTICS": "1",
        "DVC_SITE_CACHE_DIR": str(tmp_path / "site"),
        "GIT_AUTHOR_NAME": "n",
        "GIT_AUTHOR_EMAIL": "e@example.org",
        "GIT_COMMITTER_NAME": "n",
        "GIT_COMMITTER_EMAIL": "e@example.org",
    }
    made = Clone(tmp_path / "clone", environment)
    made.path.mkdir()
    made.run("git", "init", "-q")
    made.dvc("init", "-q")
    made.dvc("remote", "add", "-q", "--default", "folder", str(tmp_path / "remote"))
    return made


def version(registry: Registry, folder: Path, content: bytes) -> str:
    path = folder / "new"
    path.write_bytes(content)
    return registry.add({POLICY: path}).id


@pytest.mark.slow
def test_push_and_pull_carry_the_registry(clone: Clone, tmp_path: Path) -> None:
    registry = Registry(clone.path / "models" / "registry")
    for content in (b"good" * 1000, b"bad"):
        registry.promote(version(registry, tmp_path, content), {"by": "hand"})
    clone.dvc("add", "-q", "models/registry")
    clone.commit("Add the registry")
    clone.dvc("push", "-q")
    tracked = clone.run("git", "ls-files", "models").stdout.split()
    assert tracked == ["models/.gitignore", "models/registry.dvc"]
    assert clone.run("git", "status", "--porcelain").stdout == ""

    other = Clone(tmp_path / "other", clone.environment)
    subprocess.run(["git", "clone", "-q", str(clone.path), str(other.path)], check=True)
    pulled = Registry(other.path / "models" / "registry")
    assert pulled.champion is None
    other.dvc("pull", "-q")
    assert pulled.problems() == []
    assert pulled.champion.id == "v2"  # type: ignore[attr-defined]
    assert pulled.rollback().path(POLICY).read_bytes() == b"good" * 1000

    # What the first one lost comes back, and so does what it damaged.
    shutil.rmtree(clone.path / "models" / "registry")
    shutil.rmtree(clone.path / ".dvc" / "cache")
    clone.dvc("pull", "-q")
    assert registry.champion.path(POLICY).read_bytes() == b"bad"
    path = registry.champion.path(POLICY)
    path.chmod(0o644)
    path.write_bytes(b"worse")
    with pytest.raises(RegistryError, match=r"was changed.*dvc pull --force"):
        registry.champion.path(POLICY)
    clone.dvc("pull", "-q", "--force")
    assert registry.problems() == []


@pytest.mark.slow
@pytest.mark.parametrize("link", ["symlink", "hardlink"])
def test_decisions_leave_the_cache_of_dvc_as_it_is(clone: Clone, tmp_path: Path, link) -> None:
    clone.dvc("config", "cache.type", link)
    registry = Registry(clone.path / "models" / "registry")
    registry.promote(version(registry, tmp_path, b"good"))
    clone.dvc("add", "-q", "models/registry")
    linked = registry.directory / "history.json"
    assert linked.is_symlink() or linked.stat().st_nlink > 1
    clone.dvc("push", "-q")
    registry.promote(version(registry, tmp_path, b"bad"))
    registry.rollback()
    assert "modified" in clone.dvc("status")
    clone.dvc("add", "-q", "models/registry")
    clone.dvc("push", "-q")
    shutil.rmtree(clone.path / "models" / "registry")
    clone.dvc("checkout", "-q")
    assert registry.problems() == []
    assert registry.champion.path(POLICY).read_bytes() == b"good"
    assert [event.kind for event in registry.history.events] == ["promote", "promote", "rollback"]
    # Every file of the cache still has the content that its name says.
    for cached in (clone.path / ".dvc" / "cache" / "files" / "md5").glob("??/*"):
        name = cached.parent.name + cached.name.removesuffix(".dir")
        assert hashlib.md5(cached.read_bytes()).hexdigest() == name
