"""How far from the optimum: proven optima of small graphs, and bounds of large ones."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from doppler.cases import Grid, Grids
from doppler.cluster import Cluster, Device, Link
from doppler.exact.bounds import lower_bound
from doppler.experiments.cell import Cell
from doppler.experiments.problems import PUBLISHED_FOLDER, problem_of, suite_cases
from doppler.graph import Graph
from doppler.graph.workloads.settings import Graphs
from doppler.methods import solve
from doppler.problem import Problem
from doppler.settings import Count, Positive, Seed, Settings, Whole

NAME = "exact"
EXCLUSIVE = False
#: Mean seconds of a transfer over those of an op, by turns.
RATIOS = (0.2, 1.0, 3.0)
#: What the small problems run on, by turns: devices alike; each with one channel out, on which its
#: transfers take turns; alike again; one that takes twice as long.
CLUSTERS = ("uniform", "queued", "uniform", "mixed")

Range = Annotated[list[Count], Field(min_length=2, max_length=2)]


class ExactSettings(Settings):
    """What is proven, and what is bounded.

    Attributes
    ----------
    optima : int
        Small random problems.
    ops, devices : list of two int
        The fewest and the most of them.
    seed : int
        Of the small problems.
    solver : float
        Seconds of CP-SAT, at most, for each.
    budget : float
        Seconds of doppler for each problem, small or not.
    suites : dict of str to list of Grid
        Cases to bound; a suite ``published`` names the paper's own graphs.
    published : str
        Folder of those graphs; where it is missing, the suite is left out.
    """

    optima: Whole = 48
    ops: Range = Field([8, 14])
    devices: Range = Field([2, 3])
    seed: Seed = 0
    solver: Positive = 20.0
    budget: Positive = 1.0
    suites: dict[str, Grids] = Field(
        {
            "workloads": [
                Grid(
                    graphs=["chainmm", "ffnn", "llama_block", "llama_layer", "moe_layer"],
                    clusters=["p100x4", "v100x8"],
                )
            ],
            "large": [
                Grid(graphs=["llama_two_layers_eighths", "moe_layer_32"], clusters=["v100_4x4"]),
                Grid(graphs=["llama_four_layers"], clusters=["v100_4x4", "a100_2x4"]),
                Grid(graphs=["random_heavy", "lstm_grid"], clusters=["uniform:16"]),
                Grid(graphs=["inception"], clusters=["uniform:8"]),
            ],
        }
    )
    published: str = PUBLISHED_FOLDER


SETTINGS = ExactSettings


def cells(settings: ExactSettings, graphs: Graphs) -> Iterator[Cell]:
    """One for each small problem, and one for each case to bound."""
    fewest_ops, most_ops = settings.ops
    fewest, most = settings.devices
    sizes = most_ops - fewest_ops + 1
    for number in range(settings.optima):
        yield Cell(
            NAME,
            {
                "kind": "optimum",
                "number": number,
                "ops": fewest_ops + number % sizes,
                "devices": fewest + number // sizes % (most - fewest + 1),
                "seed": settings.seed,
                "ratio": RATIOS[number % len(RATIOS)],
                "solver": settings.solver,
                "budget": settings.budget,
            },
            seconds=settings.budget + 1.0,
        )
    for suite, given in suite_cases(settings.suites, graphs, settings.published):
        yield Cell(
            NAME,
            {"kind": "bound", "suite": suite, **given, "budget": settings.budget},
            seconds=settings.budget + 2.0,
        )


def small_problem(number: int, ops: int, devices: int, ratio: float, seed: int) -> Problem:
    """Draw a small problem whose times are whole seconds, so that the solver's are exact.

    Parameters
    ----------
    number : int
        Of the draw, and of ``CLUSTERS``.
    ops, devices : int
    ratio : float
        Mean seconds of a transfer over those of an op.
    seed : int
    """
    rng = np.random.default_rng([seed, number])
    count = np.minimum(rng.integers(1, 4, ops), np.arange(ops))
    # Some ops have no input, so that there is something to do side by side.
    count *= rng.random(ops) < 0.9
    dst = np.repeat(np.arange(ops), count)
    src = (rng.random(dst.size) * dst).astype(int)
    compute = rng.integers(1, 21, ops).astype(float)
    moved = np.maximum(1.0, np.round(ratio * rng.integers(1, 21, ops)))
    kind = CLUSTERS[number % len(CLUSTERS)]
    pairs = [(a, b) for a in range(devices) for b in range(devices) if a != b]
    cluster = Cluster(
        f"{kind}:{devices}",
        tuple(
            Device(f"d{d}", slowdown=2.0 if kind == "mixed" and d == 0 else 1.0)
            for d in range(devices)
        ),
        tuple(Link(a, b, channel=a if kind == "queued" else -1) for a, b in pairs),
        tuple(f"d{d} out" for d in range(devices)) if kind == "queued" else (),
    )
    graph = Graph.from_arrays(src, dst, compute, moved, name=f"random{number}")
    return Problem(graph, cluster)


def run(given: Mapping[str, Any]) -> dict[str, Any]:
    """Prove an optimum and see whether doppler finds it, or bound a case.

    Returns
    -------
    dict
        Of an optimum ``optimum_s`` (the best found), ``proven``, ``bound_s`` (of the solver),
        ``own_bound_s`` (without it), ``simple_bound_s``, ``critical_path_s``, ``doppler_s``,
        ``cluster`` and ``seconds`` (of the solver); of a bound ``simple_bound_s``, ``bound_s``,
        ``bound_seconds`` and ``doppler_s``.
    """
    return _optimum(given) if given["kind"] == "optimum" else _bound(given)


def _optimum(given: Mapping[str, Any]) -> dict[str, Any]:
    from doppler.exact import exact

    problem = small_problem(
        given["number"], given["ops"], given["devices"], given["ratio"], given["seed"]
    )
    rival = solve(problem, "critical_path", budget=0.1, seed=given["seed"])
    found = solve(problem, budget=given["budget"], seed=given["seed"], jitter=0.0)
    began = time.perf_counter()
    # Not from doppler's own placement: the solver finds what it finds by itself.
    best = exact(problem, budget=given["solver"], seed=given["seed"], start=rival.placement)
    return {
        "ops": problem.n_ops,
        "devices": problem.n_devices,
        "cluster": problem.cluster.name,
        "simple_bound_s": problem.lower_bound,
        "own_bound_s": lower_bound(problem),
        "bound_s": best.bound,
        "optimum_s": best.makespan,
        "proven": best.proven,
        "doppler_s": found.makespan,
        "critical_path_s": rival.makespan,
        "seconds": time.perf_counter() - began,
    }


def _bound(given: Mapping[str, Any]) -> dict[str, Any]:
    problem = problem_of(given)
    simple = problem.lower_bound
    began = time.perf_counter()
    bound = lower_bound(problem)
    seconds = time.perf_counter() - began
    found = solve(problem, budget=given["budget"], jitter=0.0)
    return {
        "ops": problem.n_ops,
        "devices": problem.n_devices,
        "simple_bound_s": simple,
        "bound_s": bound,
        "bound_seconds": seconds,
        "doppler_s": found.makespan,
    }
