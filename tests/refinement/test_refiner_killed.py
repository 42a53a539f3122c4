"""Whatever moment a refiner is killed at, the next one goes on from there."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from production import believed, refiner

from doppler import place

SCRIPT = Path(__file__).with_name("one_refinement.py")


def await_end(process: int) -> None:
    """Wait for a process that is not a child of this one."""
    for _ in range(1000):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    raise AssertionError("the learning process outlives production")


@pytest.mark.slow
def test_a_refiner_that_is_killed_goes_on_with_all_its_runs(tmp_path: Path) -> None:
    problem = believed()
    champion = place(problem, "sibling_affinity", budget=0.0)
    moments, done = random.Random(1), 0
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(tmp_path)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        learner = int(process.stdout.readline())
        goal = done + moments.randint(5, 60)
        while done < goal:
            assert int(process.stdout.readline()) > done
            done += 1
        process.kill()
        process.wait()
        await_end(learner)
        with refiner(problem, champion, directory=tmp_path) as found:
            history = list(found.history)
            # The run that was being reported may have been taken in, too.
            assert done <= len(history) <= done + 2
            done = len(history)
            assert [run.run for run in history] == list(range(1, done + 1))
            assert all(run.measured > 0 and not math.isnan(run.regret) for run in history)
            assert found.mean_regret == history[-1].regret
    assert {run.kind for run in history} > {"champion"}
