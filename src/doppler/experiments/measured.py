"""The main comparison on real devices: every method plans on measured costs, and is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from doppler.engine import Engine, make_backend
from doppler.errors import MemoryLimitError
from doppler.experiments.cell import Cell
from doppler.experiments.interleaved import median_interval, run_in_turns
from doppler.graph.workloads.settings import Graphs, WorkloadSettings
from doppler.methods import METHODS, solve
from doppler.problem import Problem
from doppler.profiling import profile
from doppler.settings import Count, Name, Positive, Seed, Settings, name_of
from doppler.simulator import makespan_of
from doppler.torch_threads import one_torch_thread

NAME = "measured"
EXCLUSIVE = True
#: By name alone; others need more than a number of devices.
BACKENDS = ("cpu", "cuda")
# About how long a run takes, for the estimate of a cell.
_RUN_SECONDS = 0.03

Method = Annotated[str, name_of("method", METHODS)]
Backend = Annotated[str, name_of("backend", BACKENDS)]


def small_graphs() -> dict[str, WorkloadSettings]:
    """Take the five workloads at sizes of which a run on two cores takes 10 to 60 ms."""
    sizes: dict[str, dict[str, int | float | bool]] = {
        "chainmm": {"m": 1024, "k": 1024, "n": 1024, "p": 1024, "q": 1024},
        "ffnn": {"batch": 2048, "inputs": 512, "hidden": 1024, "outputs": 512},
        "llama_block": {"sequence": 768, "hidden": 512, "heads": 8},
        "llama_layer": {"sequence": 512, "hidden": 512, "heads": 8, "intermediate": 1408},
        "moe_layer": {"sequence": 512, "hidden": 512, "intermediate": 1024},
    }
    return {
        f"{name}_small": WorkloadSettings(workload=name, sizes=given, tiles={})
        for name, given in sizes.items()
    }


class MeasuredSettings(Settings):
    """What is measured.

    Attributes
    ----------
    graphs : dict of str to WorkloadSettings
        Executable, and small enough to run often.
    backend : {"cpu", "cuda"}
    devices : int
    profile_seconds : float
        For the costs that the methods plan on.
    budget : float
        Seconds of each method.
    methods : list of str
    rounds : int
        Runs of each placement.
    seed : int
    """

    graphs: dict[Name, WorkloadSettings] = Field(default_factory=small_graphs, min_length=1)
    backend: Backend = "cpu"
    devices: Annotated[int, Field(ge=2)] = 2
    profile_seconds: Positive = 4.0
    budget: Positive = 1.0
    methods: list[Method] = Field(list(METHODS), min_length=1)
    rounds: Count = 50
    seed: Seed = 0


SETTINGS = MeasuredSettings


def cells(settings: MeasuredSettings, graphs: Graphs) -> Iterator[Cell]:
    """One for each graph: its methods are run in turns."""
    given = settings.model_dump(mode="json", exclude={"graphs"})
    count = len(settings.methods)
    seconds = 2.0 + settings.profile_seconds
    seconds += count * (settings.budget + settings.rounds * _RUN_SECONDS)
    for name, workload in settings.graphs.items():
        named = {"graph": name, "workload": workload.model_dump(mode="json")}
        yield Cell(NAME, named | given, seconds)


def run(given: Mapping[str, Any]) -> dict[str, Any]:
    """Profile the devices, place a graph with every method, and run the placements in turns.

    Returns
    -------
    dict
        ``runs``: medians with their intervals, the makespans that were planned, and all samples in
        the order of the rounds; ``disturbance``: cores that others used meanwhile.

    Raises
    ------
    DopplerError
        If the backend is missing or a run fails.
    """
    graph = WorkloadSettings.model_validate(given["workload"]).build()
    backend = make_backend(given["backend"], given["devices"])
    found = profile(given["backend"], given["devices"], [graph], budget=given["profile_seconds"])
    problem = Problem(graph, found.cluster)
    placements, simulated, lost = {}, {}, []
    with one_torch_thread():
        for method in given["methods"]:
            try:
                solution = solve(problem, method, budget=given["budget"], seed=given["seed"])
            except MemoryLimitError:
                lost.append(method)
                continue
            placements[method] = solution.placement
            simulated[method] = makespan_of(problem, solution.placement)
    with Engine(graph, backend, seed=given["seed"]) as engine:
        taken = run_in_turns(engine, placements, given["rounds"], given["seed"])
    runs = []
    for method, samples in taken.seconds.items():
        median, low, high = median_interval(samples)
        runs.append(
            {
                "method": method,
                "median_s": median,
                "low_s": low,
                "high_s": high,
                "simulated_s": simulated[method],
                "samples_s": samples,
            }
        )
    return {
        "ops": graph.n_ops,
        "lower_bound_s": problem.lower_bound,
        "profile": found.source,
        "disturbance": taken.disturbance,
        "did_not_fit": lost,
        "runs": runs,
    }
