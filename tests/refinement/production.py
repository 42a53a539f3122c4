"""Production for the tests of Stage III: a simulated system other than the one believed in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from doppler import Cluster, Placement, Problem, simulate, workloads
from doppler.policy.frozen import Sizes
from doppler.refinement.calibration import Factors
from doppler.refinement.refiner import Refiner
from doppler.training.case import new_policy

SMALL = Sizes(embedding=16, layers=2, hidden=8, code=4)

Production = Callable[[Placement, int], float]


def believed(large: bool = False) -> Problem:
    """Four equal devices, links that matter."""
    sizes = {"batch": 2048, "inputs": 1024, "hidden": 2048, "outputs": 1024}
    tiles = None if large else {"batch": 4, "hidden": 2}
    return Problem(workloads.ffnn(**sizes, tiles=tiles), Cluster.load("p100x4"))


def really(problem: Problem, device: int = 1, link: int = 5) -> Problem:
    """One device is 1.6 times slower, one link 4 times."""
    devices, links = np.ones(problem.n_devices), np.ones(len(problem.cluster.links))
    devices[device], links[link] = 1.6, 4.0
    return Factors(devices, links).problem(problem)


def simulated(problem: Problem, jitter: float = 0.03, seed: int = 0) -> Production:
    """Run placements of a problem, with noise."""

    def run(placement: Placement, number: int) -> float:
        return simulate(problem, placement, jitter=jitter, seed=1000 * seed + number).makespan

    return run


def refiner(problem: Problem, champion: Placement, **settings: object) -> Refiner:
    """A refiner with a small policy and no thread, unless told otherwise."""
    chosen = {"background": False, "policy": new_policy(0, sizes=SMALL), **settings}
    return Refiner(problem, champion, **chosen)  # type: ignore[arg-type]


def produce(found: Refiner, production: Production, runs: int) -> None:
    """Let production run."""
    for _ in range(runs):
        found.observe(production(found.next(), len(found.history)))


def renamed(problem: Problem, name: str) -> Problem:
    """The same problem on a cluster of another name."""
    return Problem(problem.graph, dataclasses.replace(problem.cluster, name=name))
