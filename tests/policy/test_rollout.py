"""Episodes: the kernel's choices, its records and its races."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policies import encode, random_hint, random_policy, topological_orders
from random_problems import problems, random_graph, weighty_graph

from doppler import Cluster, Device, Graph, Placement, Problem, simulate
from doppler.cluster.link import fully_connected
from doppler.errors import PlacementError
from doppler.policy.features import STYLED
from doppler.policy.frozen import Sizes
from doppler.policy.hint import make_hint
from doppler.policy.likelihood import device_state, log_probabilities
from doppler.policy.rollout import (
    GREEDY,
    SAMPLE,
    Record,
    Roller,
    Weights,
    score_devices,
)
from doppler.training.case import new_policy

quick = settings(max_examples=40)


def kernel_scores(weights: Weights, record: Record) -> np.ndarray:
    """What the kernel scores the recorded devices, shape [episodes, ops, devices]."""
    episodes, n_ops, n_devices = record.allowed.shape
    scores = np.full((episodes, n_ops, n_devices), -np.inf)
    hidden = np.empty(weights.node.shape[1], np.float32)
    for index in range(episodes):
        codes = np.zeros((n_devices, weights.code.shape[1]), np.float32)
        direct = (weights.direct * np.exp(record.style[index])).astype(np.float32)
        members = np.zeros(n_devices, np.float32)
        for step in range(n_ops):
            op, device = record.order[index, step], record.choice[index, step]
            found = np.flatnonzero(record.allowed[index, step]).astype(np.int32)
            seen = record.features[index, step].astype(np.float64)
            out = np.empty(n_devices)
            score_devices(weights, direct, op, found, len(found), seen, codes, members, hidden, out)
            scores[index, step, found] = out[: len(found)]
            codes[device] += weights.code[op]
            members[device] += 1
    return scores


@quick
@given(problem=problems(), seed=st.integers(0, 100), hinted=st.booleans())
def test_kernel_and_torch_score_alike(problem: Problem, seed: int, hinted: bool) -> None:
    policy = random_policy(seed)
    heads, weights = encode(policy, problem)
    roller = Roller(problem, 1)
    hint = random_hint(problem, seed) if hinted else None
    for mode in (GREEDY, SAMPLE):
        record = roller.play(
            weights, mode, [seed, seed + 1], recorded=True, hint=hint, spread=seed % 2
        ).record
        with torch.no_grad():
            wanted = log_probabilities(policy, heads, problem, record).place.numpy()
        scores = kernel_scores(weights, record)
        most = scores.max(axis=-1, keepdims=True)
        found = scores - most - np.log(np.exp(scores - most).sum(axis=-1, keepdims=True))
        assert np.array_equal(np.isfinite(found), record.allowed)
        np.testing.assert_allclose(
            found[record.allowed], wanted[record.allowed], rtol=1e-5, atol=1e-5
        )
        if mode == GREEDY:
            taken = np.take_along_axis(wanted, record.choice[..., None].astype(int), -1)
            assert (taken >= wanted.max(axis=-1, keepdims=True) - 1e-5).all()


def test_kernel_and_torch_score_alike_at_full_size() -> None:
    problem = Problem(weighty_graph(3, 150), Cluster.load("v100x8"))
    policy = random_policy(1, sizes=Sizes())
    heads, weights = encode(policy, problem)
    record = Roller(problem).play(weights, SAMPLE, range(3), recorded=True).record
    with torch.no_grad():
        wanted = log_probabilities(policy, heads, problem, record).place.numpy()
    scores = kernel_scores(weights, record)
    found = torch.log_softmax(torch.from_numpy(scores), -1).numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_device_state_is_the_mean_code_with_one_zero() -> None:
    problem = Problem(weighty_graph(1, 12), Cluster.uniform(3))
    heads, weights = encode(random_policy(), problem)
    record = Roller(problem, 1).play(weights, SAMPLE, [1, 2]).record
    order = torch.from_numpy(record.order.astype(np.int64))
    choice = torch.from_numpy(record.choice.astype(np.int64))
    state = device_state(heads, order, choice, 3)
    for episode in range(2):
        held: list[list[torch.Tensor]] = [[torch.zeros(4)] for _ in range(3)]
        for step in range(12):
            for device in range(3):
                mean = torch.stack(held[device]).mean(0)
                torch.testing.assert_close(state[episode, step, device], mean)
            held[choice[episode, step]].append(heads.code[order[episode, step]])


@quick
@given(problem=problems(), seed=st.integers(0, 2**40))
def test_episodes_are_valid_and_scored_by_the_simulator(problem: Problem, seed: int) -> None:
    _, weights = encode(random_policy(), problem)
    for runtime in ("priority", "fifo"):
        episodes = Roller(problem, 1).play(weights, SAMPLE, [seed, seed + 1], runtime=runtime)
        for index in range(2):
            order = episodes.record.order[index].tolist()
            assert sorted(order) == list(range(problem.n_ops))
            step = {op: position for position, op in enumerate(order)}
            for u, v in zip(problem.graph.src.tolist(), problem.graph.dst.tolist(), strict=True):
                assert step[u] < step[v]
            placement = Placement(episodes.devices(index), episodes.priority(index))
            placement.validate(problem)
            result = simulate(problem, placement, runtime=runtime)
            assert episodes.makespans[index] == result.makespan
            capacity = problem.arrays.capacity
            over = (np.maximum(result.peak_memory - capacity, 0) / capacity).sum()
            assert episodes.overflow[index] == pytest.approx(over, rel=1e-12)


@quick
@given(problem=problems(), seed=st.integers(0, 100), hinted=st.booleans())
def test_following_an_episode_sees_what_it_saw(problem: Problem, seed: int, hinted: bool) -> None:
    _, weights = encode(random_policy(seed), problem)
    roller = Roller(problem, 1)
    hint = random_hint(problem, seed) if hinted else None
    record = roller.play(weights, SAMPLE, [seed, seed + 7], recorded=True, hint=hint).record
    again = roller.follow(weights, record.order, record.choice, hint=hint).record
    assert np.array_equal(again.order, record.order)
    assert np.array_equal(again.choice, record.choice)
    assert np.array_equal(again.allowed, record.allowed)
    assert np.array_equal(again.features, record.features)
    assert np.isfinite(record.features).all()
    assert record.allowed[np.arange(2)[:, None], np.arange(problem.n_ops), record.choice].all()


def test_recording_changes_nothing() -> None:
    problem = Problem(weighty_graph(), Cluster.uniform(4))
    _, weights = encode(random_policy(), problem)
    roller = Roller(problem, 1)
    plain = roller.play(weights, SAMPLE, range(4))
    recorded = roller.play(weights, SAMPLE, range(4), recorded=True)
    assert plain.record.features.size == 0
    assert np.array_equal(plain.record.order, recorded.record.order)
    assert np.array_equal(plain.record.choice, recorded.record.choice)
    assert np.array_equal(plain.makespans, recorded.makespans)


@pytest.mark.parametrize("threads", [2, 3, 16])
def test_episodes_do_not_depend_on_threads(threads: int) -> None:
    problem = Problem(weighty_graph(), Cluster.load("p100x4"))
    _, weights = encode(random_policy(), problem)
    seeds = [5, 2**40, 0, 17, 5, 99, 123]
    one = Roller(problem, 1).play(weights, SAMPLE, seeds, recorded=True)
    many = Roller(problem, threads).play(weights, SAMPLE, seeds, recorded=True)
    for found, wanted in zip(many.record, one.record, strict=True):
        assert np.array_equal(np.asarray(found), np.asarray(wanted))
    assert np.array_equal(many.makespans, one.makespans)
    assert np.array_equal(one.record.order[0], one.record.order[4])
    assert not np.array_equal(one.record.order[0], one.record.order[3])


@quick
@given(problem=problems(), seed=st.integers(0, 100))
def test_greedy_takes_the_candidate_of_the_highest_logit(problem: Problem, seed: int) -> None:
    _, weights = encode(random_policy(seed), problem)
    episodes = Roller(problem, 1).play(weights, GREEDY, [1, 2])
    assert np.array_equal(episodes.record.order[0], episodes.record.order[1])
    assert np.array_equal(episodes.record.choice[0], episodes.record.choice[1])
    inputs: list[set[int]] = [set() for _ in range(problem.n_ops)]
    for u, v in zip(problem.graph.src.tolist(), problem.graph.dst.tolist(), strict=True):
        inputs[v].add(u)
    left = set(range(problem.n_ops))
    for op in episodes.record.order[0].tolist():
        candidates = {v for v in left if not inputs[v] & left}
        assert op in candidates
        assert weights.logits[op] == max(weights.logits[v] for v in candidates)
        left.remove(op)


def test_a_new_policy_follows_a_hint() -> None:
    problem = Problem(weighty_graph(2, 200), Cluster.uniform(4))
    _, weights = encode(new_policy(0), problem)
    # Of chunks of the order, so that following it costs little.
    hint = make_hint(problem, np.arange(200) // 5 % 4)
    roller = Roller(problem, 1)
    with_it = roller.play(weights, GREEDY, [0], hint=hint).devices(0)
    without = roller.play(weights, GREEDY, [0]).devices(0)
    assert (with_it == hint.devices).mean() > 0.5 > (without == hint.devices).mean()


def test_styles_vary_as_they_say() -> None:
    problem = Problem(weighty_graph(2, 20), Cluster.uniform(4))
    _, weights = encode(random_policy(), problem)
    roller = Roller(problem, 1)
    varied = roller.play(weights, GREEDY, range(2000), spread=2.0).record.style - weights.style
    np.testing.assert_allclose(varied.std(axis=0), 2 * STYLED, atol=0.1)
    np.testing.assert_allclose(varied.mean(axis=0), 0.0, atol=0.2)
    plain = roller.play(weights, GREEDY, [0, 1]).record
    assert (plain.style == weights.style).all()
    assert np.array_equal(plain.choice[0], plain.choice[1])


def test_jitter_is_drawn_alike_for_all_episodes() -> None:
    problem = Problem(weighty_graph(2, 40), Cluster.uniform(4))
    _, weights = encode(random_policy(), problem)
    episodes = Roller(problem, 1).play(weights, GREEDY, [0, 1], jitter=0.1, draws=3)
    assert np.array_equal(episodes.noisy[0], episodes.noisy[1])
    placement = Placement(episodes.devices(0), episodes.priority(0))
    for draw, makespan in enumerate(episodes.noisy[0]):
        assert makespan == simulate(problem, placement, jitter=0.1, seed=draw).makespan
    np.testing.assert_allclose(episodes.costs, episodes.noisy.mean(axis=1))


def test_a_hint_must_suit_the_problem() -> None:
    problem = Problem(weighty_graph(2, 20), Cluster.uniform(4))
    for devices in (np.zeros(19, int), np.full(20, 4), np.full(20, -1)):
        with pytest.raises(PlacementError):
            make_hint(problem, devices)


def test_a_hint_knows_how_far_above_the_bound_it_is() -> None:
    problem = Problem(weighty_graph(2, 20), Cluster.uniform(4))
    alone = make_hint(problem, np.zeros(20, int))
    assert alone.above_bound == pytest.approx(
        np.log(problem.mean_compute.sum() / problem.lower_bound)
    )
    assert make_hint(problem, np.zeros(20, int), problem.lower_bound).above_bound == 0.0


SMALL_GRAPHS = {
    "diamond with a tail": Graph.from_arrays([0, 0, 1, 2], [1, 2, 3, 3], [1.0] * 4, [1.0] * 4),
    "two chains and a loner": Graph.from_arrays([0, 2], [1, 3], [1.0] * 5, [1.0] * 5),
    "no edges": Graph.from_arrays([], [], [1.0] * 4, [1.0] * 4),
}


def chi_square(counts: np.ndarray, wanted: np.ndarray) -> float:
    """Pearson's statistic as a multiple of the 99.99% quantile (Wilson and Hilferty, 1931)."""
    freedom = len(counts) - 1
    quantile = freedom * (1 - 2 / (9 * freedom) + 3.719 * np.sqrt(2 / (9 * freedom))) ** 3
    return float(((counts - wanted) ** 2 / wanted).sum() / quantile)


