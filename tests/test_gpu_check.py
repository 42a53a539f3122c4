"""`scripts/gpu_check.sh` where there is no GPU; with one, it is the test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
SCRIPT = Path(__file__).parents[1] / "scripts" / "gpu_check.sh"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_says_so_in_one_line() -> None:
    done = subprocess.run(
        ["sh", SCRIPT, sys.executable], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 3, done.stderr
    assert done.stdout.count("\n") == 1
    found = json.loads(done.stdout)
    assert (found["gpu"], found["passed"]) == (None, False)
    assert "torch finds no GPU" in found["error"]


def test_an_interpreter_that_lacks_a_dependency_is_told_apart() -> None:
    done = subprocess.run(
        ["sh", SCRIPT, "false"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: false lacks a dependency of Doppler")
