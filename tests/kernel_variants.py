"""Run everything that is compiled, then print how often each kernel was, as JSON on stdout."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
from numba.core.dispatcher import Dispatcher
from random_problems import untied_graph

from doppler import (
    Cluster,
    Device,
    Placement,
    Problem,
    place,
    simulate,
    simulate_many,
    workloads,
)
from doppler.cluster.link import fully_connected
from doppler.errors import MemoryLimitError
from doppler.heuristics.partition import Partitioner
from doppler.heuristics.spmd import spmd
from doppler.methods import HEURISTICS
from doppler.policy.frozen import Sizes
from doppler.policy.network import DualPolicy
from doppler.training.case import TrainingCase, new_policy
from doppler.training.demonstrations import load_demonstrations, save_demonstrations
from doppler.training.imitation import ImitationSettings, imitate
from doppler.training.reinforce import ReinforceSettings, reinforce
from doppler.training.teaching import TraceSettings, record

SMALL = Sizes(embedding=16, layers=2, hidden=8, code=4)


def plain() -> Problem:
    """Equal devices without contention, groups or limits."""
    return Problem(workloads.make("ffnn"), Cluster.uniform(3))


def crowded() -> Problem:
    """Mixed devices, a shared channel, colocation groups and memory that can run out."""
    n_ops = 60
    rng = np.random.default_rng(0)
    graph = untied_graph(
        0,
        n_ops,
        param_bytes=rng.integers(0, 4, n_ops) * 1e9,
        colocation=np.where(rng.random(n_ops) < 0.2, rng.integers(0, 3, n_ops), -1),
    )
    devices = tuple(Device(f"d{d}", flops=1e12 * (1 + d), memory=1.2e11) for d in range(3))
    links = fully_connected(3, 1e9, 0.1, np.zeros((3, 3), int).tolist())
    problem = Problem(graph, Cluster("crowded", devices, links, ("bus",)))
    assert problem.may_overflow
    return problem


def simulated(problem: Problem, folder: Path) -> None:
    made = place(problem, method="critical_path")
    loaded = Placement.load(made.save(folder / "placement.json"))
    for placement in (made, loaded, Placement(made.devices)):
        for runtime in ("priority", "fifo"):
            simulate(problem, placement, runtime=runtime)
            simulate(problem, placement, runtime=runtime, jitter=0.1, seed=7)
    many = np.stack([made.devices] * 4)
    frozen = np.broadcast_to(made.devices, (4, problem.n_ops))
    for devices in (many, many[::2], np.asfortranarray(many), frozen, many.tolist()):
        simulate_many(problem, devices, threads=1)
        simulate_many(problem, devices, devices, jitter=0.1, seeds=range(len(devices)), threads=2)


def by_nodes() -> None:
    """Split over nodes first, then over the devices of each."""
    problem = Problem(workloads.make("ffnn"), Cluster.load("a100_2x4"))
    Partitioner(problem).cut(2, 0.05, 0, mapping=True)


def repaired() -> None:
    """Change a symmetric map that does not fit in memory, in vain."""
    with suppress(MemoryLimitError):
        spmd(Problem(workloads.make("ffnn"), Cluster.uniform(3, memory=1.0)))


def placed(problem: Problem, policy: DualPolicy) -> None:
    for name in HEURISTICS:
        for budget in (0.0, 0.02):
            try:
                place(problem, method=name, budget=budget)
            except MemoryLimitError:
                continue
    for runtime in ("priority", "fifo"):
        for jitter in (0.0, 0.1):
            for budget in (0.0, 1.0):
                place(problem, policy=policy, budget=budget, runtime=runtime, jitter=jitter)


def trained(problems: list[Problem], policy: DualPolicy, folder: Path) -> None:
    cases = [TrainingCase(str(number), problem) for number, problem in enumerate(problems)]
    traces = []
    for case in cases:
        for method in ("critical_path", "sibling_affinity"):
            made = record(case.problem, TraceSettings(teacher=method, count=4), seed=0)
            path = save_demonstrations(made, folder / "traces.safetensors")
        traces.append(load_demonstrations(path, case.problem))
    imitate(policy, cases, traces, ImitationSettings(updates=2, traces=2))
    settings = ReinforceSettings(updates=2, episodes=4, validate_every=1)
    reinforce(policy, cases, settings)


def variants() -> dict[str, list[str]]:
    """By kernel: the types of arguments for which it was compiled; not those that are inlined."""
    return {
        f"{name}.{key}": [str(signature) for signature in value.signatures]
        for name, module in sorted(sys.modules.items())
        if name.startswith("doppler")
        for key, value in vars(module).items()
        if isinstance(value, Dispatcher)
        and value.py_func.__module__ == name
        and value.targetoptions.get("inline") != "always"
    }


def main() -> None:
    problems = [plain(), crowded()]
    policy = new_policy(0, sizes=SMALL)
    with tempfile.TemporaryDirectory() as folder:
        for problem in problems:
            simulated(problem, Path(folder))
            placed(problem, policy)
        by_nodes()
        repaired()
        trained(problems, policy, Path(folder))
    print(json.dumps(variants()))


if __name__ == "__main__":
    main()