@pytest.mark.parametrize("name", SMALL_GRAPHS)
@pytest.mark.parametrize("spread", [0.3, 2.0])
def test_the_race_is_the_sequential_softmax(name: str, spread: float) -> None:
    graph = SMALL_GRAPHS[name]
    problem = Problem(graph, Cluster.uniform(2))
    rng = np.random.default_rng(5)
    logits = rng.normal(0, spread, graph.n_ops)
    _, weights = encode(random_policy(), problem)
    weights = weights._replace(logits=logits)
    n_episodes = 30_000
    episodes = Roller(problem).play(weights, SAMPLE, range(n_episodes))
    counted = Counter(map(tuple, episodes.record.order.tolist()))
    orders = topological_orders(graph)
    inputs = [
        {int(u) for u, v in zip(graph.src, graph.dst, strict=True) if v == op}
        for op in range(graph.n_ops)
    ]
    wanted = []
    for order in orders:
        probability = 1.0
        for step, op in enumerate(order):
            done = set(order[:step])
            candidates = [v for v in range(graph.n_ops) if v not in done and inputs[v] <= done]
            probability *= np.exp(logits[op]) / np.exp(logits[candidates]).sum()
        wanted.append(probability)
    assert sum(wanted) == pytest.approx(1.0)
    assert set(counted) <= {tuple(order) for order in orders}
    counts = np.array([counted[tuple(order)] for order in orders])
    assert chi_square(counts, np.array(wanted) * n_episodes) < 1.0


