"""Policies with random weights, and what an episode of theirs must respect."""

from __future__ import annotations

import math

import numpy as np
import torch
from random_problems import random_devices

from doppler import Graph, Problem
from doppler.policy.features import FeatureSet
from doppler.policy.frozen import LOGIT_RANGE, SCORE_SCALE, Sizes
from doppler.policy.hint import Hint, make_hint
from doppler.policy.network import DualPolicy, Heads, policy_inputs
from doppler.policy.rollout import Weights

SMALL = Sizes(embedding=16, layers=2, hidden=8, code=4)


def random_policy(seed: int = 0, features: str = "full", sizes: Sizes = SMALL) -> DualPolicy:
    """Weights that know no heuristic, and large enough for choices that are far from even."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        policy = DualPolicy(sizes, FeatureSet.named(features))
        for name, weight in policy.named_parameters():
            if "norm" not in name:
                fan_in = weight.shape[-1]
                weight.normal_(0.0, 1.5 / math.sqrt(fan_in) if weight.dim() > 1 else 0.1)
        without_scales(policy)
    return policy


def without_scales(policy: DualPolicy) -> None:
    """Divide the last layers by what multiplies them, so that scores are as large as weights."""
    for layer in (policy.second, policy.direct):
        layer.weight /= SCORE_SCALE
    for layer in (policy.select_out, policy.select_direct):
        layer.weight /= LOGIT_RANGE
        layer.bias /= LOGIT_RANGE  # type: ignore[misc]


def encode(policy: DualPolicy, problem: Problem) -> tuple[Heads, Weights]:
    with torch.no_grad():
        heads = policy(policy_inputs(problem))
    return heads, policy.weights(heads)


def random_hint(problem: Problem, seed: int = 0) -> Hint:
    """A hint of devices at random, among those that its op and all ops of its group can run on."""
    return make_hint(problem, random_devices(problem, np.random.default_rng(seed)))


def topological_orders(graph: Graph) -> list[list[int]]:
    """Every order in which producers come before consumers."""
    inputs: list[set[int]] = [set() for _ in range(graph.n_ops)]
    for u, v in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
        inputs[v].add(u)

    def extend(order: list[int]) -> list[list[int]]:
        if len(order) == graph.n_ops:
            return [order]
        candidates = [
            op for op in range(graph.n_ops) if op not in order and inputs[op] <= set(order)
        ]
        return [whole for op in candidates for whole in extend([*order, op])]

    return extend([])
