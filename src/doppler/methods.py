"""Every method by name: the learned one, the heuristics and others' learned ones."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from doppler.checks import (
    RUNTIMES,
    check_jitter,
    check_name,
    check_number,
    check_runtime,
    check_seed,
    check_type,
)
from doppler.cluster import Cluster
from doppler.errors import ParamsError
from doppler.graph import Graph
from doppler.graph.fingerprint import fingerprint
from doppler.heuristics.base import Heuristic, Solution, fitting_solution
from doppler.heuristics.critical_path import critical_path
from doppler.heuristics.enumerative import enumerative
from doppler.heuristics.heft import heft
from doppler.heuristics.partition import partition
from doppler.heuristics.random import random
from doppler.heuristics.round_robin import round_robin
from doppler.heuristics.sibling_affinity import sibling_affinity
from doppler.heuristics.single_device import single_device
from doppler.heuristics.spmd import spmd
from doppler.messages import shown_value
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.search.local_search import local_search
from doppler.simulator import DEFAULT_JITTER, makespan_of, spread

if TYPE_CHECKING:
    from doppler.policy.frozen import FrozenPolicy
    from doppler.policy.network import DualPolicy

HEURISTICS: dict[str, Heuristic] = {
    "single_device": single_device,
    "round_robin": round_robin,
    "random": random,
    "critical_path": critical_path,
    "heft": heft,
    "enumerative": enumerative,
    "sibling_affinity": sibling_affinity,
    "spmd": spmd,
    "partition": partition,
    "local_search": local_search,
}
LEARNED = "doppler"
#: Learned methods of others, and the method of this project as published; they need torch, and are
#: loaded when they are used.
BASELINES = ("placeto", "gdp", "doppler-paper")
#: What answers within its seconds, whatever the graph.
SEARCHED = (LEARNED, *HEURISTICS)
METHODS = (*SEARCHED, *BASELINES)
PRETRAINED = "pretrained"
DEFAULT_BUDGET = 2.0
# Runs behind a stated mean: as many as simulate this many ops, within these limits.
STATED_OPS = 2_000_000
FEWEST_RUNS, MOST_RUNS = 2, 64
# The first seed of such runs, which no search draws from.
FRESH_SEED = 1_000_000


def solve(
    problem: Problem,
    method: str = LEARNED,
    *,
    policy: str | Path | FrozenPolicy | DualPolicy = PRETRAINED,
    budget: float = DEFAULT_BUDGET,
    seed: int = 0,
    runtime: str = "priority",
    jitter: float = DEFAULT_JITTER,
) -> Solution:
    """Place a problem with a method and say how the placement came about.

    Parameters
    ----------
    problem : Problem
    method : str
        One of ``METHODS``.
    policy : str, path, FrozenPolicy or DualPolicy
        Of the learned method: the one that comes with the package, a file, or a network.
    budget : float
        Seconds, at least 0. Loading the policy and compiled code is not counted.
    seed : int
        At least 0.
    runtime : {"priority", "fifo"}
        The run-time that the placement is for. The learned method minimizes its makespan; the
        heuristics plan for priorities. The solution fits in its memory and states its makespan.
    jitter : float
        Standard deviation of the logarithm of every duration at run time, from 0 to 10. The learned
        method minimizes the expected makespan under it; the heuristics plan for none.

    Raises
    ------
    UnknownNameError
        On another method; names the nearest.
    ParamsError
        On a budget, a seed or a jitter out of range.
    MemoryLimitError
        If no placement was found that fits in memory; says how much is missing where.
    CheckpointError
        If the policy cannot be loaded.
    """
    check_type(problem, Problem, "problem")
    check_name(method, "method", METHODS)
    check_options(budget=budget, seed=seed, jitter=jitter, runtime=runtime)
    if method != LEARNED:
        _warm_up(method, budget > 0)
        found = heuristic(method)(problem, budget=budget, seed=seed)
        if runtime == "priority":
            return found
        return fitting_solution(
            problem, found.placement, found.evaluations, found.seconds, found.origin, runtime
        )
    # Imported late: the heuristics do without it.
    from doppler.policy.checkpoint import load_frozen
    from doppler.portfolio import search

    if isinstance(policy, str | Path):
        policy = load_frozen(policy)
    elif not hasattr(policy, "frozen"):
        raise ParamsError(f"policy is {shown_value(policy)}, must be a file or a policy")
    return search(problem, policy, budget=budget, seed=seed, runtime=runtime, jitter=jitter)


def heuristic(method: str) -> Heuristic:
    """Return a heuristic, or a learned method of others, by its name."""
    if method in HEURISTICS:
        return HEURISTICS[method]
    if method == "placeto":
        from doppler.baselines.placeto import placeto

        return placeto
    if method == "gdp":
        from doppler.baselines.gdp import gdp

        return gdp
    from doppler.baselines.doppler_paper import doppler_paper

    return doppler_paper


def check_options(
    *,
    budget: float = DEFAULT_BUDGET,
    seed: int = 0,
    jitter: float = DEFAULT_JITTER,
    runtime: str = "priority",
) -> None:
    """Refuse what :func:`solve` cannot run with, before the work.

    Raises
    ------
    ParamsError
        On a budget, a seed or a jitter out of range.
    UnknownNameError
        On another run-time.
    """
    check_number(budget, "budget")
    check_seed(seed)
    check_jitter(jitter)
    check_runtime(runtime)


def place(
    problem: Problem,
    method: str = LEARNED,
    policy: str | Path | FrozenPolicy | DualPolicy = PRETRAINED,
    budget: float = DEFAULT_BUDGET,
    seed: int = 0,
    *,
    runtime: str = "priority",
    jitter: float = DEFAULT_JITTER,
) -> Placement:
    """Place a problem with a method.

    Parameters
    ----------
    problem, method, policy, budget, seed, runtime, jitter
        As for :func:`solve`.

    Returns
    -------
    Placement
        Fits in memory; ``info`` holds ``method``, ``graph``, ``graph_fingerprint``, ``cluster``,
        ``makespan_s`` (by priority, no jitter), ``makespan_fifo_s`` (first ready, first
        run), ``expected_makespan_s`` and ``makespan_std_s`` (mean and standard deviation of runs
        under the jitter, with the run-time that the placement is for), ``jitter``,
        ``lower_bound_s``, ``origin`` (how the winner came about), ``evaluations``, ``seconds``,
        ``budget_s`` and ``seed``.

    Raises
    ------
    DopplerError
        As :func:`solve`.
    """
    solution = solve(
        problem,
        method,
        policy=policy,
        budget=budget,
        seed=seed,
        runtime=runtime,
        jitter=jitter,
    )
    placement = solution.placement
    makespans = {
        name: solution.makespan if name == runtime else makespan_of(problem, placement, name)
        for name in RUNTIMES
    }
    seeds = fresh_seeds(problem)
    expected = spread(problem, placement, runtime=runtime, jitter=jitter, seeds=seeds)
    info = {
        "method": method,
        "graph": problem.graph.name,
        "graph_fingerprint": fingerprint(problem.graph),
        "cluster": problem.cluster.name,
        "makespan_s": makespans["priority"],
        "makespan_fifo_s": makespans["fifo"],
        "expected_makespan_s": expected.mean,
        "makespan_std_s": expected.std,
        "jitter": jitter,
        "lower_bound_s": problem.lower_bound,
        "origin": solution.origin,
        "evaluations": solution.evaluations,
        "seconds": solution.seconds,
        "budget_s": budget,
        "seed": seed,
    }
    return Placement(placement.devices, placement.priority, info)


def fresh_seeds(problem: Problem, most: int = MOST_RUNS) -> range:
    """Seeds of the runs behind a stated mean: none that a search has seen, fewer of huge graphs."""
    runs = min(most, max(FEWEST_RUNS, STATED_OPS // problem.n_ops))
    return range(FRESH_SEED, FRESH_SEED + runs)


@cache
def _warm_up(method: str, searching: bool) -> None:
    """Compile what a heuristic runs, or load it from the cache, on a problem of four ops."""
    graph = Graph.from_arrays([0, 0, 1, 2], [1, 2, 3, 3], np.ones(4), np.ones(4))
    # Twice: compiling may take all the time that the first call has for searching.
    for budget in (0.01, 0.1) if searching else (0.0,):
        heuristic(method)(Problem(graph, Cluster.uniform(2)), budget=budget)
