"""The policy without torch against the network that learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policies import random_hint, random_policy
from random_problems import problems, weighty_graph

from doppler import Cluster, Problem
from doppler.policy.frozen import Sizes
from doppler.policy.network import DualPolicy, policy_inputs


@settings(max_examples=40)
@given(
    problem=problems(),
    seed=st.integers(0, 9),
    features=st.sampled_from(["full", "paper"]),
    hinted=st.booleans(),
)
def test_it_weighs_as_the_network_does(
    problem: Problem, seed: int, features: str, hinted: bool
) -> None:
    policy = random_policy(seed, features)
    hint = random_hint(problem, seed) if hinted else None
    with torch.no_grad():
        wanted = policy.weights(policy(policy_inputs(problem), hint))
    found = policy.frozen().encode(problem)(hint)
    for name, one, other in zip(wanted._fields, found, wanted, strict=True):
        assert one.dtype == other.dtype  # type: ignore[attr-defined]
        assert one.flags.c_contiguous  # type: ignore[attr-defined]
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5, err_msg=name)  # type: ignore[call-overload]


def test_a_large_graph_is_encoded_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, problem = random_policy().frozen(), Problem(weighty_graph(1, 50), Cluster.uniform(2))
    whole = policy.encode(problem)(None)
    monkeypatch.setattr("doppler.policy.frozen.CHUNK", 16)
    for one, other in zip(policy.encode(problem)(None), whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)  # type: ignore[call-overload]


@pytest.mark.parametrize("sizes", [Sizes(), Sizes(1, 1, 1, 1), Sizes(8, 3, 5, 2)])
def test_it_has_the_weights_of_the_network(sizes: Sizes) -> None:
    state = DualPolicy(sizes).state_dict()
    assert sizes.shapes() == {name: tuple(tensor.shape) for name, tensor in state.items()}


def test_it_does_not_follow_what_the_network_learns() -> None:
    policy = random_policy()
    frozen = policy.frozen()
    kept = {name: array.copy() for name, array in frozen.weights.items()}
    thawed = DualPolicy.of(frozen)
    with torch.no_grad():
        for parameter in (*policy.parameters(), *thawed.parameters()):
            parameter += 1.0  # type: ignore[misc]
    for name, array in frozen.weights.items():
        assert np.array_equal(array, kept[name])
