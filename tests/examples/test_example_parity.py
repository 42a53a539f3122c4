"""Every example computes what the model does: sharded or not, placed anyhow, on 1 to 3 devices.

Gradients too, for those with a training step.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from doppler import Placement
from doppler.capture.capture import Captured, Captures
from doppler.capture.export import TensorName, split_inputs
from doppler.capture.sharding import shard_tensors
from doppler.engine import CpuBackend, Engine
from doppler.graph.execution import assemble
from doppler.placed.calls import Calls
from doppler.placed.model import state_names
from doppler.placed.state import ModelState
from examples import EXAMPLES
from examples.building import build

pytest.importorskip("transformers", reason="the extra `examples` is not installed")

SHARDS: tuple[Mapping[str, int], ...] = (
    {},
    {"batch": 2},
    {"tensor": 2},
    {"batch": 2, "tensor": 2},
)
# Of the largest entry of an output, and of a gradient.
OUTPUTS, GRADIENTS = 1e-4, 1e-3
# Steps that draw no random numbers in train mode, and whose loss is a mean over the batch.
STEPS = ("mlp:model", "bert:model", "llama:model", "experts:model", "unet:model", "two_tower:model")


@pytest.fixture(autouse=True)
def split_whatever_it_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shard small models as large ones are, though it does not pay."""
    everything = partial(shard_tensors, least_flops=0, least_intensity=0, least_share=0)
    # The package has a function of the module's name.
    monkeypatch.setattr(sys.modules["doppler.capture.capture"], "shard_tensors", everything)


def runs(
    captured: Captured, model: torch.nn.Module, inputs: object, placements: int = 5
) -> list[dict[str, Tensor]]:
    """Run a captured model under random placements on one, two and three devices."""
    args, kwargs = split_inputs(inputs)
    graph = captured.graph
    state = ModelState(model, state_names(graph)).changed()
    tensors = {**captured.constants, **state, **Calls(captured.signature, graph).bind(args, kwargs)}
    found = []
    rng = np.random.default_rng(0)
    for count in (1, 2, 3):
        with Engine(graph, CpuBackend(count), tensors=tensors, share=True) as engine:
            for _ in range(placements):
                placement = Placement(rng.integers(count, size=graph.n_ops))
                outputs = engine.run(placement).outputs
                found.append(assemble(graph, outputs))
    return found


def assert_near(found: Tensor, expected: Tensor, tolerance: float, label: str) -> None:
    """Compare by the largest entry of the expected tensor."""
    scale = float(expected.detach().double().abs().max()) if expected.numel() else 0.0
    gap = float((found.double() - expected.detach().double()).abs().max()) if scale else 0.0
    # Some gradients are zero but for rounding, as that of the bias of an attention's keys.
    assert gap <= tolerance * max(scale, 1e-6), f"{label}: off by {gap:.3g} of {scale:.3g}"


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_outputs_are_those_of_the_model(name: str) -> None:
    model, inputs = build(name)
    args, kwargs = split_inputs(inputs)
    with torch.no_grad():
        expected = pytree.tree_leaves(model(*args, **kwargs))
    captures = Captures(model, inputs)
    for shard in SHARDS:
        captured = captures.graph(shard)
        for outputs in runs(captured, model, inputs):
            for label, leaf in zip(captured.signature.outputs, expected, strict=True):
                if isinstance(label, TensorName):
                    assert_near(outputs[label.name], leaf, OUTPUTS, f"{name} {shard} {label.name}")


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_gradients_are_those_of_the_model(name: str) -> None:
    model, inputs = build(name)
    args, kwargs = split_inputs(inputs)

    def loss(output: Any) -> Tensor:
        leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
        return leaves[0].square().mean()

    loss(model(*args, **kwargs)).backward()
    gradients = {
        each: parameter.grad
        for each, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    captures = Captures(model, inputs, training=True, loss=loss)
    for shard in SHARDS:
        captured = captures.graph(shard)
        for outputs in runs(captured, model, inputs, placements=2):
            for each, gradient in gradients.items():
                label = f"{name} {shard} {each}"
                assert_near(outputs[f"grad:{each}"], gradient, GRADIENTS, label)
