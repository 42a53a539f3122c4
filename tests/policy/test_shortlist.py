"""The shortlist: who is on it, and that episodes on many devices keep to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policies import encode, random_hint, random_policy
from random_problems import weighty_graph

from doppler import Cluster, Device, Problem, workloads
from doppler.cluster.link import fully_connected
from doppler.policy.rollout import GREEDY, SAMPLE, Roller
from doppler.policy.shortlist import (
    MOST_CANDIDATES,
    device_kinds,
    make_shortlist,
    occupy,
    reset,
    shorten,
)

quick = settings(max_examples=40)


def listed(n_devices: int, **given_: object) -> list[int]:
    """The list of an op without inputs on equal free devices, but for what is given."""
    values: dict[str, Any] = {
        "preferred": -1,
        "placed": np.zeros(0, np.int32),
        "inputs": np.zeros(0, np.int32),
        "weight": np.zeros(n_devices),
        "kinds": np.zeros(n_devices, np.int32),
        **given_,
    }
    shortlist = make_shortlist(values["kinds"])
    reset(shortlist)
    found = np.arange(n_devices, dtype=np.int32)
    count = shorten(
        shortlist,
        values["preferred"],
        values["placed"],
        values["inputs"],
        len(values["inputs"]),
        values["weight"],
        found,
        n_devices,
    )
    return found[:count].tolist()


def test_few_devices_are_all_listed() -> None:
    assert listed(MOST_CANDIDATES) == list(range(MOST_CANDIDATES))


def test_the_list_holds_the_hint_the_inputs_the_siblings_and_every_kind() -> None:
    weight = np.zeros(64)
    weight[[50, 61]] = 1.0
    kinds = (np.arange(64) // 16).astype(np.int32)
    found = listed(
        64,
        preferred=33,
        placed=np.array([40, 63], np.int32),
        inputs=np.array([0, 1], np.int32),
        weight=weight,
        kinds=kinds,
    )
    assert len(found) == MOST_CANDIDATES
    assert found == sorted(set(found))
    # Besides, of each kind the first to be free, then whatever is free first.
    assert {33, 40, 63, 50, 61, 0, 16, 32, 48} <= set(found)
    assert set(found) - {33, 40, 63, 50, 61, 16, 32, 48} == set(range(8))


@quick
@given(seed=st.integers(0, 1000))
def test_devices_are_kept_by_when_they_are_free(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shortlist = make_shortlist(np.zeros(9, np.int32))
    reset(shortlist)
    free = np.zeros(9)
    for _ in range(50):
        device = int(rng.integers(9))
        free[device] += rng.random()
        occupy(shortlist, free, device)
        assert sorted(shortlist.by_free.tolist()) == list(range(9))
        assert (np.diff(free[shortlist.by_free]) >= 0).all()


@pytest.mark.parametrize("hinted", [False, True])
def test_episodes_on_many_devices_can_be_followed(hinted: bool) -> None:
    problem = Problem(weighty_graph(2, 60), Cluster.uniform(40))
    _, weights = encode(random_policy(), problem)
    hint = random_hint(problem) if hinted else None
    roller = Roller(problem, 1)
    for mode in (GREEDY, SAMPLE):
        record = roller.play(weights, mode, [1, 2], recorded=True, hint=hint).record
        assert (record.allowed.sum(axis=2) <= MOST_CANDIDATES).all()
        again = roller.follow(weights, record.order, record.choice, hint=hint).record
        assert np.array_equal(again.allowed, record.allowed)
        assert np.array_equal(again.features, record.features)


def test_what_others_chose_off_the_list_can_be_followed() -> None:
    problem = Problem(weighty_graph(2, 60), Cluster.uniform(40))
    _, weights = encode(random_policy(), problem)
    roller = Roller(problem, 1)
    order = roller.play(weights, GREEDY, [0]).record.order
    choice = np.random.default_rng(0).integers(0, 40, (1, 60)).astype(np.int32)
    record = roller.follow(weights, order, choice).record
    assert np.take_along_axis(record.allowed, choice[..., None].astype(int), axis=2).all()


def test_kinds_of_devices() -> None:
    devices = tuple(Device(f"d{d}", slowdown=1.0 + d % 2) for d in range(4))
    mixed = Cluster("mixed", devices, fully_connected(4))
    assert device_kinds(Problem(weighty_graph(), mixed)).tolist() == [0, 1, 0, 1]
    nodes = device_kinds(Problem(workloads.make("ffnn"), Cluster.load("v100_2x4")))
    assert nodes.tolist() == [0] * 4 + [1] * 4
