"""Stage II: its gradient is that of the expected makespan; what it learns and keeps."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from random_problems import any_problem, equal_cluster
from training_cases import Rows, blank_policy, mixed_cases, small_case, small_policy, weights_of

from doppler import Graph, Problem, simulate, simulate_many
from doppler.policy.frozen import SCORE_SCALE
from doppler.policy.likelihood import LogProbabilities, log_probabilities
from doppler.policy.network import DualPolicy
from doppler.policy.rollout import SAMPLE, Record
from doppler.simulator import check_memory
from doppler.torch_threads import one_torch_thread
from doppler.training import gradient as module
from doppler.training.case import TrainingCase
from doppler.training.gradient import Gradient, taken
from doppler.training.incumbent import Incumbents
from doppler.training.reinforce import ReinforceSettings, reinforce


def run(
    policy: DualPolicy,
    cases: list[TrainingCase],
    updates: int = 1,
    episodes: int = 8,
    threads: int = 1,
    entropy: float = 0.0,
    runtime: Any = "priority",
    **schedule: Any,
) -> tuple[Rows, Incumbents]:
    rows = Rows()
    settings = ReinforceSettings(
        updates=updates,
        log_every=1,
        episodes=episodes,
        entropy=entropy,
        runtime=runtime,
        **schedule,
    )
    return rows, reinforce(policy, cases, settings, tracker=rows, threads=threads)


def tiny_case() -> TrainingCase:
    """Five orders times 16 placements: all episodes can be listed."""
    graph = Graph.from_arrays([0, 1, 1], [2, 2, 3], [1.0, 2.5, 1.7, 3.1], [0.6, 1.1, 0.0, 0.0])
    return TrainingCase("tiny", Problem(graph, equal_cluster(2)), 1)


def all_episodes(case: TrainingCase) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Order, choice and makespan of every episode."""
    n_ops, edges = case.problem.n_ops, case.problem.graph
    orders = [
        order
        for order in itertools.permutations(range(n_ops))
        if all(order.index(u) < order.index(v) for u, v in zip(edges.src, edges.dst, strict=True))
    ]
    choices = list(itertools.product(range(case.problem.n_devices), repeat=n_ops))
    listed = list(itertools.product(orders, choices))
    order = np.array([each for each, _ in listed], np.int32)
    choice = np.array([each for _, each in listed], np.int32)
    devices, rank = np.empty_like(choice), np.empty_like(order)
    np.put_along_axis(devices, order, choice, axis=1)
    np.put_along_axis(rank, order, np.arange(n_ops, dtype=np.int32)[None, :], axis=1)
    return order, choice, simulate_many(case.problem, devices, rank, threads=1)


def flat(gradients: list[torch.Tensor]) -> np.ndarray:
    return torch.cat([each.flatten() for each in gradients]).double().numpy()


def exact_gradient(policy: DualPolicy, case: TrainingCase) -> np.ndarray:
    """Of the expected makespan, by listing all episodes."""
    order, choice, makespans = all_episodes(case)
    heads = policy(case.inputs)
    record = case.roller.follow(policy.weights(heads), order, choice).record
    likely = taken(log_probabilities(policy, heads, case.problem, record), record).sum(dim=1).exp()
    assert float(likely.detach().sum()) == pytest.approx(1.0, abs=1e-5)
    expected = (likely * torch.from_numpy(makespans)).sum()
    return flat(
        list(torch.autograd.grad(expected, list(policy.parameters()), materialize_grads=True))
    )


def test_the_estimate_agrees_with_the_exact_gradient_of_the_expected_makespan() -> None:
    case, policy = tiny_case(), blank_policy(2)
    exact = exact_gradient(policy, case)
    batches, size = 60, 200
    gradient = Gradient(policy, 1)
    found = []
    with one_torch_thread():
        for batch in range(batches):
            seeds = range(batch * size, (batch + 1) * size)
            heads = policy(case.inputs)
            weights = policy.weights(heads)
            episodes = case.roller.play(weights, SAMPLE, seeds, recorded=True)
            # With the batch as its own baseline, one less than its size makes it unbiased.
            above = torch.from_numpy(episodes.makespans - episodes.makespans.mean()) / (size - 1)

            def objective(
                steps: LogProbabilities, record: Record, chunk: slice, above: torch.Tensor = above
            ) -> tuple[torch.Tensor, dict[str, float]]:
                return (above[chunk] * taken(steps, record).sum(dim=1)).sum(), {}

            policy.zero_grad()
            gradient.add(heads, case.problem, episodes.record, objective)
            found.append(flat([each.grad for each in policy.parameters() if each.grad is not None]))
    gradient.close()
    estimates = np.stack(found)
    error = estimates.std(axis=0, ddof=1) / np.sqrt(batches)
    assert np.abs(exact).max() > 20 * np.median(error)
    # Single precision rounds what cancels out to a share of the largest.
    rounding = 1e-6 * np.abs(exact).max()
    assert (np.abs(estimates.mean(axis=0) - exact) <= 5 * error + rounding).all()


