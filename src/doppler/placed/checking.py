"""Whether a placed model computes what the model computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from doppler.capture.export import TensorName
from doppler.capture.operators import is_random
from doppler.errors import CaptureError
from doppler.graph import Graph
from doppler.placed.model import PlacedModel

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

# Of the largest entry. Sums in another order differ by some roundings for each thousand terms; a
# wrong tile differs by the entry itself.
_TOLERANCE = 1e-3
_COARSE = 5e-2
# What sums up to a gradient may nearly cancel, as it does before a normalization. Of a bias there
# nothing is left but roundings: then the largest gradient of all is the measure, by this share.
_GRADIENT = 2e-2
_SHARE_OF_ALL = 1e-3


def compare_with_eager(
    placed: PlacedModel,
    model: Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    loss: Callable[[Any], Tensor] | None,
    training: bool,
) -> None:
    """Run a model and its placed form once each on the same inputs, and compare the outputs.

    Buffers are as before afterwards, and no gradients are left. Models that draw random numbers
    are not compared.

    Raises
    ------
    CaptureError
        If an output differs by more than a thousandth of its largest entry, a gradient by more than
        a fiftieth, or either by more than a twentieth for types of two bytes.
    """
    import torch
    from torch.utils import _pytree as pytree

    if draws_numbers(placed.graph):
        return
    name = placed.graph.name
    writes = any(tile.tensor.startswith("input:") for tile in placed.graph.outputs.values())

    def eager() -> Any:
        given = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs)) if writes else None
        positional, named = given or (args, kwargs)
        try:
            return model(*positional, **named)
        except Exception as error:
            why = " ".join(str(error).split())[:200]
            raise CaptureError(
                f"{name}: the model itself fails with the example inputs "
                f"({type(error).__name__}: {why})"
            ) from error

    with torch.no_grad(), _buffers_kept(model):
        # Copies: a buffer that is returned is about to be as before.
        expected = pytree.tree_map_only(torch.Tensor, torch.clone, eager())
    found = placed.outputs_of(args, kwargs)
    leaves = pytree.tree_leaves(expected)
    for label, leaf in zip(placed.captured.signature.outputs, leaves, strict=False):
        if isinstance(label, TensorName) and isinstance(leaf, torch.Tensor):
            _compare(name, label.name, found[label.name], leaf, _TOLERANCE)
    if not training:
        return
    from doppler.capture.training import loss_of

    wanted = [name for name in found if name.startswith("grad:")]
    parameters = [placed.parameter(name.removeprefix("grad:")) for name in wanted]
    with torch.enable_grad(), _buffers_kept(model):
        value = loss_of(eager(), loss, name)
        gradients = torch.autograd.grad(value, parameters, allow_unused=True)
    given = {
        label: gradient
        for label, gradient in zip(wanted, gradients, strict=True)
        if gradient is not None
    }
    least = _SHARE_OF_ALL * max(map(_largest, given.values()), default=0.0)
    for label, gradient in given.items():
        _compare(name, label, found[label], gradient, _GRADIENT, least)


def draws_numbers(graph: Graph) -> bool:
    """Whether a captured graph draws random numbers."""
    return any(
        is_random(call["op"], call["args"], call.get("kwargs"))
        and not call["op"].split(".")[1].startswith(("empty", "new_empty"))
        for spec in graph.specs or ()
        for call in spec.attributes["calls"]
    )


def _largest(tensor: Tensor) -> float:
    magnitude = tensor.detach().abs().nan_to_num(0.0, 0.0, 0.0)
    return float(magnitude.max()) if tensor.numel() else 0.0


def _compare(
    graph: str,
    name: str,
    found: Tensor,
    expected: Tensor,
    tolerance: float,
    least: float = 1e-6,
) -> None:
    """Hold a tensor against what it should be, in shares of its largest entry, or of ``least``."""
    import torch

    one, other = _numbers(found), _numbers(expected)
    coarse = expected.dtype in (torch.float16, torch.bfloat16)
    scale = _largest(other)
    gap = (one - other).abs()
    gap[(one == other) | (one.isnan() & other.isnan())] = 0.0
    most = float(gap.nan_to_num(torch.inf).max()) if gap.numel() else 0.0
    if most > (_COARSE if coarse else tolerance) * max(scale, least):
        raise CaptureError(
            f"{graph}: {name} differs from the model's own by {most:.3g}, with entries up to "
            f"{scale:.3g}; the model computes something else for parts of a batch, or keeps state "
            "that cannot be captured: give shard=None, or check=False if the difference is meant"
        )


def _numbers(tensor: Tensor) -> Tensor:
    import torch

    plain = tensor.detach().cpu()
    return (torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain).double()


@contextmanager
def _buffers_kept(model: Module) -> Iterator[None]:
    import torch

    saved = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in saved:
                    buffer.copy_(saved[name])