def test_devices_are_drawn_from_the_softmax_over_the_scores() -> None:
    devices = tuple(Device(f"d{d}", slowdown=1.0 + d / 4) for d in range(4))
    cluster = Cluster("mixed", devices, fully_connected(4))
    problem = Problem(Graph.from_arrays([], [], [1.0], [1.0]), cluster)
    policy = random_policy(4)
    heads, weights = encode(policy, problem)
    episodes = Roller(problem).play(weights, SAMPLE, range(20_000), recorded=True)
    with torch.no_grad():
        chances = log_probabilities(policy, heads, problem, episodes.record).place[0, 0].exp()
    assert 0.02 < chances.min() < chances.max() < 0.9
    counts = np.bincount(episodes.record.choice[:, 0], minlength=4)
    assert chi_square(counts, chances.numpy() * 20_000) < 1.0


def test_every_problem_runs_the_same_compiled_code() -> None:
    from doppler.policy.rollout import _episodes

    policy = random_policy()
    rng = np.random.default_rng(0)
    for graph, cluster in (
        (weighty_graph(), Cluster.uniform(2)),
        (random_graph(rng, 9, param_bytes=np.ones(9)), Cluster.load("p100x4")),
        (random_graph(rng, 9, pinned=[0] * 9), Cluster.uniform(3, memory=1e12)),
    ):
        problem = Problem(graph, cluster)
        _, weights = encode(policy, problem)
        Roller(problem, 1).play(weights, GREEDY, [0])
        Roller(problem, 1).play(weights, SAMPLE, [0], recorded=True, runtime="fifo")
    assert len(_episodes.signatures) == 1  # type: ignore[attr-defined]
