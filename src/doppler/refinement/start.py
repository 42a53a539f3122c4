"""What a refinement begins with: a policy, a placement, and the devices as they are believed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from doppler.cluster import Cluster
from doppler.graph import Graph
from doppler.graph.fingerprint import fingerprint
from doppler.methods import place
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.profiling import profile
from doppler.registry import POLICY, Version

#: Names of the files of a version, beside the policy.
PLACEMENT, CLUSTER = "placement.json", "cluster.yaml"


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices to run on, and what to spend on knowing them.

    Attributes
    ----------
    backend : {"cpu", "cuda"}
    count : int
    profile_seconds : float
        Time to measure them in, about.
    budget : float
        Seconds of search for a placement.
    """

    backend: str
    count: int
    profile_seconds: float
    budget: float


@dataclass(frozen=True, eq=False)
class Start:
    """Where a refinement begins.

    Attributes
    ----------
    problem : Problem
    placement : Placement
    policy : pathlib.Path or str
        As :func:`doppler.policy.checkpoint.load_policy` takes it.
    """

    problem: Problem
    placement: Placement
    policy: Path | str


def measure_cluster(graph: Graph, devices: Devices, path: Path) -> Cluster:
    """Load the cluster file, or measure the devices and write it.

    So that a refinement that was killed goes on with the devices as it knew them.

    Raises
    ------
    DopplerError
        If the machine has no such devices, or the file is damaged.
    """
    if path.exists():
        cluster = Cluster.load(str(path))
        if cluster.n_devices == devices.count:
            return cluster
    profile(devices.backend, devices.count, [graph], budget=devices.profile_seconds).save(path)
    return Cluster.load(str(path))


def start_anew(
    graph: Graph, devices: Devices, policy: Path | str, measured: Path, seed: int
) -> Start:
    """Measure the devices and let a policy place the graph.

    Parameters
    ----------
    graph : Graph
    devices : Devices
    policy : path-like
        Its file, or ``"pretrained"``.
    measured : pathlib.Path
        The cluster file: read if it is there, else written.
    seed : int

    Raises
    ------
    DopplerError
        If the machine has no such devices, or the graph does not fit on them.
    """
    problem = Problem(graph, measure_cluster(graph, devices, measured))
    placement = place(problem, policy=policy, budget=devices.budget, seed=seed)
    return Start(problem, placement, policy)


def start_from(
    version: Version, graph: Graph, devices: Devices, measured: Path, seed: int
) -> Start:
    """Go on from a version of the registry.

    What it does not hold, or holds for another graph or other devices, is made anew.

    Parameters
    ----------
    version : Version
    graph, devices, measured, seed
        As for :func:`start_anew`.

    Raises
    ------
    DopplerError
        If a file of the version is missing or damaged, or as :func:`start_anew`.
    """
    policy = version.path(POLICY)
    if CLUSTER not in version.files:
        return start_anew(graph, devices, policy, measured, seed)
    cluster = Cluster.load(str(version.path(CLUSTER)))
    if cluster.n_devices != devices.count:
        return start_anew(graph, devices, policy, measured, seed)
    problem = Problem(graph, cluster)
    if PLACEMENT in version.files:
        placement = Placement.load(version.path(PLACEMENT))
        if placement.info.get("graph_fingerprint") == fingerprint(graph):
            placement.validate(problem)
            return Start(problem, placement, policy)
    placement = place(problem, policy=policy, budget=devices.budget, seed=seed)
    return Start(problem, placement, policy)


def same_placement(one: Placement, other: Placement) -> bool:
    """Whether two placements run alike: equal devices and priorities."""
    if one.priority is None or other.priority is None:
        alike = one.priority is other.priority
    else:
        alike = bool(np.array_equal(one.priority, other.priority))
    return alike and bool(np.array_equal(one.devices, other.devices))
