"""How the axes of an operator's results follow from those of its operands.

A signature labels axes, as the letters of an einsum do: what has one label is cut together. Where
it is known, a call can be made of blocks of its operands, one call per tile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from doppler.capture.program import Ref, TensorMeta, refs_in
from doppler.capture.schemas import Given

#: A label, and how many entries of the axis one step of it takes; None: the axis stays whole.
Axis = tuple[str, int] | None
Axes = tuple[Axis, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """A call as a rule reads it.

    Attributes
    ----------
    op : str
        ``"aten.linear.default"``.
    given : dict of str to Argument
        Its arguments by the names of the operator's schema, defaults included.
    results : tuple of TensorMeta
    meta : callable
        Shape and dtype of a tensor that it reads.
    """

    op: str
    given: Given
    results: tuple[TensorMeta, ...]
    meta: Callable[[Ref], TensorMeta]

    def shape(self, name: str) -> Shape:
        """Shape of the tensor given as an argument."""
        return self.meta(self.given[name]).shape

    def shapes(self, name: str) -> tuple[Shape, ...]:
        """Shapes of all tensors in an argument; none where it is left out."""
        return tuple(self.meta(ref).shape for ref in refs_in(self.given.get(name)))

    @property
    def result(self) -> Shape:
        """Shape of the first result."""
        return self.results[0].shape


@dataclass(frozen=True)
class AxisSignature:
    """Labels of the axes of a call's tensors.

    Attributes
    ----------
    operands : mapping of str to tuple of Axes
        For each argument by name, the axes of each tensor in it. An argument that is not named is
        read whole.
    results : tuple of Axes
        A result without a label does not depend on what is cut along it, unless that is summed.
    summed : frozenset of str
        Labels whose tiles are partial sums of the results.
    kind : {"", "contraction", "convolution", "attention", "table"}
        What decides whether a call may start to be split; "" never does.
    fit : callable, or None
        Gives the arguments of a tile from those of the whole and the shape of its first result.
    bare : callable, or None
        Operator and arguments of all partial sums but the first: without what is added once.
    op : str
        Another operator for the tiles; empty: the same.
    """

    operands: Mapping[str, tuple[Axes, ...]]
    results: tuple[Axes, ...]
    summed: frozenset[str] = frozenset()
    kind: str = ""
    fit: Callable[[Given, Shape], Given] | None = None
    bare: Callable[[Given], tuple[str, Given]] | None = None
    op: str = ""


def axes(labels: str) -> Axes:
    """One axis per letter; a dot is an axis that stays whole."""
    return tuple(None if letter == "." else (letter, 1) for letter in labels)


def positions(rank: int, *whole: int) -> Axes:
    """Label axes by their position, but for those that stay whole (negative: from the end)."""
    kept = {axis % rank for axis in whole} if rank else set()
    return tuple(None if axis in kept else (f"{axis}", 1) for axis in range(rank))


def broadcast(shape: Shape, result: Shape, labels: Axes) -> Axes:
    """Axes of a tensor that is broadcast to a result with these labels."""
    offset = len(result) - len(shape)
    return tuple(
        labels[offset + axis] if extent == result[offset + axis] else None
        for axis, extent in enumerate(shape)
    )
