"""Which stages of the training are needed, on real devices: each alone, two, and all three."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from doppler.engine import Engine, make_backend
from doppler.experiments.cell import Cell
from doppler.experiments.interleaved import median_interval, run_in_turns
from doppler.experiments.learners import UNTRAINED, untrained_dual
from doppler.experiments.measured import Backend, small_graphs
from doppler.graph.workloads.settings import Graphs, WorkloadSettings
from doppler.placement import Placement
from doppler.policy.network import DualNetwork
from doppler.policy.rollout import Episodes
from doppler.problem import Problem
from doppler.profiling import profile
from doppler.settings import Count, Name, Positive, Settings, name_of
from doppler.simulator import makespan_of
from doppler.training.dual_learner import DualLearner
from doppler.training.single import LearnedPlacement, learn

NAME = "stages"
EXCLUSIVE = True
#: What is trained, each a chain of stages from a policy that has learned nothing.
CHAINS = ("I", "II", "III", "I+II", "I+II+III")
# About how long an episode of each stage takes, and a run, for the estimate of a cell.
_EPISODE_SECONDS, _RUN_SECONDS = 0.006, 0.03


def _two_graphs() -> dict[str, WorkloadSettings]:
    graphs = small_graphs()
    return {name: graphs[name] for name in ("ffnn_small", "llama_layer_small")}


class StagesSettings(Settings):
    """What is trained.

    Attributes
    ----------
    graphs : dict of str to WorkloadSettings
        Executable, and small enough to run often.
    method : {"doppler-paper", "doppler-policy"}
        Whose policy it is: as published, or our own, whose start as a list scheduler leaves little
        for Stage I to teach.
    backend : {"cpu", "cuda"}
    devices : int
    seeds : int
    profile_seconds : float
        For the costs that Stages I and II learn on.
    imitated : int
        Episodes of Stage I: list schedules by critical path.
    simulated : int
        Of Stage II.
    measured : int
        Of Stage III: runs on the devices.
    batch : int
        Episodes of one update.
    rounds : int
        Runs of each placement at the end.
    """

    graphs: dict[Name, WorkloadSettings] = Field(default_factory=_two_graphs, min_length=1)
    method: Annotated[str, name_of("method", UNTRAINED)] = UNTRAINED[0]
    backend: Backend = "cpu"
    devices: Annotated[int, Field(ge=2)] = 2
    seeds: Count = 5
    profile_seconds: Positive = 2.0
    imitated: Annotated[int, Field(ge=2)] = 128
    simulated: Annotated[int, Field(ge=2)] = 512
    measured: Annotated[int, Field(ge=2)] = 128
    batch: Annotated[int, Field(ge=2)] = 16
    rounds: Count = 20


SETTINGS = StagesSettings


def cells(settings: StagesSettings, graphs: Graphs) -> Iterator[Cell]:
    """One for each graph and seed."""
    given = settings.model_dump(mode="json", exclude={"graphs", "seeds"})
    seconds = 2.0 + settings.profile_seconds
    seconds += _EPISODE_SECONDS * (settings.imitated + 2 * settings.simulated)
    seconds += _RUN_SECONDS * 2 * (settings.measured + len(CHAINS) * settings.rounds)
    for name, workload in settings.graphs.items():
        for seed in range(settings.seeds):
            named = {"graph": name, "seed": seed, "workload": workload.model_dump(mode="json")}
            yield Cell(NAME, named | given, seconds)


def run(given: Mapping[str, Any]) -> dict[str, Any]:
    """Profile the devices, train every chain of stages, and run what they come to in turns.

    Returns
    -------
    dict
        ``runs``: of each chain the measured median of the policy's greedy episode with its
        interval, what was simulated, and the learning curve. In that, the seconds of Stage III are
        measured, and each stage has a best of its own.

    Raises
    ------
    DopplerError
        If the backend is missing or a run fails.
    """
    graph = WorkloadSettings.model_validate(given["workload"]).build()
    backend = make_backend(given["backend"], given["devices"])
    found = profile(given["backend"], given["devices"], [graph], budget=given["profile_seconds"])
    problem = Problem(graph, found.cluster)
    with Engine(graph, backend, seed=given["seed"]) as engine:
        training = _Training(problem, engine, given)
        policies: dict[str, tuple[DualNetwork, list[LearnedPlacement]]] = {}
        for chain in CHAINS:
            before, _, stage = chain.rpartition("+")
            policy, curves = policies.get(before, (training.start.policy, []))
            policy = copy.deepcopy(policy)
            policies[chain] = policy, [*curves, training.stage(stage, policy)]
        placements = {chain: training.greedy(policy) for chain, (policy, _) in policies.items()}
        taken = run_in_turns(engine, placements, given["rounds"], given["seed"])
    runs = []
    for chain, (_, learned) in policies.items():
        median, low, high = median_interval(taken.seconds[chain])
        runs.append(
            {
                "stages": chain,
                "measured_s": median,
                "low_s": low,
                "high_s": high,
                "simulated_s": makespan_of(problem, placements[chain], training.settings.runtime),
                "samples_s": taken.seconds[chain],
                "curve": _joined(learned),
            }
        )
    return {
        "ops": graph.n_ops,
        "lower_bound_s": problem.lower_bound,
        "profile": found.source,
        "disturbance": taken.disturbance,
        "runs": runs,
    }


class _Training:
    """Trains policies on one problem, on the simulator or on devices."""

    def __init__(self, problem: Problem, engine: Engine, given: Mapping[str, Any]) -> None:
        self.problem = problem
        self.engine = engine
        self.given = given
        self.start = untrained_dual(given["method"], problem, given["seed"])
        self.settings = replace(self.start.settings, imitation=0.0)

    def stage(self, name: str, policy: DualNetwork) -> LearnedPlacement:
        """Train a policy, which changes, in one stage."""
        settings = replace(self.settings, imitation=1.0 if name == "I" else 0.0)
        judge = self._measure if name == "III" else None
        learner = DualLearner(self.problem, policy, settings, judge=judge)
        episodes = {"I": "imitated", "II": "simulated", "III": "measured"}[name]
        return learn(
            self.problem,
            learner,
            episodes=self.given[episodes],
            batch=self.given["batch"],
            seed=self.given["seed"],
        )

    def greedy(self, policy: DualNetwork) -> Placement:
        """Place the problem by the likeliest choices."""
        return DualLearner(self.problem, policy, self.settings).greedy()

    def _measure(self, episodes: Episodes) -> Episodes:
        """Run the placements of some episodes, and let them cost what was measured."""
        seconds = []
        for index in range(len(episodes.makespans)):
            honored = self.settings.runtime == "priority"
            priority = episodes.priority(index) if honored else None
            placement = Placement(episodes.devices(index), priority)
            seconds.append(self.engine.run(placement).makespan)
        return replace(episodes, makespans=np.array(seconds))


def _joined(learned: Sequence[LearnedPlacement]) -> dict[str, list[float]]:
    """Put the curves of stages one behind the other."""
    joined: dict[str, list[float]] = {"episodes": [], "mean_s": [], "best_s": []}
    done = 0.0
    for each in learned:
        joined["episodes"] += [done + count for count in each.curve.episodes.tolist()]
        joined["mean_s"] += each.curve.mean.tolist()
        joined["best_s"] += each.curve.best.tolist()
        done = joined["episodes"][-1]
    return joined
