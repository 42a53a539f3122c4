"""A PyTorch model as a graph: captured, sharded, fused."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from doppler.capture.batch import replicate
from doppler.capture.export import (
    ExampleInputs,
    Exported,
    Signature,
    TensorName,
    export,
    split_inputs,
)
from doppler.capture.fusion import FUSE
from doppler.capture.lower import lower
from doppler.capture.program import Program
from doppler.capture.sharding import shard_tensors
from doppler.capture.simplify import simplify
from doppler.capture.training import Loss, export_step
from doppler.checks import check_name, check_number, check_type, check_whole
from doppler.errors import CaptureError
from doppler.graph import Graph
from doppler.messages import shown_value

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

#: The ways in which a model can be sharded.
SHARDS = ("batch", "tensor")
#: How a loss comes of those of the entries of a batch.
REDUCTIONS = ("mean", "sum")
_MOST = 4096
# torch traces one model at a time.
_turn = threading.RLock()


@dataclass(frozen=True, eq=False)
class Captured:
    """A model as a graph.

    Attributes
    ----------
    graph : Graph
        Its tensors are named as the model names its parameters and buffers, and as its forward
        method names its arguments.
    constants : dict of str to Tensor
        Values of the tensors of role ``"constant"``.
    signature : Signature
        How the model is called and what it returns.
    loss : str
        Of a training step: name of the output that is the loss.
    """

    graph: Graph
    constants: dict[str, Tensor]
    signature: Signature
    loss: str = ""


def capture(
    model: Module,
    example_inputs: ExampleInputs,
    *,
    kwargs: Mapping[str, Any] | None = None,
    training: bool = False,
    loss: Loss | None = None,
    reduction: str = "mean",
    shard: Mapping[str, int] | None = None,
    fusion: float = FUSE,
    name: str = "",
) -> Captured:
    """Make a graph of a model's forward pass, or of a training step. Only shapes are computed.

    Parameters
    ----------
    model : torch.nn.Module
        In train or eval mode, on any device, also on ``meta``.
    example_inputs : tuple, or mapping of str
        Its arguments, or its keyword arguments. Shapes, dtypes and values that are no tensors are
        those of every call.
    kwargs : mapping of str, optional
        Its keyword arguments beside positional ones.
    training : bool
        Also capture the loss and the gradients of the parameters, see
        :func:`doppler.capture.training.export_step`.
    loss : callable, optional
        Takes the loss from what the model returns.
    reduction : {"mean", "sum"}
        How the loss comes of those of the parts of a batch that is sharded. The mean is that of
        equal parts: a loss that leaves out padded tokens is another if parts have not as many.
    shard : mapping of str to int, optional
        ``{"batch": 4}``: four chains, each with a quarter of the first dimension of the inputs,
        that share parameters; right for models that compute each entry of the batch by itself,
        which is compared by :func:`doppler.compile` and not here. ``{"tensor": 2}``: matrices and
        attention heads in two parts. Both can be given together.
    fusion : float
        Share of the longest path below which a call is fused into its neighbor; 0:
        every call is an op.
    name : str
        Of the graph; by default that of the model's class.

    Raises
    ------
    CaptureError
        If the model cannot be captured, or not sharded so. The message names the line of the
        model's code, or the input.

    Examples
    --------
    >>> captured = capture(model, (torch.zeros(8, 512),), shard={"batch": 4})  # doctest: +SKIP
    """
    captures = Captures(
        model,
        example_inputs,
        kwargs=kwargs,
        training=training,
        loss=loss,
        reduction=reduction,
        name=name,
    )
    return captures.graph(shard, fusion)


class Captures:
    """The graphs of a model, one for each way to shard it: traced once for each size of the batch.

    Parameters
    ----------
    model, example_inputs, kwargs, training, loss, reduction, name
        As for :func:`capture`.

    Raises
    ------
    CaptureError
        As :func:`capture`.
    """

    def __init__(
        self,
        model: Module,
        example_inputs: ExampleInputs,
        *,
        kwargs: Mapping[str, Any] | None = None,
        training: bool = False,
        loss: Loss | None = None,
        reduction: str = "mean",
        name: str = "",
    ) -> None:
        import torch

        check_type(model, torch.nn.Module, "model", CaptureError)
        check_name(reduction, "reduction", REDUCTIONS)
        check_type(training, bool, "training", CaptureError)
        if not isinstance(name, str) or not name.isprintable():
            raise CaptureError(f"name is {shown_value(name)}, must be text on one line")
        if loss is not None and not callable(loss):
            raise CaptureError(f"loss is {shown_value(loss)}, must be callable")
        if loss is not None and not training:
            raise CaptureError("loss is for a training step; say training=True, or leave it out")
        self._args, self._kwargs = split_inputs(example_inputs, kwargs)
        self._reduction = reduction
        self._traced: dict[int, tuple[Exported, Program, dict[str, Tensor]]] = {}

        def trace(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exported:
            if training:
                return export_step(model, args, kwargs, loss=loss, name=name)
            return export(model, args, kwargs, name=name)

        self._trace = trace

    def graph(self, shard: Mapping[str, int] | None = None, fusion: float = FUSE) -> Captured:
        """Return the graph of the model, sharded in a way; see :func:`capture`."""
        ways = check_shard(shard)
        check_number(fusion, "fusion", 0.0, 1.0)
        whole, program, constants = self._part(1)
        if ways["batch"] > 1:
            part, small, constants = self._part(ways["batch"])
            outputs = {output.name: output.meta for output in program.outputs}
            program = replicate(
                shard_tensors(small, ways["tensor"]),
                program.sources,
                outputs,
                combine=lambda output: (
                    self._reduction if output.startswith("grad:") or output == part.loss else None
                ),
            )
        else:
            program = shard_tensors(program, ways["tensor"])
        ranges = _ranges(whole, self._args, self._kwargs)
        graph = lower(program, constants, fusion=fusion, ranges=ranges)
        return Captured(graph, constants, whole.signature, whole.loss)

    def _part(self, parts: int) -> tuple[Exported, Program, dict[str, Tensor]]:
        if parts not in self._traced:
            args, kwargs = self._args, self._kwargs
            if parts > 1:
                args, kwargs = batch_part(args, kwargs, parts)
            with _turn:
                traced = self._trace(args, kwargs)
            self._traced[parts] = traced, *simplify(traced.program, traced.constants)
        return self._traced[parts]


def check_shard(shard: Mapping[str, int] | None) -> dict[str, int]:
    """Return how often each kind of shard is made, 1 where none is asked for.

    Raises
    ------
    CaptureError, UnknownNameError
        If a kind is not known, or a number is not a whole one >= 1.
    """
    if not isinstance(shard, Mapping | None):
        raise CaptureError(f"shard is {shown_value(shard)}, must be a mapping as {{'batch': 4}}")
    for kind, ways in (shard or {}).items():
        check_name(kind, "kind of shards", SHARDS)
        check_whole(ways, f"shard: {kind}", 1, _MOST, CaptureError)
    return {kind: int((shard or {}).get(kind, 1)) for kind in SHARDS}


def batch_part(
    args: Sequence[Any], kwargs: Mapping[str, Any], parts: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the first of so many parts of the inputs.

    The batch is the first dimension of the first tensor; every tensor whose first dimension is as
    large is cut.

    Raises
    ------
    CaptureError
        If there is no batch, or it cannot be divided.
    """
    import torch
    from torch.utils import _pytree as pytree

    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    sizes = [leaf.shape[0] for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.ndim]
    if not sizes:
        raise CaptureError("shard: batch: no input has a dimension that could be the batch")
    if sizes[0] % parts:
        raise CaptureError(
            f"shard: batch: a batch of {sizes[0]} cannot be cut into {parts} equal parts"
        )
    size = sizes[0] // parts
    cut = [
        leaf[:size]
        if isinstance(leaf, torch.Tensor) and leaf.ndim and leaf.shape[0] == sizes[0]
        else leaf
        for leaf in leaves
    ]
    found: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(cut, spec)
    return found


def _ranges(
    exported: Exported, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, tuple[int, int]]:
    """Range of the values of every input of whole numbers, as tokens are."""
    import torch
    from torch.utils import _pytree as pytree

    ranges = {}
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs)))
    for leaf, label in zip(leaves, exported.signature.inputs, strict=True):
        if isinstance(label, TensorName) and isinstance(leaf, torch.Tensor):
            whole = not (leaf.is_floating_point() or leaf.is_complex())
            if whole and leaf.numel() and leaf.device.type != "meta":
                # Not every type of unsigned numbers has a minimum.
                numbers = leaf.to(torch.int64)
                ranges[label.name] = (int(numbers.min()), int(numbers.max()))
    return ranges