def test_an_update_goes_against_the_exact_gradient() -> None:
    """Adam's first step is the learning rate times the sign of the gradient."""
    case, policy = tiny_case(), blank_policy(2)
    exact = exact_gradient(policy, case)
    before = flat([each.detach().clone() for each in policy.parameters()])
    run(policy, [case], 1, episodes=20_000)
    moved = flat([each.detach() for each in policy.parameters()]) - before
    steep = np.abs(exact) > 0.1 * np.abs(exact).max()
    assert steep.sum() > 15
    assert (np.sign(moved[steep]) == -np.sign(exact[steep])).all()


def test_training_shortens_the_makespan() -> None:
    case = small_case(3, 24, 3)
    rows, incumbents = run(
        blank_policy(), [case], 120, 16, learning_rate=1e-2, final_learning_rate=1e-3
    )
    ratios = rows.column("ratio_to_bound")
    assert np.mean(ratios[-10:]) < 0.9 * np.mean(ratios[:10])
    assert incumbents.best[case.name].makespan <= min(ratios) * case.problem.lower_bound


def test_several_problems_and_clusters_in_one_run() -> None:
    cases = mixed_cases()
    seen: dict[str, list[float]] = {case.name: [] for case in cases}
    found: list[Incumbents] = []

    def watch(done: int, total: int, metrics: Mapping[str, float]) -> None:
        assert total == 30
        assert metrics["ratio_to_incumbent"] >= 1.0
        assert metrics["ratio_to_bound"] >= 1.0

    settings = ReinforceSettings(updates=30, episodes=4)
    for updates in (3, 9, 30):
        settings = ReinforceSettings(
            updates=updates, learning_rate=1e-3, final_learning_rate=1e-3, episodes=4
        )
        progress = watch if updates == 30 else None
        found.append(reinforce(small_policy(), cases, settings, progress=progress, threads=1))
        for name, best in found[-1].best.items():
            seen[name].append(best.makespan)
    for case in cases:
        # A longer run of the same seed begins like a shorter one.
        assert len(seen[case.name]) == 3
        assert seen[case.name] == sorted(seen[case.name], reverse=True)
        best = found[-1].best[case.name]
        assert simulate(case.problem, best.placement).makespan == best.makespan
        assert found[-1].episodes[case.name] == 40
        assert 1 <= best.episode <= 40


def test_the_run_time_may_ignore_the_order() -> None:
    case = small_case(4, 16, 2)
    _, incumbents = run(small_policy(), [case], 4, runtime="fifo")
    best = incumbents.best[case.name]
    fifo = type(best.placement)(best.devices)
    assert simulate(case.problem, fifo).makespan == best.makespan


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_FLOATS", 500)
    found = []
    for threads in (1, 2):
        policy = small_policy()
        rows, incumbents = run(policy, mixed_cases(threads), 9, threads=threads, entropy=0.1)
        found.append((weights_of(policy), rows.rows, incumbents.header()))
    assert found[0] == found[1]


def test_the_same_seed_repeats_and_another_does_not() -> None:
    def train(seed: int) -> dict[str, bytes]:
        policy = small_policy()
        settings = ReinforceSettings(updates=3, episodes=4)
        reinforce(policy, mixed_cases(), settings, seed=seed, threads=1)
        return weights_of(policy)

    assert train(0) == train(0)
    assert train(0) != train(1)


def test_entropy_keeps_choices_even() -> None:
    """Where all devices are the same to an op, only the entropy's weight pulls."""
    graph = Graph.from_arrays([0, 1], [1, 2], [1.0] * 3, [0.0] * 3)
    case = TrainingCase("chain", Problem(graph, equal_cluster(2)), 1)
    policy = small_policy()
    with torch.no_grad():
        policy.direct.weight.fill_(2.0 / SCORE_SCALE)
    rows, _ = run(policy, [case], 60, entropy=1.0, learning_rate=3e-2, final_learning_rate=3e-2)
    entropy = rows.column("place_entropy")
    assert entropy[-1] > entropy[0] + 0.05
    assert entropy[-1] == pytest.approx(np.log(2), abs=0.02)


@pytest.mark.parametrize(("n_ops", "n_devices"), [(1, 1), (6, 1)])
def test_equal_episodes_teach_nothing(n_ops: int, n_devices: int) -> None:
    """On one device every work-conserving episode takes as long."""
    case, policy = small_case(0, n_ops, n_devices), small_policy()
    rows, incumbents = run(policy, [case], 3)
    assert rows.column("gradient_norm") == [0.0, 0.0, 0.0]
    assert weights_of(policy) == weights_of(small_policy())
    total = float(case.problem.arrays.compute.sum())
    assert incumbents.best[case.name].makespan == pytest.approx(total)
    assert incumbents.best[case.name].episode == 1


