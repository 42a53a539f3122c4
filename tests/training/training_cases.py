"""Small problems and policies to train, and what a run of training leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from doppler import Cluster, Device, Graph, Problem
from doppler.cluster.cluster import fully_connected
from doppler.policy.frozen import LOGIT_RANGE, SCORE_SCALE, Sizes
from doppler.policy.network import DualPolicy
from doppler.training.case import TrainingCase, new_policy
from doppler.training.demonstrations import Demonstrations
from doppler.training.teaching import TraceSettings, record

SMALL = Sizes(embedding=16, layers=2, hidden=8, code=4)


def graph_of(seed: int, n_ops: int, **extra: Any) -> Graph:
    """A graph of up to three inputs per op, whose costs never tie."""
    rng = np.random.default_rng(seed)
    count = np.minimum(rng.integers(1, 4, n_ops), np.arange(n_ops))
    dst = np.repeat(np.arange(n_ops), count)
    src = (rng.random(dst.size) * dst).astype(int)
    flops, sent = rng.uniform(1e12, 5e12, n_ops), rng.uniform(0, 3e9, n_ops)
    return Graph.build(n_ops, src, dst, flops=flops, output_bytes=sent, **extra)


def cluster_of(n_devices: int, memory: float = np.inf) -> Cluster:
    """Equal devices of 1 TFLOP/s, links of 1 GB/s."""
    devices = [Device(f"d{d}", flops=1e12, memory=memory) for d in range(n_devices)]
    return Cluster("equal", tuple(devices), fully_connected(n_devices, 1e9))


def hard_problem(seed: int) -> Problem:
    """Mixed devices, a shared bus, pins, colocation groups and little memory, or some of these."""
    rng = np.random.default_rng(seed)
    n_ops, n_devices = int(rng.integers(1, 20)), int(rng.integers(1, 5))
    pins, groups, limited, shared = rng.random(4) < 0.5
    pinned = np.where((rng.random(n_ops) < 0.2) & pins, rng.integers(0, n_devices, n_ops), -1)
    colocation = np.where(
        (rng.random(n_ops) < 0.4) & (pinned < 0) & groups, rng.integers(0, 3, n_ops), -1
    )
    param_bytes = rng.integers(0, 4, n_ops) * 1e9
    graph = graph_of(seed, n_ops, pinned=pinned, colocation=colocation, param_bytes=param_bytes)
    total = float(param_bytes.sum() + graph.output_bytes.sum()) + 1.0
    memory = total * rng.uniform(0.4, 1.2, n_devices) if limited else np.full(n_devices, np.inf)
    devices = [
        Device(f"d{d}", flops=float(rng.choice([1e12, 4e12])), memory=float(memory[d]))
        for d in range(n_devices)
    ]
    channels = np.zeros((n_devices, n_devices), int).tolist() if shared else None
    links = fully_connected(n_devices, 1e9, 0.1, channels)
    return Problem(graph, Cluster("mixed", tuple(devices), links, ("bus",) if shared else ()))


def small_case(
    seed: int = 0, n_ops: int = 12, n_devices: int = 3, threads: int = 1
) -> TrainingCase:
    problem = Problem(graph_of(seed, n_ops), cluster_of(n_devices))
    return TrainingCase(f"graph{seed}@equal{n_devices}", problem, threads)


def mixed_cases(threads: int = 1) -> list[TrainingCase]:
    """Cases with 2, 3 and 5 devices."""
    return [small_case(seed, 8 + 2 * seed, k, threads) for seed, k in ((0, 2), (1, 3), (2, 5))]


def taught(
    problem: Problem, teacher: str, count: int, seed: int = 0, hints: Sequence[Any] = ()
) -> Demonstrations:
    """Let a teacher show a problem ``count`` times."""
    return record(problem, TraceSettings(teacher=teacher, count=count), seed, hints)


def small_policy(seed: int = 0) -> DualPolicy:
    return new_policy(seed, sizes=SMALL)


def blank_policy(seed: int = 0) -> DualPolicy:
    """A policy that does not begin near a list schedule: its choices are close to even."""
    policy = small_policy(seed)
    with torch.no_grad():
        policy.direct.weight.zero_()
        policy.select_direct.weight.zero_()
        policy.select_direct.bias.zero_()
        policy.second.weight /= SCORE_SCALE
        policy.select_out.weight /= LOGIT_RANGE
        policy.select_out.bias /= LOGIT_RANGE
    return policy


def weights_of(policy: DualPolicy) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in policy.state_dict().items()}


class Rows:
    """Keeps all metrics in memory."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def begin(self, after: int) -> None:
        self.rows = [row for row in self.rows if row[0] <= after]

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.rows.append((step, dict(metrics)))

    def column(self, name: str) -> list[float]:
        return [row[name] for _, row in self.rows]
