"""What identifies a training run."""

from __future__ import annotations

import pytest
import torch
from training_cases import mixed_cases, small_case, small_policy, weights_of

from doppler.errors import DopplerError
from doppler.training.case import TrainingCase, run_digest


def test_a_new_policy_depends_on_its_seed_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    policy = small_policy(1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert weights_of(policy) == weights_of(small_policy(1))
    assert weights_of(policy) != weights_of(small_policy(2))


def test_the_digest_knows_what_a_run_depends_on() -> None:
    cases = mixed_cases()
    digests = [
        run_digest(small_policy(), cases, {"seed": 0}),
        run_digest(small_policy(1), cases, {"seed": 0}),
        run_digest(small_policy(), cases, {"seed": 1}),
        run_digest(small_policy(), cases[::-1], {"seed": 0}),
        run_digest(small_policy(), cases, {"seed": 0}, b"traces"),
        run_digest(small_policy(), [TrainingCase("renamed", cases[0].problem)], {"seed": 0}),
    ]
    assert len(set(digests)) == len(digests)


def test_the_digest_does_not_know_the_number_of_threads() -> None:
    found = {run_digest(small_policy(), mixed_cases(threads), {}) for threads in (1, 2)}
    assert len(found) == 1


def test_no_case_or_two_of_one_name() -> None:
    with pytest.raises(DopplerError, match="there is no problem to train on; give at least one"):
        run_digest(small_policy(), [], {})
    twice = [small_case(0), small_case(1), small_case(0)]
    with pytest.raises(DopplerError, match="2 training cases are named 'graph0@equal3'; name each"):
        run_digest(small_policy(), twice, {})
