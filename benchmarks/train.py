"""Speed of learning: REINFORCE episodes a second, and the kernels that it and search rest on.

``measure()`` returns the figures; ``python benchmarks/train.py [--json]`` prints them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median
from typing import Any

from figures import print_figures
from simulate import layer_graph

from doppler import Cluster, Problem
from doppler.heuristics import Deadline
from doppler.heuristics.sibling_affinity import sibling_affinity
from doppler.policy.rollout import SAMPLE
from doppler.search.anneal import Annealer
from doppler.training.case import TrainingCase, new_policy
from doppler.training.reinforce import ReinforceSettings, reinforce

THREADS = 2
EPISODES = 32
# Updates that compile, load and warm what the others use.
WARM_UP = 5


def case() -> TrainingCase:
    """Return the Llama layer on 4 devices."""
    return TrainingCase("layer@uniform:4", Problem(layer_graph(), Cluster.uniform(4)), THREADS)


def episodes_per_second(trained: TrainingCase, updates: int = 60) -> dict[str, Any]:
    """Train by REINFORCE: encoder, episodes, simulation, gradient and optimizer step.

    A network of the usual size; the figure is that of the median update.
    """
    ends: list[float] = []

    def note(done: int, total: int, metrics: Mapping[str, float]) -> None:
        ends.append(time.perf_counter())

    settings = ReinforceSettings(updates=WARM_UP + updates, episodes=EPISODES)
    reinforce(new_policy(0), [trained], settings, progress=note, threads=THREADS)
    taken = [end - begin for begin, end in zip(ends[WARM_UP:-1], ends[WARM_UP + 1 :], strict=True)]
    return {
        "train_episodes_per_s": EPISODES / median(taken),
        "train_update_s": median(taken),
        "train_ops": trained.problem.n_ops,
    }


def rollouts_per_second(played: TrainingCase, batches: int = 20) -> dict[str, Any]:
    """Sample episodes and simulate them, nothing recorded."""
    policy = new_policy(0)
    weights = policy.weights(policy(played.inputs))
    taken: list[float] = []
    for batch in range(batches):
        begin = time.perf_counter()
        played.roller.play(weights, SAMPLE, range(batch * EPISODES, (batch + 1) * EPISODES))
        taken.append(time.perf_counter() - begin)
    return {"sampled_episodes_per_s": EPISODES / median(taken)}


def evaluations_per_second(searched: TrainingCase, seconds: float = 2.0) -> dict[str, Any]:
    """Anneal: moves, each with a simulation of the whole graph."""
    problem = searched.problem
    start = sibling_affinity(problem).placement
    annealer = Annealer(problem, THREADS)
    # Compiled, or loaded, before the clock starts.
    annealer.advance(annealer.chain(start), 0, 1, 1.0)
    begin = time.perf_counter()
    annealer.refine([(start, "list schedule")], Deadline(seconds), 0)
    return {"search_evaluations_per_s": annealer.evaluations / (time.perf_counter() - begin)}


def measure() -> dict[str, Any]:
    """Every figure of this file, about 15 seconds on two cores."""
    layer = case()
    return {
        **episodes_per_second(layer),
        **rollouts_per_second(layer),
        **evaluations_per_second(layer),
    }


if __name__ == "__main__":
    print_figures(measure, __doc__)
