"""Features: what they mean, and what they must not depend on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policies import encode, random_hint, random_policy
from random_problems import problems, weighty_graph

from doppler import Cluster, Device, Graph, Link, Problem
from doppler.cluster.link import fully_connected
from doppler.errors import UnknownNameError
from doppler.policy.features import (
    DEVICE_FEATURES,
    NODE_FEATURES,
    PAPER_FEATURES,
    FeatureSet,
    node_features,
    scales,
)
from doppler.policy.hint import Hint, make_hint
from doppler.policy.rollout import SAMPLE, Record, Roller

quick = settings(max_examples=40)


def played(problem: Problem, count: int = 2, hint: Hint | None = None) -> Record:
    _, weights = encode(random_policy(), problem)
    roller = Roller(problem, 1)
    return roller.play(weights, SAMPLE, range(count), recorded=True, hint=hint).record


def followed(
    problem: Problem, order: np.ndarray, choice: np.ndarray, hint: Hint | None = None
) -> Record:
    _, weights = encode(random_policy(), problem)
    return Roller(problem, 1).follow(weights, order, choice, hint=hint).record


def squash(value: float) -> float:
    return math.copysign(math.log1p(abs(value)), value)


def features_slowly(
    problem: Problem, order: list[int], choice: list[int], hint: Hint | None
) -> np.ndarray:
    """All device features, by their definitions; links without channels, no pins or groups."""
    arrays = problem.arrays
    n_ops, n_devices = arrays.compute.shape
    mean, moved = problem.mean_compute, problem.mean_transfer
    inputs: list[list[int]] = [[] for _ in range(n_ops)]
    consumers: list[list[int]] = [[] for _ in range(n_ops)]
    for u, v in zip(problem.graph.src.tolist(), problem.graph.dst.tolist(), strict=True):
        inputs[v].append(u)
        consumers[u].append(v)
    typical = mean.mean() + moved.mean()
    device_of: dict[int, int] = {}
    finish: dict[int, float] = {}
    arrived: dict[tuple[int, int], float] = {}
    free = [0.0] * n_devices
    table = np.zeros((n_ops, n_devices, len(DEVICE_FEATURES)))

    def seconds(source: int, target: int, volume: float) -> float:
        return float(arrays.latency[source, target] + volume * arrays.factor[source, target])

    def arrival(u: int, device: int) -> float:
        source = device_of[u]
        if source == device:
            return finish[u]
        return arrived.get((u, device), finish[u] + seconds(source, device, arrays.volume[u]))

    for step, (op, chosen) in enumerate(zip(order, choice, strict=True)):
        unit = (
            mean[op]
            + moved[op]
            + max((moved[u] for u in inputs[op]), default=0.0)
            + 0.01 * (typical or 1.0)
        )
        horizon = max(free)
        rows = []
        for device in range(n_devices):
            load = sum(arrays.compute[v, d] for v, d in device_of.items() if d == device)
            here = [u for u in inputs[op] if device_of[u] == device]
            away = [u for u in inputs[op] if u not in here and (u, device) not in arrived]
            start = max([free[device], *(arrival(u, device) for u in inputs[op])])
            cost = float(arrays.compute[op, device])
            affinity = sum(
                seconds(device_of[u], device, min(arrays.volume[u], arrays.volume[op]))
                for w in consumers[op]
                for u in inputs[w]
                if u in device_of and device_of[u] != device
            )
            rows.append(
                {
                    "load": load,
                    "start": start,
                    "end": start + cost,
                    "cost": cost,
                    "affinity": affinity,
                    "transfers": sum(seconds(device_of[u], device, arrays.volume[u]) for u in away),
                    "here": here,
                }
            )
        least = {
            key: min(row[key] for row in rows)
            for key in ("load", "start", "end", "cost", "affinity", "transfers")
        }
        total = sum(mean[u] for u in inputs[op])
        for device, row in enumerate(rows):
            here = row["here"]
            first = min((finish[u] - arrays.compute[u, device] for u in here), default=horizon)
            last = max((finish[u] for u in here), default=horizon)
            above = {key: squash((row[key] - least[key]) / unit) for key in least}
            held = sum(mean[u] for u in here)
            hinted = -1 if hint is None else int(hint.devices[op])
            after = [] if hint is None else [hint.devices[w] == device for w in consumers[op]]
            values = {
                "load": row["load"] / ((mean.sum() or 1.0) / n_devices),
                "load_above_least": above["load"],
                "input_compute": held / total if total > 0 else 0.0,
                "inputs_earliest_start": squash((horizon - first) / unit),
                "inputs_latest_end": squash((horizon - last) / unit),
                "start": squash((row["start"] - horizon) / unit),
                "start_above_least": above["start"],
                "end_above_least": above["end"],
                "cost": squash(row["cost"] / unit),
                "cost_above_least": above["cost"],
                "affinity": squash(row["affinity"] / unit),
                "affinity_above_least": above["affinity"],
                "transfers": squash(row["transfers"] / unit),
                "transfers_above_least": above["transfers"],
                "holds_input": float(bool(here)),
                "busy": squash((horizon - free[device]) / unit),
                # No link here shares a channel.
                "shared_affinity_above_least": 0.0,
                "shared_transfers_above_least": 0.0,
                "on_hint": float(device == hinted),
                "on_hint_node": float(
                    hinted >= 0 and problem.nodes[device] == problem.nodes[hinted]
                ),
                "on_hint_above_bound": hint.above_bound if hint and device == hinted else 0.0,
                "consumers_hinted": sum(after) / len(after) if after else 0.0,
            }
            table[step, device] = [values[name] for name in DEVICE_FEATURES]
        for u in inputs[op]:
            if device_of[u] != chosen:
                arrived[u, chosen] = arrival(u, chosen)
        finish[op] = rows[chosen]["start"] + float(arrays.compute[op, chosen])
        device_of[op] = chosen
        free[chosen] = finish[op]
    return table


@pytest.mark.parametrize("hinted", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_device_features_are_what_they_say(seed: int, hinted: bool) -> None:
    rng = np.random.default_rng(seed)
    graph = weighty_graph(seed, 30)
    devices = tuple(Device(f"d{d}", slowdown=float(rng.choice([1.0, 2.0]))) for d in range(4))
    links = tuple(
        Link(link.source, link.target, hops=float(rng.choice([0.5, 2.0])))
        for link in fully_connected(4)
    )
    problem = Problem(graph, Cluster("mixed", devices, links))
    hint = make_hint(problem, rng.integers(0, 4, 30)) if hinted else None
    record = played(problem, hint=hint)
    for index in range(2):
        wanted = features_slowly(
            problem, record.order[index].tolist(), record.choice[index].tolist(), hint
        )
        np.testing.assert_allclose(record.features[index], wanted, rtol=1e-5, atol=1e-6)


@quick
@given(seed=st.integers(0, 1000), factor=st.sampled_from([1e-9, 1e-3, 7.0, 1e3, 1e9]))
def test_units_do_not_matter(seed: int, factor: float) -> None:
    graph = weighty_graph(seed, 20)
    scaled = Graph.from_arrays(
        graph.src, graph.dst, graph.compute_s * factor, graph.transfer_s * factor
    )
    problem, other = (Problem(g, Cluster.uniform(3)) for g in (graph, scaled))
    np.testing.assert_allclose(node_features(other), node_features(problem), rtol=1e-5, atol=1e-6)
    record = played(problem)
    again = followed(other, record.order, record.choice)
    np.testing.assert_allclose(again.features, record.features, rtol=1e-4, atol=1e-5)


@quick
@given(problem=problems(), seed=st.integers(0, 1000))
def test_labels_of_devices_do_not_matter(problem: Problem, seed: int) -> None:
    count = problem.n_devices
    label = np.random.default_rng(seed).permutation(count)
    old = problem.cluster
    moved = Cluster(
        old.name,
        tuple(old.devices[int(d)] for d in np.argsort(label)),
        tuple(
            type(link)(
                int(label[link.source]),
                int(label[link.target]),
                link.bandwidth,
                link.latency,
                link.channel,
                link.hops,
            )
            for link in old.links
        ),
        old.channel_names,
    )
    graph = problem.graph
    pinned = np.where(graph.pinned >= 0, label[graph.pinned], -1)
    relabelled = Graph.build(
        graph.n_ops,
        graph.src,
        graph.dst,
        flops=graph.flops,
        output_bytes=graph.output_bytes,
        param_bytes=graph.param_bytes,
        pinned=pinned,
        colocation=graph.colocation,
    )
    other = Problem(relabelled, moved)
    np.testing.assert_allclose(node_features(other), node_features(problem), rtol=1e-5, atol=1e-6)
    hint = random_hint(problem, seed)
    record = played(problem, hint=hint)
    # Ties of the simulation that rates the hint go by the label.
    same = make_hint(other, label[hint.devices])._replace(above_bound=hint.above_bound)
    again = followed(other, record.order, label[record.choice].astype(np.int32), same)
    assert np.array_equal(again.allowed[:, :, label], record.allowed)
    np.testing.assert_allclose(again.features[:, :, label], record.features, rtol=1e-5, atol=1e-5)


def relabelled_graph(graph: Graph, label: np.ndarray) -> Graph:
    back = np.argsort(label)
    return Graph.from_arrays(
        label[graph.src], label[graph.dst], graph.compute_s[back], graph.transfer_s[back]
    )


def test_labels_of_ops_do_not_matter() -> None:
    graph = weighty_graph(4, 40)
    label = np.random.default_rng(1).permutation(40)
    problem = Problem(graph, Cluster.uniform(3))
    other = Problem(relabelled_graph(graph, label), Cluster.uniform(3))
    np.testing.assert_allclose(
        node_features(other)[label], node_features(problem), rtol=1e-5, atol=1e-6
    )
    record = played(problem)
    again = followed(other, label[record.order].astype(np.int32), record.choice)
    np.testing.assert_allclose(again.features, record.features, rtol=1e-4, atol=1e-5)


def odd_problems() -> dict[str, Problem]:
    one, three = Cluster.uniform(1), Cluster.uniform(3)
    ratios = 10.0 ** np.linspace(-12, 12, 9)
    chain = (list(range(8)), list(range(1, 9)))
    slow = tuple(Device(f"d{d}", slowdown=10.0 ** (12 * d - 12)) for d in range(3))
    shared = tuple(type(link)(link.source, link.target, channel=0) for link in three.links)
    return {
        "one op": Problem(Graph.from_arrays([], [], [1.0], [1.0]), three),
        "one free op": Problem(Graph.from_arrays([], [], [0.0], [0.0]), three),
        "one device": Problem(weighty_graph(0, 9), one),
        "all free": Problem(Graph.from_arrays(*chain, [0.0] * 9, [0.0] * 9), three),
        "free ops, dear transfers": Problem(
            Graph.from_arrays(*chain, [0.0] * 9, [1e12] * 9), three
        ),
        "free transfers": Problem(Graph.from_arrays(*chain, [1.0] * 9, [0.0] * 9), three),
        "no edges": Problem(Graph.from_arrays([], [], ratios, ratios), three),
        "huge ratios": Problem(Graph.from_arrays(*chain, ratios, ratios[::-1]), three),
        "tiny": Problem(Graph.from_arrays(*chain, [1e-290] * 9, [1e-290] * 9), three),
        "huge": Problem(Graph.from_arrays(*chain, [1e290] * 9, [1e290] * 9), three),
        "parts": Problem(Graph.from_arrays([0, 3], [1, 4], [1.0] * 6, [0.5] * 6), three),
        "slow devices": Problem(weighty_graph(0, 9), Cluster("slow", slow, fully_connected(3))),
        "one bus": Problem(weighty_graph(0, 9), Cluster("bus", three.devices, shared, ("bus",))),
        "many inputs": Problem(
            Graph.from_arrays(range(100), [100] * 100, [1.0] * 101, [1.0] * 101), three
        ),
        "pins and groups": Problem(
            Graph.build(
                6,
                [0, 1, 2],
                [3, 4, 5],
                flops=[1e12] * 6,
                output_bytes=[1e9] * 6,
                pinned=[2, -1, -1, -1, -1, 0],
                colocation=[-1, 7, 7, 7, -1, -1],
            ),
            three,
        ),
    }


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", odd_problems())
def test_odd_problems_have_finite_features(name: str) -> None:
    problem = odd_problems()[name]
    node = node_features(problem)
    assert node.shape == (problem.n_ops, len(NODE_FEATURES))
    assert np.isfinite(node).all()
    assert (np.abs(node) < 1000).all()
    assert all(np.isfinite(value).all() for value in scales(problem))
    assert (scales(problem).unit > 0).all()
    record = played(problem)
    assert np.isfinite(record.features).all()
    assert (np.abs(record.features) < 1000).all()


def test_node_features_of_a_small_graph() -> None:
    # 0 -> 1 -> 2 and 0 -> 2; compute 1, 2, 3; transfer 3, 2, 1.
    graph = Graph.from_arrays([0, 1, 0], [1, 2, 2], [1.0, 2.0, 3.0], [3.0, 2.0, 1.0])
    features = dict(
        zip(NODE_FEATURES, node_features(Problem(graph, Cluster.uniform(2))).T, strict=True)
    )
    wanted = {
        "compute": np.log1p([0.5, 1.0, 1.5]),
        "transfer": np.log1p([1.5, 1.0, 0.5]),
        "input_transfer": np.log1p([0.0, 1.5, 2.5]),
        "b_level": [1.0, 5 / 6, 0.5],
        "t_level": [0.0, 1 / 6, 0.5],
        "critical": [1.0, 1.0, 1.0],
        "b_level_with_transfers": [1.0, 7 / 11, 3 / 11],
        "critical_with_transfers": [1.0, 1.0, 1.0],
        "inputs": np.log1p([0, 1, 2]),
        "consumers": np.log1p([2, 1, 0]),
        "entry": [1, 0, 0],
        "exit": [0, 0, 1],
        "fastest_device": [1, 1, 1],
        "slowest_device": np.log1p([1, 1, 1]),
        "graph_transfer_to_compute": np.log1p([1.0] * 3),
        "graph_parallelism": np.log1p([1.0] * 3),
        "graph_parallelism_per_device": np.log1p([0.5] * 3),
    }
    assert wanted.keys() == features.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(features[name], values, rtol=1e-6, err_msg=name)  # type: ignore[call-overload]


def test_feature_sets() -> None:
    assert all(FeatureSet.named("full").used)
    used = FeatureSet.named("paper").used
    assert [n for n, on in zip(DEVICE_FEATURES, used, strict=True) if on] == list(PAPER_FEATURES)
    with pytest.raises(UnknownNameError, match="unknown feature set 'papr': did you mean 'paper'"):
        FeatureSet.named("papr")
