"""What Stage III costs production: the time of ``next()``, and runs with learning on and off.

Runs of a small FFNN on two devices of the cpu backend, always under the same placement: a few runs
with the refiner, whose process learns beside, by turns with a few while that process is stopped and
the refiner is not asked. ``slowdown`` is the median over the pairs of the ratio of their seconds,
less 1. ``next()`` and ``observe()`` are timed while the process learns.

``measure()`` returns the figures; ``python benchmarks/refiner.py [--json]`` prints them.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from statistics import median
from typing import Any

import numpy as np
from figures import print_figures

from doppler import Cluster, Placement, Problem, place, workloads
from doppler.engine import CpuBackend, Engine
from doppler.refinement.refiner import Refiner
from doppler.refinement.settings import Guard
from doppler.refinement.worker import LearnerProcess

# Runs in a row, and pairs of such rows.
BLOCK, PAIRS = 3, 300
CALLS = 3000
# Nothing but the champion runs, so that all runs have one placement.
ONLY_CHAMPION = Guard(max_regret=1e-9)


def problem() -> Problem:
    """Ops of some milliseconds on two devices."""
    sizes = {"batch": 1024, "inputs": 512, "hidden": 1024, "outputs": 512}
    return Problem(workloads.ffnn(**sizes), Cluster.uniform(2))


def slowdown(found: Problem, champion: Placement) -> dict[str, Any]:
    """Run production by turns with learning and without."""
    ratios, taken = [], []
    with (
        Engine(found.graph, CpuBackend(2)) as engine,
        Refiner(found, champion, guard=ONLY_CHAMPION) as refiner,
    ):

        def learning() -> float:
            begin = time.perf_counter()
            for _ in range(BLOCK):
                refiner.observe(engine.run(refiner.next()).makespan)
            return time.perf_counter() - begin

        def quiet() -> float:
            os.kill(process, signal.SIGSTOP)
            time.sleep(0.02)
            begin = time.perf_counter()
            for _ in range(BLOCK):
                engine.run(champion)
            seconds = time.perf_counter() - begin
            os.kill(process, signal.SIGCONT)
            return seconds

        assert isinstance(refiner._learner, LearnerProcess)
        process, busy = refiner._learner.pid, 0
        while not refiner.rounds:
            learning()
        for pair in range(PAIRS):
            if pair % 2:
                with_it, without = learning(), quiet()
            else:
                without, with_it = quiet(), learning()
            busy += refiner.learning
            ratios.append(with_it / without - 1.0)
            taken.append(without / BLOCK)
    low, high = np.quantile(ratios, [0.25, 0.75])
    return {
        "slowdown": median(ratios),
        "slowdown_quartiles": [float(low), float(high)],
        "run_ms": 1e3 * median(taken),
        "runs_while_learning": busy / PAIRS,
    }


def next_seconds(found: Problem, champion: Placement) -> dict[str, Any]:
    """Time next() and observe() while the learner has work."""
    asked, told, busy = [], [], 0
    gc.collect()
    with Refiner(found, champion, learn_share=1.0) as refiner:
        for number in range(CALLS):
            busy += refiner.learning
            begin = time.perf_counter()
            refiner.next()
            asked.append(time.perf_counter() - begin)
            time.sleep(0.002)
            begin = time.perf_counter()
            refiner.observe(0.01 * (1.0 + 0.01 * (number % 3)))
            told.append(time.perf_counter() - begin)
            time.sleep(0.002)
    p50, p99, most = 1e6 * np.quantile(asked, [0.5, 0.99, 1.0])
    observe_p50, observe_p99 = 1e6 * np.quantile(told, [0.5, 0.99])
    return {
        "next_p99_us": float(p99),
        "next_p50_us": float(p50),
        "next_max_us": float(most),
        "observe_p50_us": float(observe_p50),
        "observe_p99_us": float(observe_p99),
        "next_while_learning": busy / CALLS,
    }


def measure() -> dict[str, Any]:
    """Every figure of this file, about a minute on two cores."""
    found = problem()
    champion = place(found, budget=0.5)
    return {**next_seconds(found, champion), **slowdown(found, champion)}


if __name__ == "__main__":
    print_figures(measure, __doc__)
