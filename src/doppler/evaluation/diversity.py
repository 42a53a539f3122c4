"""Placements as different from each other as those that one may meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from doppler.errors import MemoryLimitError
from doppler.methods import LEARNED, PRETRAINED, solve
from doppler.placement import Placement
from doppler.problem import Problem

IntArray = npt.NDArray[np.int32]

#: Shares of the ops that random placements give to one device, the rest to all.
SKEWS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
#: Shares of the ops of good placements that are moved to random devices.
MOVED = (0.05, 0.2, 0.4)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A placement that is to be simulated and measured.

    Attributes
    ----------
    kind : str
        How it was made, for people: ``"heft"``, ``"random, 70% on one device"``.
    placement : Placement
    """

    kind: str
    placement: Placement


def diverse_placements(problem: Problem, count: int = 48, seed: int = 0) -> list[Candidate]:
    """Make placements as different as those that one may meet.

    Every single device, every heuristic, the policy's greedy and sampled episodes, local search
    with little and more time, good placements with some ops moved at random, cuts of the graph in
    topological order, and random placements with several skews.

    Parameters
    ----------
    problem : Problem
    count : int
        How many, at least. Random ones make up the number.
    seed : int

    Returns
    -------
    list of Candidate
        All different, each within the memory of the devices as far as the method minds it.
    """
    found: list[Candidate] = []
    seen: set[tuple[bytes, bytes]] = set()
    draw = np.random.default_rng(seed)
    for candidate in _candidates(problem, draw, seed):
        placement = candidate.placement
        order = b"" if placement.priority is None else placement.priority.tobytes()
        key = (placement.devices.tobytes(), order)
        if key not in seen:
            seen.add(key)
            found.append(candidate)
    # Endless where the graph has more placements than that.
    most = float(problem.n_devices) ** min(problem.n_ops, 60)
    for place, candidate in enumerate(_random(problem, draw)):
        key = (candidate.placement.devices.tobytes(), b"")
        if key not in seen:
            seen.add(key)
            found.append(candidate)
        if len(found) >= count or place > 2 * min(most, 10.0 * count):
            break
    return found


def _candidates(problem: Problem, draw: np.random.Generator, seed: int) -> Iterator[Candidate]:
    count = problem.n_devices
    for device, named in enumerate(problem.cluster.devices):
        devices = np.full(problem.n_ops, device, np.int32)
        yield Candidate(f"single device {named.name}", _legal(problem, devices))
    methods = ("round_robin", "critical_path", "heft", "enumerative", "sibling_affinity")
    good: list[Candidate] = []
    for method in methods:
        good += _solved(problem, method, method, budget=0.0, seed=seed)
    good += _solved(problem, LEARNED, "policy, greedy", budget=0.0, seed=seed)
    for number, budget in enumerate((0.05, 0.3, 1.0)):
        label = f"local search, {budget:g} s"
        good += _solved(problem, "local_search", label, budget=budget, seed=seed + number)
    good += _solved(problem, LEARNED, "policy and search, 1 s", budget=1.0, seed=seed)
    yield from good
    yield from _episodes(problem, 4, seed)
    for place, candidate in enumerate(good):
        share = MOVED[place % len(MOVED)]
        devices = candidate.placement.devices.copy()
        chosen = draw.random(devices.size) < share
        devices[chosen] = draw.integers(0, count, int(chosen.sum()))
        moved = _legal(problem, devices, candidate.placement.priority)
        yield Candidate(f"{candidate.kind}, {share:.0%} of the ops moved", moved)
    for share in (0.25, 0.5, 0.75):
        yield Candidate(f"cut at {share:.0%} of the ops", _cut(problem, share))


def _solved(
    problem: Problem, method: str, kind: str, *, budget: float, seed: int
) -> list[Candidate]:
    try:
        found = solve(problem, method, budget=budget, seed=seed)
    except MemoryLimitError:
        return []
    return [Candidate(kind, found.placement)]


def _episodes(problem: Problem, count: int, seed: int) -> Iterator[Candidate]:
    """Sample episodes of the policy, good or not."""
    # Imported late, as the method does: torch-geometric takes a second.
    import torch

    from doppler.policy.checkpoint import load_policy
    from doppler.policy.network import policy_inputs
    from doppler.policy.rollout import SAMPLE, Roller

    policy = load_policy(PRETRAINED)
    with torch.no_grad():
        weights = policy.weights(policy(policy_inputs(problem)))
    episodes = Roller(problem).play(weights, SAMPLE, [seed + place for place in range(count)])
    for place in range(count):
        placement = Placement(episodes.devices(place), episodes.priority(place))
        yield Candidate("policy, sampled", placement)


def _legal(problem: Problem, devices: IntArray, priority: IntArray | None = None) -> Placement:
    """Bring ops from devices that cannot run them to one that can, groups to one device."""
    compute, group = problem.arrays.compute, problem.arrays.group
    devices = devices.copy()
    stuck = ~np.isfinite(compute[np.arange(problem.n_ops), devices])
    devices[stuck] = compute[stuck].argmin(axis=1)
    grouped = np.flatnonzero(group >= 0)
    if grouped.size:
        _, first = np.unique(group[grouped], return_index=True)
        devices[grouped] = devices[grouped[first]][group[grouped]]
    return Placement(devices, priority)


def _cut(problem: Problem, share: float) -> Placement:
    """Give the first ops in topological order to one device and the others to the rest."""
    order = problem.arrays.order
    devices = np.zeros(problem.n_ops, np.int32)
    later = order[int(share * order.size) :]
    devices[later] = 1 + np.arange(later.size) % max(1, problem.n_devices - 1)
    return _legal(problem, np.minimum(devices, problem.n_devices - 1))


def _random(problem: Problem, draw: np.random.Generator) -> Iterator[Candidate]:
    count = problem.n_devices
    while True:
        for skew in SKEWS:
            favored = int(draw.integers(count))
            devices = draw.integers(0, count, problem.n_ops)
            devices[draw.random(problem.n_ops) < (skew * count - 1) / max(1, count - 1)] = favored
            kind = f"random, {skew:.0%} on one device" if skew > 1 / count else "random"
            yield Candidate(kind, _legal(problem, devices.astype(np.int32)))