def test_one_op_on_several_devices() -> None:
    rows, incumbents = run(small_policy(), [small_case(0, 1, 4)], 3)
    assert all(np.isfinite(list(row.values())).all() for _, row in rows.rows)
    assert len(incumbents.best) == 1


@pytest.mark.parametrize("seed", range(8))
def test_hard_problems_leave_finite_weights_and_valid_incumbents(seed: int) -> None:
    case, policy = TrainingCase("hard", any_problem(seed), 1), small_policy()
    rows, incumbents = run(policy, [case], 4, entropy=0.01)
    assert all(np.isfinite(list(row.values())).all() for _, row in rows.rows)
    assert all(bool(torch.isfinite(each).all()) for each in policy.parameters())
    for best in incumbents.best.values():
        check_memory(case.problem, best.placement)
        assert simulate(case.problem, best.placement).makespan == best.makespan


def packing_case() -> TrainingCase:
    """Parameters of 6, 6, 4 and 4 GB on two devices of 10 GB: two small ones together overflow."""
    graph = Graph.build(
        4,
        [],
        [],
        flops=[1e12, 1e12, 3e12, 3e12],
        output_bytes=[0.0] * 4,
        param_bytes=[6e9, 6e9, 4e9, 4e9],
    )
    return TrainingCase("packing", Problem(graph, equal_cluster(2, memory=10e9)), 1)


def test_overflow_is_unlearned_and_never_kept() -> None:
    case, policy = packing_case(), blank_policy()

    def overflow() -> float:
        weights = policy.weights(policy(case.inputs))
        return float(case.roller.play(weights, SAMPLE, range(200)).overflow.mean())

    before = overflow()
    assert before > 0.02
    _, incumbents = run(policy, [case], 80, 16, learning_rate=1e-2, final_learning_rate=1e-2)
    assert overflow() < 0.2 * before
    check_memory(case.problem, incumbents.best["packing"].placement)


def test_what_can_never_fit_has_no_incumbent() -> None:
    graph = Graph.build(
        3, [], [], flops=[1e12] * 3, output_bytes=[0.0] * 3, param_bytes=[6e9, 6e9, 6e9]
    )
    case = TrainingCase("full", Problem(graph, equal_cluster(2, memory=10e9)), 1)
    rows, incumbents = run(small_policy(), [case], 3)
    assert not incumbents.best
    assert incumbents.episodes == {"full": 24}
    assert all(np.isfinite(list(row.values())).all() for _, row in rows.rows)


def test_an_update_may_play_several_cases() -> None:
    cases = mixed_cases()
    settings = ReinforceSettings(updates=3, episodes=4, cases=2)
    found = reinforce(small_policy(), cases, settings, threads=1)
    # Six turns of three cases.
    assert found.episodes == {case.name: 8 for case in cases}


def test_an_update_of_several_cases_goes_along_the_mean_of_their_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, sums = small_case(3, 12, 3), list[Any]()
    add = Gradient.add

    def spy(self: Gradient, *parts: Any) -> dict[str, float]:
        before = [0.0 if each.grad is None else each.grad.clone() for each in parameters]
        metrics = add(self, *parts)
        sums.append([each.grad - past for each, past in zip(parameters, before, strict=True)])
        return metrics

    monkeypatch.setattr(Gradient, "add", spy)
    for count in (1, 2):
        policy = blank_policy()
        parameters = list(policy.parameters())
        settings = ReinforceSettings(updates=1, episodes=8, cases=count)
        reinforce(policy, [case], settings, threads=1)
    alone, first, second = (flat(parts) for parts in sums)
    # The first turn of both runs draws the same episodes; of two cases, each counts half.
    np.testing.assert_allclose(2 * first, alone, rtol=1e-4, atol=1e-7)
    assert np.abs(second).max() > 0


@pytest.mark.parametrize("joins", [False, True])
def test_the_incumbent_joins_the_batch_on_request(
    joins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, policy = small_case(3, 24, 3), blank_policy()
    rows: list[tuple[float, list[int], list[int]]] = []
    add = Gradient.add

    def spy(self: Gradient, heads: Any, problem: Any, record: Record, objective: Any) -> Any:
        for index in range(len(record.order)):
            chunk = slice(index, index + 1)
            part = record.part(chunk)
            loss, _ = objective(log_probabilities(policy, heads, problem, part), part, chunk)
            rows.append((loss.item(), part.order[0].tolist(), part.choice[0].tolist()))
        return add(self, heads, problem, record, objective)

    monkeypatch.setattr(Gradient, "add", spy)
    settings = ReinforceSettings(updates=1, episodes=8, self_imitation=joins)
    best = reinforce(policy, [case], settings, threads=1).best[case.name]
    assert len(rows) == (9 if joins else 8)
    # After one update the incumbent is an episode of that batch, and counts as that does.
    if joins:
        assert rows[-1][1:] == rows[best.episode - 1][1:]
        assert rows[-1][0] == pytest.approx(rows[best.episode - 1][0], rel=1e-5)
        assert rows[-1][0] != 0.0
