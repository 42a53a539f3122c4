"""Blocks of parameters that several ops read: counted once on each device."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from doppler import Cluster, Placement, Problem, simulate, workloads
from doppler.capture import capture
from doppler.graph.shared_blocks import shared_blocks

BYTES = 4 * 64 * 64


def chains(parts: int) -> Problem:
    model = nn.Linear(64, 64, bias=False)
    captured = capture(model, (torch.zeros(8, 64),), shard={"batch": parts})
    return Problem(captured.graph, Cluster.uniform(2, memory=1e9))


def test_chains_of_a_batch_share_their_parameters() -> None:
    blocks = shared_blocks(chains(4).graph)
    assert blocks.shared_bytes.tolist() == [BYTES]
    assert blocks.shared_op.tolist() == [0, 1, 2, 3]


def test_a_device_holds_a_shared_block_once() -> None:
    problem = chains(4)
    for devices, holders in (([0, 0, 0, 0], [1, 0]), ([0, 1, 0, 1], [1, 1])):
        peak = simulate(problem, Placement(devices)).peak_memory
        rows = 4 * 2 * 64 * np.bincount(devices, minlength=2)  # Inputs, and outputs that stay.
        assert peak.tolist() == (BYTES * np.array(holders) + 2 * rows).tolist()


def test_one_reader_shares_with_nobody() -> None:
    assert not shared_blocks(chains(1).graph).shared_op.size


def test_generated_workloads_count_every_reader() -> None:
    assert not shared_blocks(workloads.ffnn(batch=64, inputs=64, hidden=64)).shared_op.size
