"""The gradient by chunks against one backward pass over the whole batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from random_problems import any_problem
from training_cases import mixed_cases, small_case, small_policy

from doppler.policy.likelihood import LogProbabilities, log_probabilities
from doppler.policy.network import DualPolicy
from doppler.policy.rollout import SAMPLE, Record
from doppler.torch_threads import one_torch_thread
from doppler.training import gradient as module
from doppler.training.case import TrainingCase
from doppler.training.gradient import Gradient, taken

EPISODES = 7
ADVANTAGE = torch.linspace(-1.0, 2.0, EPISODES, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_torch_thread():
        yield


def objective(
    found: LogProbabilities, record: Record, chunk: slice
) -> tuple[torch.Tensor, dict[str, float]]:
    value = (ADVANTAGE[chunk] * taken(found, record).sum(dim=1)).sum()
    return value, {"value": value.item(), "episodes": float(len(record.order))}


def gradients(policy: DualPolicy) -> dict[str, torch.Tensor]:
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in policy.named_parameters()
    }


def played(policy: DualPolicy, case: TrainingCase) -> Record:
    weights = policy.weights(policy(case.inputs))
    return case.roller.play(weights, SAMPLE, range(EPISODES), recorded=True).record


def by_chunks(
    policy: DualPolicy, case: TrainingCase, record: Record, threads: int = 1
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    policy.zero_grad()
    gradient = Gradient(policy, threads)
    try:
        metrics = gradient.add(policy(case.inputs), case.problem, record, objective)
    finally:
        gradient.close()
    return gradients(policy), metrics


def whole(
    policy: DualPolicy, case: TrainingCase, record: Record
) -> tuple[dict[str, torch.Tensor], float]:
    policy.zero_grad()
    found = log_probabilities(policy, policy(case.inputs), case.problem, record)
    value, metrics = objective(found, record, slice(None))
    value.backward()
    return gradients(policy), metrics["value"]


def chunk_of(monkeypatch: pytest.MonkeyPatch, policy: DualPolicy, case: TrainingCase, n: int):
    floats = case.problem.n_ops * case.problem.n_devices * policy.sizes.hidden
    monkeypatch.setattr(module, "CHUNK_FLOATS", n * floats)


CASES = [*mixed_cases(), *(TrainingCase("hard", any_problem(s), 1) for s in (1, 2, 3, 4, 5))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("chunk", [0, 1, 3, 7, 100])
def test_chunks_add_up_to_the_whole(
    monkeypatch: pytest.MonkeyPatch, case: TrainingCase, chunk: int
) -> None:
    policy = small_policy()
    record = played(policy, case)
    wanted, value = whole(policy, case, record)
    chunk_of(monkeypatch, policy, case, chunk)
    found, metrics = by_chunks(policy, case, record)
    assert metrics["value"] == pytest.approx(value, rel=1e-6, abs=1e-6)
    assert metrics["episodes"] == EPISODES
    scale = max(float(each.abs().max()) for each in wanted.values())
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-5 * max(scale, 1.0))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_number_of_threads_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch, case: TrainingCase
) -> None:
    policy = small_policy()
    record = played(policy, case)
    chunk_of(monkeypatch, policy, case, 2)
    alone, metrics = by_chunks(policy, case, record)
    for threads in (2, 3):
        together, found = by_chunks(policy, case, record, threads)
        assert found == metrics
        for name, gradient in alone.items():
            assert gradient.numpy().tobytes() == together[name].numpy().tobytes(), name


def test_gradients_accumulate() -> None:
    case, policy = small_case(), small_policy()
    record = played(policy, case)
    once, _ = by_chunks(policy, case, record)
    gradient = Gradient(policy, 1)
    gradient.add(policy(case.inputs), case.problem, record, objective)
    gradient.close()
    for name, twice in gradients(policy).items():
        torch.testing.assert_close(twice, 2 * once[name])


def test_an_error_in_the_objective_comes_through() -> None:
    case, policy = small_case(), small_policy()

    def fail(*_: object) -> tuple[torch.Tensor, dict[str, float]]:
        raise ArithmeticError("no objective")

    gradient = Gradient(policy, 2)
    with pytest.raises(ArithmeticError, match="no objective"):
        gradient.add(policy(case.inputs), case.problem, played(policy, case), fail)
    gradient.close()


def test_taken_is_what_was_chosen() -> None:
    case, policy = small_case(), small_policy()
    record = played(policy, case)
    with torch.no_grad():
        found = log_probabilities(policy, policy(case.inputs), case.problem, record)
    place = np.take_along_axis(found.place.numpy(), record.choice[..., None].astype(int), -1)
    assert taken(found, record).numpy() == pytest.approx(found.select.numpy() + place[..., 0])
