"""Where a version comes from: the code, the parameters and the data of a checkout."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

from doppler.documents.yaml_text import read_yaml
from doppler.errors import RegistryError

_TIMEOUT_SECONDS = 10.0


def describe_origin(root: str | os.PathLike[str] = ".", **more: Any) -> dict[str, Any]:
    """Describe a checkout, as far as it tells.

    Parameters
    ----------
    root : path-like
        Folder with ``params.yaml`` and ``dvc.lock``, under Git.
    **more
        Added as they are: ``seed=0``.

    Returns
    -------
    dict
        ``git`` (the revision, with ``+`` if files differ from it), ``params`` (SHA-256 of
        ``params.yaml``), ``data`` (hashes of what ``dvc.lock`` names under ``data/``, by path);
        None where nothing tells.
    """
    folder = Path(root)
    return {
        "git": _revision(folder),
        "params": _sha256(folder / "params.yaml"),
        "data": _data(folder / "dvc.lock"),
        **more,
    }


def _revision(folder: Path) -> str | None:
    revision = _git(folder, "rev-parse", "HEAD")
    if not revision:
        return None
    return f"{revision}+" if _git(folder, "status", "--porcelain", "-uno") else revision


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _data(lock: Path) -> dict[str, str] | None:
    try:
        stages = read_yaml(lock, "lock", RegistryError)["stages"]
        found = {
            str(out["path"]): str(out["md5"])
            for stage in stages.values()
            for out in stage.get("outs", ())
            if str(out["path"]).startswith("data/")
        }
    except (RegistryError, KeyError, TypeError, AttributeError):
        return None
    return found or None
