"""Run a command as somebody for whom the permissions of files hold, whoever runs the tests."""

from __future__ import annotations

import os
import shutil

import pytest


def unprivileged(*command: str) -> list[str]:
    """Extend a command; root keeps its id, since others may not reach its Python, but no powers."""
    if os.geteuid():
        return [*command]
    if not shutil.which("setpriv"):
        pytest.skip("root can write everywhere, and there is no setpriv")
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--", *command]
