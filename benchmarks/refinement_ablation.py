"""What calibration, search and the policy gradient each contribute to Stage III.

A feed-forward network on four devices runs on a simulated system, with jitter, from the placement
that is best on the believed one. Four systems are not as believed:

- ``factors``: one device takes 1.6 times as long, one link 4 times; the calibration can say so;
- ``contention``: an op takes up to 1.5 times as long, the busier the device that shares its memory;
- ``throttling``: one device takes 1.8 times as long for the second half of the ops of a run;
- ``drift``: as ``factors``, but it comes gradually over all runs.

The last three are outside of what the calibration can express. The seed draws which devices and
links. Every variant has the same runs and the same guard:

- ``none``: the policy as it is draws episodes for the believed system;
- ``calibration``: it draws them for the calibrated one;
- ``search``: annealing on the believed system proposes, too;
- ``policy gradient``: the policy learns from the runs, and draws for the believed system;
- ``all`` of it.

``saved`` is by how much the champion at the end is faster than the stale placement, without jitter;
``known`` is what a search saves that knows the system. Intervals are Student's t over the seeds,
95%.
``python benchmarks/adaptation.py --ablation`` runs it, too; here
``python benchmarks/refinement_ablation.py [--json FILE] [--seeds N] [--runs N]``; about a minute a
seed and system.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from doppler import Cluster, Placement, Problem, place, simulate, workloads
from doppler.refinement.calibration import Factors
from doppler.refinement.events import CALIBRATION, PARTS, POLICY_GRADIENT, SEARCH
from doppler.refinement.refiner import Refiner

VARIANTS = {
    "none": (),
    "calibration": (CALIBRATION,),
    "search": (SEARCH,),
    "policy gradient": (POLICY_GRADIENT,),
    "all": PARTS,
}
SLOWER_DEVICE, SLOWER_LINK, CONTENTION, THROTTLED = 1.6, 4.0, 0.5, 1.8
JITTER = 0.03
RUNS, SEEDS = 250, 4
BUDGET = 0.5

# The problem that a placement meets in a run, from 0 to 1 of all runs.
System = Callable[[Placement, float], Problem]


def believed() -> Problem:
    """Four equal devices, links that matter."""
    sizes = {"batch": 2048, "inputs": 1024, "hidden": 2048, "outputs": 1024}
    return Problem(workloads.ffnn(**sizes), Cluster.load("p100x4"))


def factors(problem: Problem, rng: np.random.Generator) -> System:
    """One device and one link are slower."""
    true = _slower(problem, rng, 1.0)
    return lambda placement, progress: true


def drift(problem: Problem, rng: np.random.Generator) -> System:
    """They become so in twenty steps."""
    draws = rng.integers(1 << 30)
    steps = [_slower(problem, np.random.default_rng(draws), step / 20) for step in range(21)]
    return lambda placement, progress: steps[round(20 * progress)]


def _slower(problem: Problem, rng: np.random.Generator, share: float) -> Problem:
    devices, links = np.ones(problem.n_devices), np.ones(len(problem.cluster.links))
    devices[rng.integers(devices.size)] = SLOWER_DEVICE**share
    links[rng.integers(links.size)] = SLOWER_LINK**share
    return Factors(devices, links).problem(problem)


def contention(problem: Problem, rng: np.random.Generator) -> System:
    """Pairs of devices share a memory: the busier the one, the slower the other."""
    pairs = rng.permutation(problem.n_devices).reshape(-1, 2)
    partner = np.empty(problem.n_devices, int)
    partner[pairs[:, 0]], partner[pairs[:, 1]] = pairs[:, 1], pairs[:, 0]
    links = np.ones(len(problem.cluster.links))
    met: dict[bytes, Problem] = {}

    def system(placement: Placement, progress: float) -> Problem:
        key = placement.devices.tobytes()
        if key not in met:
            ops = np.arange(problem.n_ops)
            seconds = problem.arrays.compute[ops, placement.devices]
            busy = np.bincount(placement.devices, seconds, minlength=problem.n_devices)
            share = busy[partner] / max(simulate(problem, placement).makespan, busy.max())
            slower = np.asarray(1.0 + CONTENTION * share, np.float64)
            met[key] = Factors(slower, links).problem(problem)
        return met[key]

    return system


def throttling(problem: Problem, rng: np.random.Generator) -> System:
    """One device cannot keep its speed to the end of a run."""
    true = Problem(problem.graph, problem.cluster)
    compute = true.arrays.compute.copy()
    begin = problem.t_level(problem.mean_compute)
    compute[begin > np.median(begin), rng.integers(problem.n_devices)] *= THROTTLED
    compute.setflags(write=False)
    true.arrays = true.arrays._replace(compute=compute)
    return lambda placement, progress: true


SYSTEMS = {
    "factors": factors,
    "contention": contention,
    "throttling": throttling,
    "drift": drift,
}


def refine(
    problem: Problem, system: System, stale: Placement, variant: str, seed: int, runs: int
) -> dict[str, Any]:
    """Let one variant run."""
    with Refiner(problem, stale, seed=seed, background=False, parts=VARIANTS[variant]) as refiner:
        for run in range(runs):
            placement = refiner.next()
            met = system(placement, run / runs)
            refiner.observe(
                simulate(met, placement, jitter=JITTER, seed=1000 * seed + run).makespan
            )
        history = list(refiner.history)
        promoted = [refiner._state.known[each].kind for each in refiner._state.champions[1:]]
        champion = refiner.champion
        return {
            "variant": variant,
            "saved": 1.0 - seconds(system, champion) / seconds(system, stale),
            "mean_regret": refiner.mean_regret,
            "episodes": sum(each.kind == "episode" for each in history),
            "candidates": sum(each.kind == "candidate" for each in history),
            "promoted": promoted,
        }


def seconds(system: System, placement: Placement) -> float:
    """Simulate what a placement takes in the end, without jitter."""
    return simulate(system(placement, 1.0), placement).makespan


def known(system: System, stale: Placement, seed: int) -> float:
    """Return what a search saves that knows the system as the stale placement meets it."""
    found = [place(system(stale, 1.0), budget=2 * BUDGET, seed=seed + n) for n in range(2)]
    return 1.0 - min(seconds(system, each) for each in found) / seconds(system, stale)


def measure(seeds: int, runs: int = RUNS, path: Path | None = None) -> list[dict[str, Any]]:
    """Run every variant on every system, for every seed."""
    rows: list[dict[str, Any]] = []
    for seed in range(seeds):
        for name, make in SYSTEMS.items():
            problem, begin = believed(), time.perf_counter()
            system = make(problem, np.random.default_rng([seed, 1]))
            stale = place(problem, budget=BUDGET, seed=seed)
            best = {"variant": "known", "saved": known(system, stale, seed)}
            found = [refine(problem, system, stale, each, seed, runs) for each in VARIANTS]
            rows += [{"seed": seed, "system": name, **each} for each in [best, *found]]
            print(f"seed {seed} {name}: {time.perf_counter() - begin:.0f} s", file=sys.stderr)
            if path is not None:
                path.write_text(json.dumps(rows))
    return rows


def interval(values: list[float]) -> str:
    """Mean and half of its 95% interval, in percent."""
    array = 100.0 * np.array(values)
    if array.size < 2:
        return f"{array.mean():5.1f}"
    half = float(stdtrit(array.size - 1, 0.975)) * array.std(ddof=1) / np.sqrt(array.size)
    return f"{array.mean():5.1f} ± {half:4.1f}"


def table(rows: list[dict[str, Any]]) -> str:
    """Percent saved, by variant and system."""
    lines = [f"{'saved, %':16}" + "".join(f"{name:>16}" for name in SYSTEMS)]
    for variant in ("known", *VARIANTS):
        cells = [
            interval([r["saved"] for r in rows if (r["variant"], r["system"]) == (variant, name)])
            for name in SYSTEMS
        ]
        lines.append(f"{variant:16}" + "".join(f"{cell:>16}" for cell in cells))
    lines.append("")
    for variant in VARIANTS:
        some = [row for row in rows if row["variant"] == variant]
        kinds = [kind for row in some for kind in row["promoted"]]
        lines.append(
            f"{variant:16} mean regret {interval([row['mean_regret'] for row in some])} %, "
            f"{np.mean([row['episodes'] for row in some]):.0f} episodes, "
            f"{np.mean([row['candidates'] for row in some]):.0f} candidates; promoted "
            f"{kinds.count('episode')} episodes, {kinds.count('candidate')} candidates"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="file for all results")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--runs", type=int, default=RUNS)
    options = parser.parse_args()
    print(table(measure(options.seeds, options.runs, options.json)))


if __name__ == "__main__":
    main()
