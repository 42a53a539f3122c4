"""Transfer: a policy that has learned one problem, on another; no pretrained weights, no search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from doppler.cases import Case
from doppler.experiments.cell import Cell
from doppler.experiments.learners import UNTRAINED, curve_of, untrained_dual
from doppler.experiments.problems import given_case, problem_of
from doppler.graph.workloads.settings import Graphs
from doppler.settings import Count, Fraction, Settings, name_of
from doppler.simulator import makespan_of
from doppler.training.dual_learner import DualLearner
from doppler.training.single import LearnedPlacement, learn

NAME = "transfer"
EXCLUSIVE = False
Kind = Literal["workload", "devices", "machine"]
CaseName = Annotated[str, Field(pattern=r"^[^@]+@[^@]+$")]
# About how long an episode of the reduced cases takes, with what is learned from it.
_EPISODE_SECONDS = 0.003


class TransferPair(Settings):
    """From where to where.

    Attributes
    ----------
    kind : {"workload", "devices", "machine"}
        What differs.
    source, target : str
        A graph and a cluster: ``ffnn@p100x4``.
    """

    kind: Kind
    source: CaseName
    target: CaseName


class TransferSettings(Settings):
    """What is learned where.

    Attributes
    ----------
    pairs : list of TransferPair
    method : {"doppler-paper", "doppler-policy"}
        Whose policy it is: as published, or our own.
    seeds : int
    episodes : int
        On the source, and on the target from scratch.
    few : float
        Share of them that the policy of the source plays on the target.
    batch : int
        Episodes of one update.
    """

    pairs: list[TransferPair] = Field(
        [
            TransferPair(kind="workload", source="ffnn@p100x4", target="llama_block@p100x4"),
            TransferPair(kind="workload", source="ffnn@p100x4", target="llama_layer@p100x4"),
            TransferPair(kind="workload", source="chainmm@p100x4", target="ffnn@p100x4"),
            TransferPair(
                kind="devices", source="llama_block@uniform:4", target="llama_block@uniform:8"
            ),
            TransferPair(kind="machine", source="ffnn@p100x4", target="ffnn@v100x8"),
            TransferPair(kind="machine", source="llama_layer@p100x4", target="llama_layer@v100x8"),
        ],
        min_length=1,
    )
    method: Annotated[str, name_of("method", UNTRAINED)] = "doppler-policy"
    seeds: Count = 5
    episodes: Count = 1024
    few: Annotated[Fraction, Field(gt=0)] = 0.25
    batch: Annotated[int, Field(ge=2)] = 16


SETTINGS = TransferSettings


def cells(settings: TransferSettings, graphs: Graphs) -> Iterator[Cell]:
    """One for each pair and seed."""
    for pair in settings.pairs:
        given = [given_case(Case(*name.split("@")), graphs) for name in (pair.source, pair.target)]
        for seed in range(settings.seeds):
            yield Cell(
                NAME,
                {
                    "kind": pair.kind,
                    "source": pair.source,
                    "target": pair.target,
                    "seed": seed,
                    "method": settings.method,
                    "episodes": settings.episodes,
                    "few": settings.few,
                    "batch": settings.batch,
                    "problems": given,
                },
                seconds=(2 + 2 * settings.few) * settings.episodes * _EPISODE_SECONDS,
            )


def run(given: Mapping[str, Any]) -> dict[str, Any]:
    """Learn the source, go on on the target, and learn that from scratch as well.

    Returns
    -------
    dict
        ``scratch_s``, ``few_shot_s``: the best of the episodes; ``zero_shot_s``: the greedy episode
        of the policy of the source, before it has seen the target; ``few_scratch_s``: what as few
        episodes come to from scratch, without any transfer. Makespans of greedy episodes and the
        curves beside them.
    """
    source, target = (problem_of(each) for each in given["problems"])
    few = max(given["batch"], round(given["few"] * given["episodes"]))
    method, seed = given["method"], given["seed"]

    def trained(learner: DualLearner, episodes: int) -> LearnedPlacement:
        problem, batch = learner.problem, given["batch"]
        return learn(problem, learner, episodes=episodes, batch=batch, seed=seed)

    def greedy(learner: DualLearner) -> float:
        return makespan_of(target, learner.greedy(), learner.settings.runtime)

    before = untrained_dual(method, source, seed)
    learned = trained(before, given["episodes"])
    after = DualLearner(target, before.policy, before.settings)
    # Before it goes on, which changes it.
    zero_shot = greedy(after)
    few_shot = trained(after, few)
    scratch = trained(untrained_dual(method, target, seed), given["episodes"])
    few_scratch = trained(untrained_dual(method, target, seed), few)
    return {
        "source_s": learned.makespan,
        "zero_shot_s": zero_shot,
        "untrained_s": greedy(untrained_dual(method, target, seed)),
        "few_shot_s": few_shot.makespan,
        "few_shot_greedy_s": few_shot.greedy,
        "few_episodes": few,
        "scratch_s": scratch.makespan,
        "scratch_greedy_s": scratch.greedy,
        "scratch_episodes": given["episodes"],
        "few_scratch_s": few_scratch.makespan,
        "lower_bound_s": target.lower_bound,
        "curve_few": curve_of(few_shot.curve),
        "curve_scratch": curve_of(scratch.curve),
    }
