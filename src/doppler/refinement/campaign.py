"""A refinement on the devices of this machine: check, start, refine, compare, decide, save.

A refinement comes to a placement and a policy. Each is compared with the champion's; the part that
does not win (:mod:`doppler.refinement.promotion`) is left as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from doppler.cluster import Cluster, save_cluster
from doppler.engine import Engine, make_backend
from doppler.graph import Graph
from doppler.graph.fingerprint import fingerprint
from doppler.methods import place
from doppler.placement import Placement
from doppler.policy.checkpoint import PRETRAINED, load_policy, policy_path, save_policy
from doppler.policy.network import DualPolicy
from doppler.problem import Problem
from doppler.profiling import profile
from doppler.refinement.budget import Spent, next_error
from doppler.refinement.candidates import same_placement
from doppler.refinement.health import Health, check_device
from doppler.refinement.history import RunHistory
from doppler.refinement.paired_test import compare_paired
from doppler.refinement.promotion import (
    HELD_OUT_OPS,
    PartResult,
    Promotion,
    compare_policies,
    refuse_to_tell,
)
from doppler.refinement.refiner import Refiner
from doppler.refinement.session import measurement, refine
from doppler.refinement.settings import SystemParams
from doppler.registry import (
    CLUSTER,
    POLICY,
    describe_origin,
    placement_name,
    read_placements,
)
from doppler.training.generated import generate


@dataclass(frozen=True, eq=False)
class Start:
    """Where a refinement begins.

    Attributes
    ----------
    problem : Problem
    placement : Placement
    policy : pathlib.Path or str
        As :func:`doppler.policy.checkpoint.load_policy` takes it.
    cluster : pathlib.Path
        The file that the problem's cluster is from.
    """

    problem: Problem
    placement: Placement
    policy: Path | str
    cluster: Path


@dataclass(frozen=True, eq=False)
class RefinementResult:
    """What a refinement has come to, untested.

    Attributes
    ----------
    placement : Placement
    policy : DualPolicy
    problem : Problem
        On the cluster as measured.
    runs : RunHistory
    mean_regret : float
    """

    placement: Placement
    policy: DualPolicy
    problem: Problem
    runs: RunHistory
    mean_regret: float

    @property
    def metrics(self) -> dict[str, float]:
        """The figures of the runs."""
        failed = sum(math.isnan(run.measured) for run in self.runs)
        return {
            "runs": float(len(self.runs)),
            "mean_regret": self.mean_regret,
            "failed": float(failed),
        }


class Campaign:
    """A refinement of one graph on the devices of this machine.

    What it comes to before it is saved lies in ``state``, so that one that is killed goes on from
    there when it is made again with the same arguments.

    Parameters
    ----------
    graph : Graph
    settings : SystemParams
    seed : int
    state : pathlib.Path

    Raises
    ------
    DopplerError
        If the machine has no such devices.
    """

    def __init__(self, graph: Graph, settings: SystemParams, seed: int, state: Path) -> None:
        self.graph = graph
        self.settings = settings
        self.seed = seed
        self.state = state
        self.backend = make_backend(settings.backend, settings.devices)

    @property
    def devices(self) -> dict[str, int | None]:
        """What to check, by name: every device, and all of them together (None)."""
        names = self.backend.device_names
        return {**{name: number for number, name in enumerate(names)}, "all": None}

    @property
    def origin(self) -> dict[str, Any]:
        """Where a version that it makes comes from."""
        return describe_origin(
            graph=self.graph.name,
            graph_fingerprint=fingerprint(self.graph),
            backend=self.settings.backend,
            devices=self.settings.devices,
            seed=self.seed,
        )

    def check(self, device: int | None) -> Health:
        """Let a device, or all of them, compute what is known."""
        return check_device(self.backend, device, self.settings.timeout)

    def start(self, files: Mapping[str, Path], policy: Path | str = PRETRAINED) -> Start:
        """Begin with the files of a version; what they lack for this graph is made anew.

        Parameters
        ----------
        files : mapping of str to pathlib.Path
            By their names in a version.
        policy : path-like
            If there is none among the files.

        Raises
        ------
        DopplerError
            If a file is damaged, the devices cannot be measured, or the graph does not fit.
        """
        policy = files.get(POLICY, policy)
        cluster = files.get(CLUSTER)
        if cluster is not None and self._suits(cluster):
            problem = Problem(self.graph, Cluster.load(str(cluster)))
            held = read_placements(files).get(fingerprint(self.graph))
            if held is not None:
                held[1].validate(problem)
                return Start(problem, held[1], policy, cluster)
        else:
            cluster = self._measure()
            problem = Problem(self.graph, Cluster.load(str(cluster)))
        # A search that takes seconds does not end alike twice.
        kept = self.state / f"start-{problem.fingerprint[:16]}.json"
        if not kept.exists():
            place(problem, policy=policy, budget=self.settings.budget, seed=self.seed).save(kept)
        return Start(problem, Placement.load(kept), policy, cluster)

    def refine(
        self,
        start: Start,
        name: str = "refiner",
        *,
        episodes: int | None = None,
        seconds: float | None = None,
        progress: Callable[[int, Refiner], object] | None = None,
    ) -> RefinementResult:
        """Let a refiner learn from runs on the devices.

        Parameters
        ----------
        start : Start
        name : str
            Of the folder in ``state`` for what it knows. Other devices begin anew.
        episodes, seconds, progress
            As for :func:`refine`.

        Raises
        ------
        EngineError, DopplerError
            As :func:`refine`.
        """
        with (
            Refiner(
                start.problem,
                start.placement,
                policy=load_policy(start.policy),
                directory=self.state / f"{name}-{start.problem.fingerprint[:16]}",
                guard=self.settings.guard,
                budget=self.settings.error_budget,
                learning=self.settings.learning,
                seed=self.seed,
                # The machine is here to refine: learn as much as there is to learn after every run.
                background=False,
            ) as refiner,
            Engine(self.graph, self.backend) as engine,
        ):
            refine(
                refiner,
                engine,
                episodes=episodes,
                seconds=seconds,
                timeout=self.settings.timeout,
                progress=None if progress is None else lambda done: progress(done, refiner),
            )
            return RefinementResult(
                refiner.champion,
                refiner.policy,
                refiner.problem,
                refiner.history,
                refiner.mean_regret,
            )

    def compare(
        self, start: Start, refined: RefinementResult, spent: Iterable[Spent] = (), now: str = ""
    ) -> Promotion:
        """Compare what a refinement came to with what it began with, part by part.

        Parameters
        ----------
        start : Start
        refined : RefinementResult
        spent : iterable of Spent
            By comparisons before, that share the error of a month.
        now : str
            UTC, ISO 8601.

        Raises
        ------
        DopplerError
            If the run of a champion fails.
        """
        spent, budget = list(spent), self.settings.error_budget
        # No comparison draws as another did.
        seed = self.seed + len(spent)
        placement = self._compare_placements(start, refined, next_error(budget, spent, now), seed)
        if placement.result is not None:
            spent.append(Spent(now, placement.result.error))
        policy = self._compare_policies(start, refined, next_error(budget, spent, now), seed)
        return Promotion(placement, policy)

    def save(
        self,
        start: Start,
        refined: RefinementResult,
        decision: Promotion,
        info: Mapping[str, Any],
        files: Mapping[str, Path] | None = None,
        *,
        losers: bool = False,
    ) -> dict[str, Path]:
        """Write a version of the parts that won, with the champion's for those that did not.

        Parameters
        ----------
        start, refined, decision
            As before.
        info : mapping
            Kept with a refined policy and placement.
        files : mapping of str to pathlib.Path, optional
            Of the version that it began with: its placements of other graphs are carried on.
        losers : bool
            Write the refined parts although they lost, for the record.

        Returns
        -------
        dict of str to pathlib.Path
            The files, by their names in a version; those that were written lie in ``state``.
        """
        folder = self.state / "version"
        placement, policy = start.placement, policy_path(start.policy)
        if decision.placement.promote or losers:
            new = refined.placement
            known = {"graph": self.graph.name, "graph_fingerprint": fingerprint(self.graph)}
            placement = Placement(new.devices, new.priority, {**known, **info})
        if decision.policy.promote or losers:
            policy = save_policy(refined.policy, folder / POLICY, info)
        cluster = save_cluster(
            refined.problem.cluster,
            folder / CLUSTER,
            f"fitted to {len(refined.runs):,} measured runs",
        )
        return self._files(placement, policy, cluster, files or {})

    def save_start(self, start: Start, files: Mapping[str, Path]) -> dict[str, Path]:
        """Write the version that a refinement begins with, as :meth:`save`."""
        return self._files(start.placement, policy_path(start.policy), start.cluster, files)

    def _files(
        self, placement: Placement, policy: Path, cluster: Path, files: Mapping[str, Path]
    ) -> dict[str, Path]:
        held = read_placements(files)
        held.pop(fingerprint(self.graph), None)
        others = {name: files[name] for name, _ in held.values()}
        name = placement_name(self.graph, others)
        placed = placement.save(self.state / "version" / name)
        return {**others, POLICY: policy, CLUSTER: cluster, name: placed}

    def _suits(self, cluster: Path) -> bool:
        return Cluster.load(str(cluster)).n_devices == self.settings.devices

    def _measure(self) -> Path:
        """Measure the devices, once: one that was killed goes on with them as it knew them."""
        path, settings = self.state / CLUSTER, self.settings
        if not (path.exists() and self._suits(path)):
            profile(
                settings.backend, settings.devices, [self.graph], budget=settings.profile_seconds
            ).save(path)
        return path

    def _compare_placements(
        self, start: Start, refined: RefinementResult, error: float, seed: int
    ) -> PartResult:
        if same_placement(start.placement, refined.placement):
            return PartResult("placed as the champion places it")
        params = self.settings.promotion
        if (refusal := refuse_to_tell(error, params.pairs)) is not None:
            return refusal
        timeout = self.settings.timeout
        with Engine(self.graph, self.backend) as engine:
            result = compare_paired(
                measurement(engine, start.placement, timeout),
                measurement(engine, refined.placement, timeout),
                pairs=params.pairs,
                confidence=1 - 2 * error,
                min_gain=params.min_gain,
                looks=params.looks,
                warmup=1,
                problems=[self.graph.name],
                seed=seed,
            )
        return PartResult(result.text, result)

    def _compare_policies(
        self, start: Start, refined: RefinementResult, error: float, seed: int
    ) -> PartResult:
        champion, pairs = load_policy(start.policy), self.settings.promotion.policy_pairs
        before, after = champion.state_dict(), refined.policy.state_dict()
        if all(bool((before[name] == tensor).all()) for name, tensor in after.items()):
            return PartResult("did not change")
        if not pairs:
            return PartResult("the champion's is kept, none is compared")
        if (refusal := refuse_to_tell(error, pairs)) is not None:
            return refusal
        result = compare_policies(
            champion,
            refined.policy,
            partial(generate, seed, ops=HELD_OUT_OPS),
            pairs=pairs,
            error=error,
            seed=seed,
        )
        return PartResult(result.text, result)
