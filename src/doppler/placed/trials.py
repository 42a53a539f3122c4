"""Placements that are tried on the devices before one is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from doppler import methods
from doppler.cluster import Cluster
from doppler.engine import Engine, Execution
from doppler.errors import DeviceMemoryError, MemoryLimitError
from doppler.placed.measuring import NOTHING, Measurements
from doppler.placed.memory import explain_overflow
from doppler.placement import Placement
from doppler.problem import Problem

if TYPE_CHECKING:
    from doppler.policy.frozen import FrozenPolicy
    from doppler.policy.network import DualPolicy

# Runs of a placement that count, after one that brings everything to the devices; and seconds that
# are enough of them.
_RUNS, _RUN_SECONDS = 3, 0.5


@dataclass(frozen=True, slots=True)
class Search:
    """How placements are searched for; the attributes are those of :func:`doppler.place`."""

    method: str
    policy: str | Path | FrozenPolicy | DualPolicy
    seed: int

    def place(self, problem: Problem, budget: float) -> Placement:
        """Place a problem within so many seconds.

        Raises
        ------
        MemoryLimitError
            If it does not fit; says what would help.
        """
        try:
            return methods.place(problem, self.method, self.policy, budget, self.seed)
        except MemoryLimitError as error:
            raise MemoryLimitError(explain_overflow(problem, str(error))) from None


@dataclass
class Trials:
    """Placements of a graph that are tried on its devices, each time by what is known by then.

    Attributes
    ----------
    engine : Engine
        Of the graph, with its tensors.
    cluster : Cluster
        The engine's devices, as far as is known.
    search : Search
    """

    engine: Engine
    cluster: Cluster
    search: Search

    def __post_init__(self) -> None:
        self.known: Measurements = NOTHING
        self.seconds: dict[str, float] = {}
        self.placement: Placement | None = None
        self.best = math.inf

    @property
    def chosen(self) -> Placement:
        """The placement of the fastest runs."""
        assert self.placement is not None
        return self.placement

    def run(self, budget: float) -> Trials:
        """Try one device, then what a search of so many seconds finds by the times seen.

        Raises
        ------
        MemoryLimitError, EngineError
            If it fits nowhere, or cannot run.
        """
        guessed = self.cluster
        graph = self.engine.graph
        kinds: dict[str, int] = {}
        for number, device in enumerate(guessed.devices):
            kinds.setdefault(device.kind, number)
        for kind, number in kinds.items():
            alone = Placement([number] * graph.n_ops)
            name = "one device" if kind == guessed.devices[0].kind else f"one {kind}"
            try:
                self.attempt(name, alone)
            except DeviceMemoryError:
                continue  # It needs more than one: then modeled costs are all that is known.
        # Where it fits on no device alone, the search says by how much.
        if guessed.n_devices > 1 or self.placement is None:
            for turn in range(2):
                self.cluster = self.known.applied(guessed)
                problem = Problem(graph, self.cluster)
                try:
                    self.attempt(f"turn {turn}", self.search.place(problem, budget / 2))
                except DeviceMemoryError:
                    if turn:
                        break
                    raise
        self.cluster = self.known.applied(guessed)
        one = self.seconds.get("one device")
        self.seconds = {"placed": self.best} | ({} if one is None else {"one device": one})
        return self

    def attempt(self, name: str, placement: Placement) -> None:
        """Run a placement a few times, and keep it if it is the fastest."""
        self.engine.run(placement)
        runs: list[Execution] = []
        while len(runs) < _RUNS and sum(run.makespan for run in runs) < _RUN_SECONDS:
            runs.append(self.engine.run(placement))
        traces = [run.trace for run in runs]
        self.known = self.known.add(self.engine.graph, self.cluster, traces)
        seconds = median(run.makespan for run in runs)
        self.seconds[name] = seconds
        if seconds < self.best:
            self.best, self.placement = seconds, placement


@contextmanager
def undisturbed_random_numbers() -> Iterator[None]:
    """Let runs that only measure draw random numbers without a trace."""
    import torch

    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
