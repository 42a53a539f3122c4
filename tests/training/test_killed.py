"""A run that is killed again and again ends like one that was left alone."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors import safe_open

SCRIPT = Path(__file__).with_name("one_run.py")
LEFT = ("policy.safetensors", "metrics.csv", "incumbents.json")


def start(stage: str, directory: Path, threads: int) -> subprocess.Popen[bytes]:
    """Start the run and wait until it trains."""
    directory.mkdir(exist_ok=True)
    command = [sys.executable, str(SCRIPT), stage, str(directory), str(threads)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def finish(process: subprocess.Popen[bytes]) -> None:
    process.communicate(timeout=300)
    assert process.returncode == 0


def updates_done(state: Path) -> int:
    with safe_open(state, framework="pt") as file:
        return int(json.loads(file.metadata()["doppler"])["done"])


def results(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in LEFT if (directory / name).exists()}


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["imitate", "reinforce"])
def test_a_run_killed_at_random_moments_ends_like_one_left_alone(
    tmp_path: Path, stage: str
) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    process = start(stage, alone, threads=1)
    begin = time.monotonic()
    finish(process)
    whole = time.monotonic() - begin

    moments = random.Random(stage)
    state = killed / "state.safetensors"
    resumed_from = list[int]()
    for _ in range(4):
        # Also the number of threads may change from start to start.
        process = start(stage, killed, threads=moments.choice([1, 2]))
        if not resumed_from:
            while not state.exists():
                time.sleep(0.001)
        time.sleep(moments.uniform(0.0, 0.2) * whole)
        process.kill()
        process.wait()
        if not state.exists():  # it was faster than its killer
            break
        resumed_from.append(updates_done(state))
    assert resumed_from, "no run was killed after its first checkpoint"
    assert resumed_from == sorted(resumed_from)
    finish(start(stage, killed, threads=2))

    assert results(killed) == results(alone)
    assert len(results(alone)) == (3 if stage == "reinforce" else 2)
    assert not state.exists()
