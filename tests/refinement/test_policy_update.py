"""The likelihood is that of the episode drawn, and updates go where they should."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from production import SMALL, believed, really

from doppler import Problem, place, simulate
from doppler.policy.rollout import SAMPLE
from doppler.refinement.policy_update import (
    PolicyLearner,
    Trajectory,
    drawn_order,
    start_order,
)
from doppler.refinement.settings import PolicyUpdateSettings
from doppler.training.case import new_policy


@pytest.fixture(scope="module")
def problem() -> Problem:
    return believed()


@pytest.fixture
def learner(problem: Problem):
    found = PolicyLearner(new_policy(0, sizes=SMALL), problem)
    yield found
    found.close()


def drawn(learner: PolicyLearner, count: int, costs: list[float]) -> list[Trajectory]:
    """Episodes of the policy, as they are remembered when they have run."""
    episodes = learner.play(SAMPLE, list(range(count)), "priority")
    steps = learner.log_probabilities(episodes.record)
    found = []
    for index in range(count):
        devices, priority = episodes.devices(index), episodes.priority(index)
        order = np.argsort(priority).astype(np.int32)
        each = Trajectory(learner.problem, order, devices[order], costs[index], steps[index])
        found.append(each)
    return found


def likelihoods(learner: PolicyLearner, batch: list[Trajectory]) -> np.ndarray:
    """Log-likelihood of each episode by now, shape [episodes]."""
    with torch.no_grad():
        weights = learner.policy.weights(learner.policy(learner._case.inputs))
    order = np.stack([each.order for each in batch])
    choice = np.stack([each.choice for each in batch])
    record = learner._case.roller.follow(weights, order, choice).record
    return learner.log_probabilities(record).sum(axis=1)


def test_the_likelihood_is_the_product_of_what_both_policies_drew(
    problem: Problem, learner: PolicyLearner
) -> None:
    episodes = learner.play(SAMPLE, [7], "priority")
    steps = learner.log_probabilities(episodes.record)[0]
    order, choice = episodes.record.order[0], episodes.record.choice[0]
    arrays = problem.arrays
    with torch.no_grad():
        heads = learner.policy(learner._case.inputs)
        logits = heads.logits.double().numpy()
        features = torch.from_numpy(episodes.record.features[0])
        code = heads.code.numpy()
        total, members = np.zeros((problem.n_devices, code.shape[1])), np.zeros(problem.n_devices)
        placed: set[int] = set()
        for step, op in enumerate(order.tolist()):
            # SEL: the softmax over the ops whose producers are all placed.
            ready = [
                other
                for other in range(problem.n_ops)
                if other not in placed
                and placed.issuperset(
                    arrays.pred[arrays.pred_ptr[other] : arrays.pred_ptr[other + 1]].tolist()
                )
            ]
            expected = logits[op] - np.log(np.exp(logits[ready]).sum())
            # PLC: the softmax over the devices that it may choose from.
            state = torch.from_numpy(total / (1.0 + members)[:, None]).float()
            score = learner.policy.score(
                heads,
                torch.tensor([op]),
                features[step][None],
                state[None],
                torch.from_numpy(np.exp(episodes.record.style[0])).float(),
            )[0]
            score = score.masked_fill(
                ~torch.from_numpy(episodes.record.allowed[0, step]), -torch.inf
            )
            expected += float(torch.log_softmax(score, dim=-1)[choice[step]])
            assert steps[step] == pytest.approx(expected, abs=2e-4)
            placed.add(op)
            total[choice[step]] += code[op]
            members[choice[step]] += 1


def test_the_order_that_was_drawn_outlives_being_a_placement(learner: PolicyLearner) -> None:
    episodes = learner.play(SAMPLE, [3], "priority")
    from doppler import Placement

    placement = Placement(episodes.devices(0), episodes.priority(0))
    assert (drawn_order(placement) == episodes.record.order[0]).all()


def test_fast_episodes_become_likelier_and_slow_ones_less(learner: PolicyLearner) -> None:
    batch = drawn(learner, 6, [0.3, 0.2, 0.1, -0.1, -0.2, -0.3])
    before = likelihoods(learner, batch)
    assert learner.from_runs(batch)
    change = likelihoods(learner, batch) - before
    assert change[3:].mean() > 0 > change[:3].mean()
    assert change[5] > 0 > change[0]


def test_what_others_found_is_imitated_only_if_it_was_faster(
    problem: Problem, learner: PolicyLearner
) -> None:
    placement = place(problem, "critical_path", budget=0.0)
    order = start_order(problem, placement, "priority")
    found = Trajectory(problem, order, placement.devices[order], 0.1, None)
    before = likelihoods(learner, [found])
    assert not learner.from_runs([found])
    assert likelihoods(learner, [found]) == before
    assert learner.from_runs([found._replace(cost=-0.1)])
    assert likelihoods(learner, [found]) > before


def test_choices_that_have_become_likely_enough_are_left_alone(learner: PolicyLearner) -> None:
    """The ratio of probabilities is clipped: no step goes on once the policy has moved that far."""
    batch = drawn(learner, 4, [0.2, 0.1, -0.1, -0.2])
    gone = np.float32(2.0 * PolicyUpdateSettings().clip)
    away = [
        each._replace(log_probabilities=each.log_probabilities + np.sign(each.cost) * gone)
        for each in batch
    ]
    weights = {name: each.clone() for name, each in learner.policy.state_dict().items()}
    learner.from_runs(away)
    assert all((learner.policy.state_dict()[name] == each).all() for name, each in weights.items())


def test_an_episode_counts_by_the_problem_that_the_policy_saw(
    problem: Problem, learner: PolicyLearner
) -> None:
    batch = drawn(learner, 4, [0.2, 0.1, -0.1, -0.2])
    both = []
    for seen in (problem, really(problem)):
        other = PolicyLearner(new_policy(0, sizes=SMALL), seen)
        other.from_runs(batch)
        both.append(other.policy.state_dict())
        other.close()
    assert all((both[0][name] == both[1][name]).all() for name in both[0])


def test_the_order_to_imitate_is_topological_and_runs_the_same(problem: Problem) -> None:
    placement = place(problem, budget=0.1)
    order = start_order(problem, placement, "priority")
    rank = np.argsort(order).astype(np.int32)
    assert (rank[problem.graph.src] < rank[problem.graph.dst]).all()
    again = dataclasses.replace(placement, priority=rank)
    assert simulate(problem, again).makespan == simulate(problem, placement).makespan
