"""Time and memory of a training step and of inference, against the number of ops."""

from __future__ import annotations

import re
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import numpy as np
from pydantic import Field

from doppler.cluster import Cluster
from doppler.evaluation.processes import PinnedProcesses
from doppler.experiments.cell import Cell
from doppler.graph.workloads import random_layers
from doppler.graph.workloads.settings import Graphs
from doppler.policy.checkpoint import PRETRAINED, load_frozen
from doppler.policy.rollout import GREEDY, Roller
from doppler.problem import Problem
from doppler.settings import Count, Positive, Seed, Settings, name_of

if TYPE_CHECKING:
    from doppler.training.single import EpisodeLearner

NAME = "scaling"
EXCLUSIVE = True
T = TypeVar("T")
# Of the problem on which everything is compiled.
_SMALL_OPS = 100
# Repeats of what is quick go on for so many seconds.
_LEAST_SECONDS = 0.5
# About so many ops a second are trained on, for the estimate of a cell.
_OPS_PER_SECOND = 2e4


class Subject(NamedTuple):
    """A learned method whose cost is measured.

    Attributes
    ----------
    learner : callable
        Makes what trains on a problem.
    infer : callable
        Places a problem that it has not seen by one greedy episode, encoding included.
    """

    learner: Callable[[Problem], EpisodeLearner]
    infer: Callable[[Problem], object]


def _doppler() -> Subject:
    # Imported late, as all that needs torch: the list of the cells does without it.
    from doppler.policy.network import DualPolicy
    from doppler.training.dual_learner import DualLearner

    frozen = load_frozen(PRETRAINED)

    def infer(problem: Problem) -> None:
        Roller(problem, 1).play(frozen.encode(problem)(None), GREEDY, [0])

    return Subject(lambda problem: DualLearner(problem, DualPolicy.of(frozen)), infer)


def _baseline(name: str) -> Subject:
    from doppler.experiments.learners import LEARNERS

    make = LEARNERS[name]
    return Subject(lambda problem: make(problem, 0), lambda problem: make(problem, 0).greedy())


#: By the name of the method.
SUBJECTS: dict[str, Callable[[], Subject]] = {
    "doppler": _doppler,
    **{name: partial(_baseline, name) for name in ("doppler-paper", "gdp", "placeto")},
}

Method = Annotated[str, name_of("method", SUBJECTS)]


def _sizes() -> dict[str, list[int]]:
    sizes = {name: [1_000, 3_000, 10_000, 30_000, 100_000] for name in SUBJECTS}
    # It passes messages over the graph once per op.
    return sizes | {"placeto": [125, 250, 500, 1_000]}


class ScalingSettings(Settings):
    """What is measured.

    Attributes
    ----------
    ops : dict of str to list of int
        Of each method, about how many, of random layered graphs: they exist at every size, with the
        same width and the same edges per op, so that nothing but the number of ops changes.
    devices : int
        Of ``uniform:K``.
    width, degree : int
        Ops of a layer and inputs of an op, on average.
    episodes : int
        Of a training step.
    repeats : int
        Of each measurement, at least, and at most as many as ``most_seconds`` allows; the median
        counts.
    most_seconds : float
    seed : int
        Of the graphs.
    """

    ops: dict[Method, list[Annotated[int, Field(ge=_SMALL_OPS)]]] = Field(
        default_factory=_sizes, min_length=1
    )
    devices: Count = 4
    width: Count = 40
    degree: Count = 3
    episodes: Annotated[int, Field(ge=2)] = 4
    repeats: Count = 5
    most_seconds: Positive = 10.0
    seed: Seed = 0


SETTINGS = ScalingSettings


def cells(settings: ScalingSettings, graphs: Graphs) -> Iterator[Cell]:
    """One for each method and number of ops."""
    given = settings.model_dump(exclude={"ops"})
    for method, sizes in settings.ops.items():
        for ops in sizes:
            step = settings.episodes * ops / _OPS_PER_SECOND
            most = 2 * settings.most_seconds
            seconds = 6.0 + min(settings.repeats * step, most)
            yield Cell(NAME, {"method": method, "ops": ops, **given}, seconds)


def run(given: Mapping[str, Any]) -> dict[str, Any]:
    """Measure one method on one graph in a fresh process, whose memory is nobody else's.

    Returns
    -------
    dict
        ``ops``, ``edges``, ``devices``; ``train_step_s`` and ``inference_s``, medians, with all
        repeats beside them; ``train_memory_bytes`` and ``inference_memory_bytes``, the most that
        the process held beyond what it held with the problem alone.
    """
    with PinnedProcesses(partial(_warm_up, given["method"])) as processes:
        return processes.run(_measure, dict(given))


@cache
def _subject(method: str) -> Subject:
    return SUBJECTS[method]()


def _problem(given: Mapping[str, Any], ops: int) -> Problem:
    layers = max(1, round(ops / given["width"]))
    graph = random_layers(layers, given["width"], given["degree"], seed=given["seed"])
    return Problem(graph, Cluster.uniform(given["devices"]))


def _warm_up(method: str) -> None:
    """Import and compile everything, or load it from the cache."""
    subject = _subject(method)
    problem = _problem({"width": 10, "degree": 2, "seed": 0, "devices": 2}, _SMALL_OPS)
    subject.infer(problem)
    learner = subject.learner(problem)
    learner.update([0, 1], 0.0)
    learner.greedy()


def _measure(given: Mapping[str, Any]) -> dict[str, Any]:
    subject = _subject(given["method"])
    problem = _problem(given, given["ops"])
    rng = np.random.default_rng(given["seed"])

    def again() -> Problem:
        # A problem remembers some of what is asked of it.
        return Problem(problem.graph, problem.cluster)

    result: dict[str, Any] = {
        "ops": problem.n_ops,
        "edges": problem.graph.n_edges,
        "devices": problem.n_devices,
    }
    before = _peak(reset=True)
    result |= _times("inference", given, again, subject.infer)
    result["inference_memory_bytes"] = _peak() - before

    learner = subject.learner(again())

    def step(seeds: list[int]) -> None:
        learner.update(seeds, 0.0)

    def seeds() -> list[int]:
        drawn: list[int] = rng.integers(2**31, size=given["episodes"]).tolist()
        return drawn

    result |= _times("train_step", given, seeds, step)
    result["train_memory_bytes"] = _peak() - before
    return result


def _times(
    name: str, given: Mapping[str, Any], prepare: Callable[[], T], work: Callable[[T], object]
) -> dict[str, Any]:
    """Repeat some work; what prepares it does not count."""
    seconds: list[float] = []
    while True:
        argument = prepare()
        began = time.perf_counter()
        work(argument)
        seconds.append(time.perf_counter() - began)
        spent = sum(seconds)
        enough = len(seconds) >= given["repeats"] and spent >= _LEAST_SECONDS
        if enough or spent >= given["most_seconds"]:
            return {f"{name}_s": statistics.median(seconds), f"{name}_samples_s": seconds}


def _peak(reset: bool = False) -> int:
    """Most bytes that this process has held in memory, of late if the system can forget it."""
    if reset:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
    with suppress(OSError):
        # What getrusage tells starts with the memory of the process that started this one.
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
        if found is not None:
            return 1024 * int(found[1])
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
