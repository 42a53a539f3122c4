"""A captured model: calls of torch's operators in order, before they are put together into ops.

Everything here is plain data that needs no torch: names of operator overloads, shapes, names of
dtypes. A program is what sharding transforms, and what :mod:`doppler.capture.lower` makes a graph
of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from doppler.graph.dtypes import WIDTHS as WIDTHS

Slices = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Shape and dtype of a tensor.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
        Its name in torch: ``"float32"``.
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.elements * WIDTHS[self.dtype]


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor of the program, as an argument of a call.

    Attributes
    ----------
    value : int
        Inputs of the program come first, in their order, then calls.
    item : int
        Which of the tensors, of a call that returns several; -1 of a call that returns one.
    """

    value: int
    item: int = -1


@dataclass(frozen=True, slots=True)
class Constant:
    """A value of torch as an argument of a call.

    Attributes
    ----------
    kind : {"dtype", "layout", "memory_format", "device"}
    name : str
        Its name in torch: ``"float32"``, ``"strided"``, ``"contiguous_format"``. A device is
        ``"here"``: that on which the op runs.
    """

    kind: str
    name: str


#: None, bool, int, float, str, Constant, Ref, or a tuple of them.
Argument = Any


@dataclass(frozen=True, slots=True)
class Source:
    """A whole tensor that a program reads.

    Attributes
    ----------
    role : {"input", "parameter", "buffer", "constant"}
        Given anew with each call; learned; other state of the model; fixed at capture.
    meta : TensorMeta
    """

    role: str
    meta: TensorMeta


@dataclass(frozen=True, slots=True)
class Input:
    """A block of a source: ``source[start_0:stop_0, ...]``.

    Attributes
    ----------
    source : str
        Its name in ``Program.sources``.
    slices : tuple of (int, int)
        One pair for each axis.
    meta : TensorMeta
        Of the block.
    """

    source: str
    slices: Slices
    meta: TensorMeta


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator.

    Attributes
    ----------
    op : str
        ``"aten.linear.default"``: namespace, operator, overload.
    args : tuple of Argument
    kwargs : mapping of str to Argument
    results : tuple of (TensorMeta or None)
        Of each tensor that it returns; None where it returns none in that place.
    several : bool
        Whether it returns a tuple or list of tensors, even of one.
    name : str
        Unique in the program.
    module : str
        Path of the module that called it: ``"model.layers.3.mlp.up_proj"``.
    meta_op : str
        What it was before sharding: the same for all its shards.
    tile : tuple of int
        Where it lies among them.
    """

    op: str
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]
    results: tuple[TensorMeta | None, ...]
    several: bool
    name: str
    module: str = ""
    meta_op: str = ""
    tile: tuple[int, ...] = ()

    def refs(self) -> Iterator[Ref]:
        """Go through the tensors that it reads, in order, repeats included."""
        for argument in (*self.args, *self.kwargs.values()):
            yield from refs_in(argument)

    def with_refs(self, new: Callable[[Ref], Argument]) -> Call:
        """Return the same call of other tensors."""
        return replace(
            self,
            args=replace_refs(self.args, new),
            kwargs={key: replace_refs(value, new) for key, value in self.kwargs.items()},
        )


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor that a program returns, in one piece or in tiles.

    Attributes
    ----------
    name : str
        ``"output0"``, ... what the model returns, flattened; ``"buffer:NAME"``: the new value of a
        buffer; ``"grad:NAME"``: the gradient of a parameter.
    meta : TensorMeta
        Of the whole.
    pieces : tuple of (Ref, slices)
        The tensors that make it up, and where each belongs.
    """

    name: str
    meta: TensorMeta
    pieces: tuple[tuple[Ref, Slices], ...]

    def with_refs(self, new: Callable[[Ref], Ref]) -> Output:
        """Return the same output, made up of other tensors."""
        return replace(self, pieces=tuple((new(ref), part) for ref, part in self.pieces))


@dataclass(frozen=True)
class Program:
    """Calls of operators, in an order in which they can run.

    Attributes
    ----------
    name : str
    sources : mapping of str to Source
        Whole tensors that it reads.
    inputs : tuple of Input
        Blocks of them; values 0 to ``len(inputs) - 1``.
    calls : tuple of Call
        Values from ``len(inputs)`` on.
    outputs : tuple of Output
    """

    name: str
    sources: Mapping[str, Source]
    inputs: tuple[Input, ...]
    calls: tuple[Call, ...]
    outputs: tuple[Output, ...] = field(default=())

    def meta(self, ref: Ref) -> TensorMeta:
        """Shape and dtype of a tensor of the program."""
        if ref.value < len(self.inputs):
            return self.inputs[ref.value].meta
        call = self.calls[ref.value - len(self.inputs)]
        found = call.results[max(0, ref.item)]
        assert found is not None, call.name
        return found


def whole(shape: tuple[int, ...]) -> Slices:
    """Slices that take all of a tensor."""
    return tuple((0, extent) for extent in shape)


def refs_in(argument: Argument) -> Iterator[Ref]:
    """Go through the tensors in an argument, in order."""
    if isinstance(argument, Ref):
        yield argument
    elif isinstance(argument, tuple):
        for entry in argument:
            yield from refs_in(entry)


def replace_refs(argument: Argument, new: Callable[[Ref], Argument]) -> Argument:
    """Put something else in the place of every tensor in an argument."""
    if isinstance(argument, Ref):
        return new(argument)
    if isinstance(argument, tuple):
        return tuple(replace_refs(entry, new) for entry in argument)
    return argument
