"""Pipelines: stages as short as can be, the orders of schedules, and when they are offered."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from doppler import Cluster, Graph, Problem, place, simulate
from doppler.capture import capture
from doppler.graph import Tile
from doppler.heuristics import pipeline as pipelines


def chains(layers: int, shards: int, transfer: float = 0.0) -> Graph:
    """Replicate a chain of layers for each shard of the batch; each op takes a second."""
    ops = [(layer, shard) for shard in range(shards) for layer in range(layers)]
    ids = {op: index for index, op in enumerate(ops)}
    edges = [(ids[layer, s], ids[layer + 1, s]) for layer, s in ops if layer + 1 < layers]
    return Graph.from_arrays(
        [u for u, _ in edges],
        [v for _, v in edges],
        np.ones(len(ops)),
        np.full(len(ops), transfer),
        names=[f"layers.{layer}.linear[{shard}]" for layer, shard in ops],
        meta_ops=[f"layers.{layer}.linear" for layer, _ in ops],
        shards=[shard for _, shard in ops],
    )


def test_ids_are_the_order_of_the_program_where_they_can_be() -> None:
    # Op 3 needs nothing; breadth first, it would come before op 1.
    graph = Graph.from_arrays([0, 1, 3], [1, 2, 4], np.ones(5), np.ones(5))
    assert pipelines.program_rank(graph).tolist() == [0, 1, 2, 3, 4]
    backwards = Graph.from_arrays([1], [0], np.ones(2), np.ones(2))
    assert pipelines.program_rank(backwards).tolist() == [1, 0]


def test_schedules_are_those_of_torch() -> None:
    def text(name: str, stage: int) -> str:
        steps = pipelines.schedule(name, stage, stages=3, microbatches=4)
        return " ".join(f"{'FB'[phase]}{microbatch}" for phase, microbatch in steps)

    assert text("gpipe", 0) == text("gpipe", 2) == "F0 F1 F2 F3 B0 B1 B2 B3"
    assert text("1f1b", 0) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert text("1f1b", 2) == "F0 B0 F1 B1 F2 B2 F3 B3"


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("layers", "shards", "devices"), [(4, 4, 2), (6, 5, 3), (3, 1, 3)])
def test_a_forward_pipeline_takes_what_theory_says(
    name: str, layers: int, shards: int, devices: int
) -> None:
    problem = Problem(chains(layers, shards), Cluster.uniform(devices))
    placement = pipelines.pipeline(problem, name, shards)
    for before, after in pairwise(placement.devices[:layers]):
        assert after - before in (0, 1)
    # Fill and drain: (microbatches + stages - 1) stages of layers / devices seconds each.
    seconds = (shards + devices - 1) * layers / devices
    assert simulate(problem, placement).makespan == pytest.approx(seconds)


def training(layers: int, shards: int) -> tuple[Graph, np.ndarray]:
    """Make chains of layers that go forward and back; which ops go back."""
    steps = [(f"l{i}.linear", False) for i in range(layers)]
    steps += [(f"l{i}.linear_backward", True) for i in reversed(range(layers))]
    ops = [(step, shard) for shard in range(shards) for step in range(len(steps))]
    ids = {op: index for index, op in enumerate(ops)}
    edges = [(ids[step, s], ids[step + 1, s]) for step, s in ops if step + 1 < len(steps)]
    # The backward op of a layer reads what its forward op kept, too.
    edges += [(ids[i, s], ids[2 * layers - 1 - i, s]) for i in range(layers) for s in range(shards)]
    graph = Graph.from_arrays(
        [u for u, _ in edges],
        [v for _, v in edges],
        np.ones(len(ops)),
        np.zeros(len(ops)),
        meta_ops=[steps[step][0] for step, _ in ops],
        shards=[shard for _, shard in ops],
        output_bytes=np.ones(len(ops)),
    )
    return graph, np.array([steps[step][1] for step, _ in ops])


def test_1f1b_is_as_fast_as_gpipe_and_keeps_less() -> None:
    graph, backward = training(layers=3, shards=8)
    problem = Problem(graph, Cluster.uniform(3))
    found = {}
    for name in ("gpipe", "1f1b"):
        placement = pipelines.pipeline(problem, name, 8, backward)
        # Forward and backward of a layer share a stage.
        assert placement.devices[:6].tolist() == [0, 1, 2, 2, 1, 0]
        found[name] = simulate(problem, placement)
        assert found[name].makespan == pytest.approx(2 * (8 + 3 - 1))
    assert found["1f1b"].peak_memory.sum() < found["gpipe"].peak_memory.sum()


def test_a_whole_op_belongs_to_the_first_microbatch() -> None:
    graph = Graph.from_arrays(
        [0, 0],
        [1, 2],
        np.ones(3),
        np.ones(3),
        meta_ops=["mask", "a.linear", "a.linear"],
        shards=[0, 0, 1],
    )
    assert pipelines.microbatches_of(graph, 2).tolist() == [0, 0, 1]


def test_gradients_and_what_only_they_read_are_the_backward_pass() -> None:
    names = ["forward", "loss", "backward", "grad:a.weight.total1"]
    graph = Graph.from_arrays(
        [0, 1, 0, 2],
        [1, 2, 2, 3],
        np.ones(4),
        np.ones(4),
        meta_ops=names,
        tensors={},
        outputs={1: Tile("loss", ()), 3: Tile("grad:a.weight", ())},
    )
    assert pipelines.backward_of(graph).tolist() == [False, False, True, True]
    assert pipelines.module_of(names[3]) == "a.weight"
    assert not pipelines.backward_of(chains(2, 2)).any()


def test_pipelines_are_made_where_chains_share_parameters() -> None:
    network = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
    inputs = (torch.zeros(8, 256),)
    layer = 4 * 256 * 256
    cluster = Cluster.uniform(2, memory=2.2 * layer)
    whole = Problem(capture(network, inputs, fusion=0).graph, cluster)
    assert pipelines.pipelines(whole) == []
    cut = Problem(capture(network, inputs, shard={"batch": 4}, fusion=0).graph, cluster)
    (found,) = pipelines.pipelines(cut)
    assert set(found.devices.tolist()) == {0, 1}
    # No device could hold all parameters, and each holds its half once.
    result = simulate(cut, found)
    assert (result.peak_memory <= cut.arrays.capacity).all()
    own = place(cut, budget=0.0, jitter=0.0)
    assert simulate(cut, own).makespan <= result.makespan
    training = capture(
        network,
        inputs,
        training=True,
        loss=lambda output: output.square().mean(),
        shard={"batch": 4},
    )
    assert len(pipelines.pipelines(Problem(training.graph, cluster))) == 2
