"""Captured models run in this thread, op by op, to be compared with the models themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from doppler.capture.capture import Captured, capture
from doppler.graph.execution import assemble, run_sequential
from doppler.placed.calls import Calls


@dataclass(frozen=True)
class Ran:
    """What a captured model gave: its result, and every output of its graph by name."""

    result: Any
    outputs: dict[str, Tensor]
    captured: Captured


def run_captured(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    given: tuple[Sequence[Any], Mapping[str, Any]] | None = None,
    **options: Any,
) -> Ran:
    """Capture a model and run the graph, on the example inputs or on others that are given."""
    captured = capture(model, tuple(args), kwargs=kwargs, **options)
    calls = Calls(captured.signature, captured.graph)
    args, kwargs = given or (args, kwargs or {})
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    tensors = {name: tensor.detach() for name, tensor in tensors.items()}
    tensors |= captured.constants | calls.bind(tuple(args), kwargs)
    ops = run_sequential(
        captured.graph, {name: tensors[name] for name in captured.graph.tensors if name in tensors}
    )
    outputs = assemble(captured.graph, ops)
    return Ran(calls.results(outputs.__getitem__), outputs, captured)


def assert_equal(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Both have one structure, and tensors differ by little of the largest entry."""
    left, left_spec = pytree.tree_flatten(found)
    right, right_spec = pytree.tree_flatten(expected)
    assert left_spec == right_spec
    for mine, theirs in zip(left, right, strict=True):
        if not isinstance(theirs, Tensor):
            assert mine == theirs
            assert type(mine) is type(theirs)
            continue
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        finite = theirs.detach().double().nan_to_num(0.0, 0.0, 0.0).abs()
        scale = float(finite.max()) if theirs.numel() else 0.0
        torch.testing.assert_close(
            mine.double(),
            theirs.detach().double(),
            rtol=0.0,
            atol=tolerance * scale,
            equal_nan=True,
        )


def assert_as_eager(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    tolerance: float = 1e-5,
    **options: Any,
) -> Ran:
    """A captured model gives what the model gives, without a change of the model or the inputs."""
    before = [leaf.clone() for leaf in tensors_in((args, kwargs, model.state_dict()))]
    ran = run_captured(model, args, kwargs, **options)
    after = tensors_in((args, kwargs, model.state_dict()))
    assert all(map(torch.equal, before, after))
    with torch.no_grad():
        assert_equal(ran.result, model(*args, **(kwargs or {})), tolerance)
    return ran


def tensors_in(tree: Any) -> list[Tensor]:
    """List the tensors in nested containers."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
