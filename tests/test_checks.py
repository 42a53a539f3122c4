"""Odd values in the Python interface: refused in one line that can be printed, never used."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import doppler
from doppler import (
    Cluster,
    Device,
    Graph,
    Link,
    Placement,
    Problem,
    execute,
    load_graph,
    place,
    simulate,
    simulate_many,
    simulator,
    workloads,
)
from doppler.cluster.cluster import fully_connected
from doppler.engine import EmulatedBackend
from doppler.errors import DopplerError
from doppler.graph.formats import from_networkx, to_networkx

# The interface without its types, which forbid what is tried here.
odd: Any = doppler
GRAPH = Graph.from_arrays([0, 0, 1, 2], [1, 2, 3, 3], np.ones(4), np.ones(4))
CLUSTER = Cluster.uniform(2)
PROBLEM = Problem(GRAPH, CLUSTER)
PLACEMENT = Placement([0, 1, 0, 1])
BACKEND = EmulatedBackend(PROBLEM, time_scale=1e-3)
RUN: dict[str, Any] = {"problem": PROBLEM, "placement": PLACEMENT, "runtime": "priority"}

# What no argument takes, and what some do.
NONSENSE = [b"x", {"a": object()}, object(), 3 + 4j, "\ud800", np.zeros((2, 2)), [[0], [1, 2]]]
ODD = [
    *(None, math.nan, math.inf, -math.inf, -1, 0, 2**40, 2**70, -(2**70), True, 1.5, "", "x", "1"),
    *([], [None], [0.0, 1.7], [2**40] * 4, [2**70] * 4, [True] * 4, ["0"] * 4, {}, ()),
    *(np.array([0, 1, None, 1], object), np.array([0.5] * 4), np.array([math.nan] * 4)),
    *(np.float32(1.5), np.int64(3), np.uint64(2**63), [[0, 1]], [[0, 1, 0, 2**40]], [-1] * 4),
    *([[0.0, 1, 0, 1]], *NONSENSE),
]
CALLS: list[tuple[Callable[..., object], dict[str, Any]]] = [
    (Graph.build, {"n_ops": 4, "src": [0], "dst": [1], "name": "g", "source": ""}),
    (
        Graph.build,
        {"n_ops": 4, "src": [0], "dst": [1]}
        | dict.fromkeys(("flops", "output_bytes", "names", "kinds", "meta_ops", "shards", "tiles"))
        | dict.fromkeys(("pinned", "colocation", "class_compute_s", "specs", "tensors"))
        | dict.fromkeys(("outputs", "machine")),
    ),
    (Graph.from_arrays, {"src": [0], "dst": [1], "compute": [1, 1], "transfer": [1, 1]}),
    (Device, {"name": "d", "kind": "gpu", "flops": 1.0, "memory": 1.0, "measured": {}}),
    (Device, {"name": "d", "memory_bandwidth": 1.0, "launch_overhead": 0.0, "slowdown": 1.0}),
    (Link, {"source": 0, "target": 1, "bandwidth": 1.0, "latency": 0.0, "channel": -1, "hops": 1}),
    (
        Cluster,
        {"name": "c", "devices": CLUSTER.devices, "links": CLUSTER.links, "channel_names": ()},
    ),
    (Cluster.uniform, {"count": 2, "memory": 1.0}),
    (Cluster.accelerators_and_cpus, {"accelerators": 1, "cpus": 1, "accelerator_memory": 1.0}),
    (Cluster.load, {"name_or_path": "p100x4"}),
    (fully_connected, {"count": 2, "bandwidth": 1.0, "latency": 0.0, "channels": None}),
    (Problem, {"graph": GRAPH, "cluster": CLUSTER}),
    (Placement, {"devices": [0, 1, 0, 1], "priority": None}),
    (PLACEMENT.validate, {"problem": PROBLEM}),
    (simulate, {**RUN, "jitter": 0.0, "seed": 0}),
    (
        simulate_many,
        {"problem": PROBLEM, "devices": [[0, 1, 0, 1]], "priority": None, "seeds": None}
        | {"jitter": 0.0, "threads": None},
    ),
    (simulator.spread, {**RUN, "jitter": 0.0, "seeds": range(2)}),
    (simulator.check_memory, RUN),
    (
        place,
        {"problem": PROBLEM, "method": "round_robin", "budget": 0.0, "seed": 0}
        | {"runtime": "priority", "jitter": 0.0},
    ),
    (workloads.make, {"name": "ffnn"}),
    (load_graph, {"path": "missing"}),
    (Placement.load, {"path": "missing"}),
    (from_networkx, {"graph": to_networkx(GRAPH)}),
    (to_networkx, {"graph": GRAPH}),
    (
        execute,
        {"graph": GRAPH, "placement": PLACEMENT, "backend": BACKEND, "seed": 0, "timeout": 9.0}
        | {"runtime": "priority"},
    ),
]


def told(call: Callable[..., object], arguments: dict[str, Any]) -> str:
    """Make a call; return its error, or nothing if it goes through."""
    try:
        call(**arguments)
    except DopplerError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("call", "good"), CALLS)
def test_odd_values_are_taken_or_refused_in_one_line(
    call: Callable[..., object], good: dict[str, Any], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in good:
        for value in ODD:
            if name in ("budget", "jitter", "timeout") and isinstance(value, float):
                continue
            message = told(call, {**good, name: value})
            assert message.encode(errors="replace").decode().isprintable(), (name, value, message)
            assert len(message) < 500


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: odd.place(PROBLEM, None), "unknown method None: known are"),
        (lambda: odd.workloads.make(None), "unknown workload None: known are"),
        (
            lambda: odd.save_graph(GRAPH, "x.json", format=None),
            "unknown graph format None: known are",
        ),
        (lambda: odd.save_graph(None, "x.json"), "graph is None, must be a Graph"),
        (lambda: odd.save_graph(GRAPH, None), "path of the file to write is None, must be a path"),
        (
            lambda: odd.simulate(PROBLEM, PLACEMENT, seed=-5),
            "seed is -5, must be a whole number >= 0",
        ),
        (lambda: odd.simulate(PROBLEM, PLACEMENT, seed=1.5), "seed is 1.5, must be a whole number"),
        (lambda: odd.simulate(PROBLEM, None), "placement is None, must be a Placement"),
        (
            lambda: odd.simulate_many(PROBLEM, [[0.0, 1.7, 0, 0]]),
            "devices must be a list of lists of",
        ),
        (
            lambda: odd.simulate_many(PROBLEM, [[2**40] * 4]),
            "devices holds a number that is too large",
        ),
        (
            lambda: odd.simulate_many(PROBLEM, [[0] * 4], seeds=[1.5]),
            "seed is 1.5, must be a whole",
        ),
        (lambda: odd.simulate_many(PROBLEM, [[0] * 4], threads=0), "threads is 0, must be a whole"),
        (
            lambda: odd.Placement([True, 0, 0, 0]),
            "placement: devices must be a list of whole numbers",
        ),
        (lambda: odd.place(PROBLEM, budget="1"), "budget is '1', must be a finite number >= 0"),
        (lambda: odd.place(PROBLEM, jitter=True), "jitter is True, must be a number from 0 to 10"),
        (lambda: odd.place(PROBLEM, policy=None), "policy is None, must be a file or a policy"),
        (
            lambda: odd.Cluster.uniform(True),
            "the number of devices is True, must be a whole number",
        ),
        (
            lambda: odd.Device("d", flops="fast"),
            "device 'd': flops is 'fast', must be a number > 0",
        ),
        (lambda: odd.Graph.build(2**40, [], []), "number of ops is 1099511627776, must be a whole"),
        (lambda: odd.Engine(GRAPH, None), "backend is None, must be a Backend"),
        (
            lambda: odd.engine.EmulatedBackend(PROBLEM, seed=-1),
            "seed is -1, must be a whole number",
        ),
    ],
)
def test_what_is_refused_is_told(call: Callable[[], object], message: str, tmp_path: Path) -> None:
    with pytest.raises(DopplerError) as error:
        call()
    assert message in str(error.value)


def test_numpy_scalars_are_numbers() -> None:
    assert odd.Cluster.uniform(np.int64(3)).n_devices == 3
    assert odd.simulate(PROBLEM, PLACEMENT, jitter=np.float32(0), seed=np.uint8(7)).makespan > 0
    many = odd.simulate_many(PROBLEM, np.array([[0, 1, 0, 1]], object), seeds=np.arange(1))
    assert doppler.simulate(PROBLEM, PLACEMENT).makespan == many[0]
