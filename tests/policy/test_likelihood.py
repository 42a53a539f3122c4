"""Log-probabilities of whole episodes against the softmax of every single step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policies import encode, random_policy, topological_orders
from random_problems import problems, weighty_graph

from doppler import Cluster, Graph, Problem
from doppler.policy.likelihood import entry_steps, log_probabilities, select_log_probabilities
from doppler.policy.network import policy_inputs
from doppler.policy.rollout import SAMPLE, Roller

quick = settings(max_examples=40)


def select_slowly(logits: torch.Tensor, graph: Graph, order: list[int]) -> torch.Tensor:
    """Step by step: the softmax over the ops whose producers are chosen."""
    inputs: list[set[int]] = [set() for _ in range(graph.n_ops)]
    for u, v in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
        inputs[v].add(u)
    done: set[int] = set()
    steps = []
    for op in order:
        candidates = [v for v in range(graph.n_ops) if v not in done and inputs[v] <= done]
        steps.append(logits[op] - torch.logsumexp(logits[candidates], 0))
        done.add(op)
    return torch.stack(steps)


def sampled_orders(problem: Problem, count: int, seed: int = 0) -> np.ndarray:
    _, weights = encode(random_policy(seed), problem)
    return Roller(problem, 1).play(weights, SAMPLE, range(count)).record.order


@quick
@given(
    problem=problems(memory=False, max_devices=2),
    seed=st.integers(0, 1000),
    spread=st.sampled_from([0.0, 1.0, 3.0, 10.0]),
)
def test_every_step_is_the_softmax_over_the_candidates(
    problem: Problem, seed: int, spread: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = torch.tensor(rng.uniform(-spread, spread, problem.n_ops), requires_grad=True)
    orders = sampled_orders(problem, 3, seed)
    found = select_log_probabilities(logits, problem.arrays, orders)
    wanted = torch.stack([select_slowly(logits, problem.graph, order) for order in orders.tolist()])
    assert found.dtype == torch.float64
    # At the ends of the range one running sum holds weights of 1e4 and of 1e-5.
    exact = 1e-9 if spread < 10 else 1e-6
    torch.testing.assert_close(found, wanted, rtol=exact, atol=exact)
    # Weighted, so that no cancellation over the steps hides an error.
    by_step = torch.tensor(rng.normal(size=found.shape))
    (gradient,) = torch.autograd.grad((found * by_step).sum(), logits)
    (slow,) = torch.autograd.grad((wanted * by_step).sum(), logits)
    torch.testing.assert_close(gradient, slow, rtol=10 * exact, atol=10 * exact)


@pytest.mark.parametrize(
    "graph",
    [
        Graph.from_arrays([0, 0, 1, 2], [1, 2, 3, 3], [1.0] * 5, [1.0] * 5),
        Graph.from_arrays([], [], [1.0] * 5, [1.0] * 5),
        Graph.from_arrays([0, 1, 2, 3], [1, 2, 3, 4], [1.0] * 5, [1.0] * 5),
    ],
    ids=["diamond and loner", "no edges", "chain"],
)
def test_probabilities_of_all_orders_sum_to_one(graph: Graph) -> None:
    problem = Problem(graph, Cluster.uniform(2))
    logits = torch.tensor([0.3, -7.0, 9.0, 1.0, -0.2], dtype=torch.float64)
    orders = np.array(topological_orders(graph), np.int32)
    total = select_log_probabilities(logits, problem.arrays, orders).sum(dim=1).exp().sum()
    assert float(total) == pytest.approx(1.0, abs=1e-9)


def test_gradient_against_finite_differences() -> None:
    problem = Problem(weighty_graph(2, 8), Cluster.uniform(2))
    orders = sampled_orders(problem, 2)
    logits = torch.tensor(np.linspace(-1.5, 2.0, 8), requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda value: select_log_probabilities(value, problem.arrays, orders), (logits,)
    )


def test_extreme_logits_stay_finite_over_long_episodes() -> None:
    graph = weighty_graph(0, 3000)
    problem = Problem(graph, Cluster.uniform(2))
    logits = torch.where(torch.arange(3000) % 2 == 0, 10.0, -10.0).requires_grad_()
    found = select_log_probabilities(logits, problem.arrays, sampled_orders(problem, 2))
    assert bool(torch.isfinite(found).all())
    assert bool((found <= 1e-9).all())
    (gradient,) = torch.autograd.grad(found.sum(), logits)
    assert bool(torch.isfinite(gradient).all())


@quick
@given(problem=problems(memory=False, max_devices=2))
def test_entry_is_the_step_after_the_last_producer(problem: Problem) -> None:
    orders = sampled_orders(problem, 2)
    entered = np.empty_like(orders)
    entry_steps(problem.arrays.pred_ptr, problem.arrays.pred, orders, entered)
    edges = list(zip(problem.graph.src.tolist(), problem.graph.dst.tolist(), strict=True))
    for order, steps in zip(orders.tolist(), entered.tolist(), strict=True):
        for position, op in enumerate(order):
            assert steps[position] == max(
                (order.index(u) + 1 for u, v in edges if v == op), default=0
            )
            assert steps[position] <= position


@quick
@given(problem=problems(), seed=st.integers(0, 100))
def test_devices_form_a_distribution_over_what_is_allowed(problem: Problem, seed: int) -> None:
    policy = random_policy(seed)
    heads, weights = encode(policy, problem)
    record = Roller(problem, 1).play(weights, SAMPLE, range(3), recorded=True).record
    with torch.no_grad():
        place = log_probabilities(policy, heads, problem, record).place
    assert np.array_equal(torch.isfinite(place).numpy(), record.allowed)
    torch.testing.assert_close(place.exp().sum(-1), torch.ones(3, problem.n_ops))


def test_every_weight_learns() -> None:
    problem = Problem(weighty_graph(), Cluster.load("p100x4"))
    policy = random_policy()
    _, weights = encode(policy, problem)
    roller = Roller(problem, 1)
    record = roller.play(weights, SAMPLE, range(4), recorded=True, spread=1.0).record
    steps = log_probabilities(policy, policy(policy_inputs(problem)), problem, record)
    choice = torch.from_numpy(record.choice.astype(np.int64)).unsqueeze(-1)
    advantage = torch.tensor([1.0, -2.0, 0.5, 0.5]).unsqueeze(-1)
    chosen = steps.select + steps.place.gather(-1, choice).squeeze(-1)
    ((advantage * chosen).sum() + (advantage[:, 0] * steps.style).sum()).backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert bool(torch.isfinite(parameter.grad).all()), name
        assert float(parameter.grad.abs().sum()) > 0, name


def test_pinned_ops_do_not_spoil_the_gradient() -> None:
    graph = weighty_graph(0, 12)
    pinned = Graph.build(
        12, graph.src, graph.dst, flops=[1e12] * 12, output_bytes=[1e9] * 12, pinned=[0, 1] * 6
    )
    problem = Problem(pinned, Cluster.uniform(3))
    policy = random_policy()
    _, weights = encode(policy, problem)
    record = Roller(problem, 1).play(weights, SAMPLE, [0], recorded=True).record
    steps = log_probabilities(policy, policy(policy_inputs(problem)), problem, record)
    choice = torch.from_numpy(record.choice.astype(np.int64)).unsqueeze(-1)
    taken = steps.place.gather(-1, choice)
    assert bool((taken == 0).all())
    (taken.sum() + steps.select.sum()).backward()
    assert all(
        bool(torch.isfinite(parameter.grad).all())
        for parameter in policy.parameters()
        if parameter.grad is not None
    )


def test_batches_are_independent() -> None:
    problem = Problem(weighty_graph(), Cluster.uniform(4))
    policy = random_policy()
    heads, weights = encode(policy, problem)
    roller = Roller(problem, 1)
    whole = roller.play(weights, SAMPLE, range(3), recorded=True).record
    with torch.no_grad():
        together = log_probabilities(policy, heads, problem, whole)
        for index in range(3):
            one = type(whole)(*(part[index : index + 1] for part in whole))  # type: ignore[arg-type]
            alone = log_probabilities(policy, heads, problem, one)
            torch.testing.assert_close(alone.select[0], together.select[index])
            torch.testing.assert_close(alone.place[0], together.place[index])
