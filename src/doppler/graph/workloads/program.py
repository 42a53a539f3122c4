"""A workload before sharding: meta-ops over named dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from doppler.checks import check_whole
from doppler.errors import GraphError
from doppler.graph.spec import TensorSpec

#: Floating-point operations per element of the output (of the input, for reductions); an
#: exponential, a division and a square root count as one each.
FLOPS_PER_ELEMENT: Mapping[str, int] = {
    "add": 1,
    "amax": 1,
    "divide": 1,
    "divide_or_zero": 1,
    "exp_difference": 2,
    "multiply": 1,
    "relu": 1,
    "rms_norm": 4,
    "rms_scale": 2,
    "rotary": 3,
    "silu_multiply": 4,
    "softmax": 5,
    "square_sum": 2,
    "sum": 1,
}

# Sizes multiply; beyond that no product of a few would be a number.
MOST_SIZE = 2**40


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the program, with a dimension for each axis.

    Attributes
    ----------
    name : str
        The input, parameter, view or meta-op that it is the value of.
    axes : tuple of str
        Dimension of each axis. Dimensions give the iteration space and the tiling: a consumer
        that reads an axis as another dimension of the same size (:meth:`rename`) may tile it
        differently.
    """

    name: str
    axes: tuple[str, ...]

    def rename(self, **dimensions: str) -> Value:
        """Read axes as other dimensions, ``value.rename(sequence="keys")``.

        Raises
        ------
        GraphError
            If the value has no such axis.
        """
        for old in dimensions:
            if old not in self.axes:
                raise GraphError(f"{self.name} has no axis {old!r}, only {', '.join(self.axes)}")
        return Value(self.name, tuple(dimensions.get(axis, axis) for axis in self.axes))


@dataclass(frozen=True, slots=True)
class View:
    """A reshape of a value: one axis split into several, or several merged into one.

    Attributes
    ----------
    source : str
        The value that is reshaped.
    groups : tuple of (tuple of int, tuple of int)
        Sizes of the source's axes and of the view's axes, group by group, in order. The sizes of
        a group have the same product, and at least one side is a single axis.
    """

    source: str
    groups: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class MetaOp:
    """One computation over an iteration space of named dimensions.

    The iteration space is ``axes + reduced``. Sharding makes one op for every tile of it, and
    combines the partial results where a reduced dimension is split.

    Attributes
    ----------
    name, function, kind : str
        The name; the torch function of :mod:`doppler.graph.execution`; the sort of computation.
    inputs : tuple of Value
        Operands, each over a part of the iteration space.
    axes : tuple of str
        Dimensions of the result.
    reduced : tuple of str
        Dimensions that are summed (or maximized) over.
    combine : str
        Function that joins two partial results: ``"add"`` or ``"maximum"``.
    whole : frozenset of str
        Dimensions that the function needs unsplit, whatever the tiling says.
    flops : int
        Floating-point operations per point of the iteration space.
    attributes : Mapping
        Attributes of the ops, the same for every shard.
    """

    name: str
    function: str
    kind: str
    inputs: tuple[Value, ...]
    axes: tuple[str, ...]
    reduced: tuple[str, ...] = ()
    combine: str = "add"
    whole: frozenset[str] = frozenset()
    flops: int = 1
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fusable:
    """A normalization: one fused meta-op where ``dimension`` is unsplit, or else its parts."""

    dimension: str
    fused: MetaOp
    parts: tuple[MetaOp, ...]


class WorkloadProgram:
    """A workload as a list of meta-ops over named dimensions.

    Parameters
    ----------
    name : str
        Name of the workload, for the graph and for error messages.
    sizes : mapping of str to int
        Size of each dimension.

    Raises
    ------
    GraphError
        If a size is not a whole number >= 1.
    """

    def __init__(self, name: str, sizes: Mapping[str, int]) -> None:
        for dimension, size in sizes.items():
            check_size(name, dimension, size)
        self.name = name
        self.sizes = dict(sizes)
        self.axes: dict[str, tuple[str, ...]] = {}
        self.tensors: dict[str, TensorSpec] = {}
        self.views: dict[str, View] = {}
        self.steps: list[MetaOp | Fusable] = []
        self.results: list[str] = []

    def input(self, name: str, axes: Sequence[str], **init: Any) -> Value:
        """Declare a tensor that is given anew each run; ``init`` as in :class:`TensorSpec`."""
        return self._tensor(name, axes, "input", init or {"kind": "normal", "std": 1.0})

    def parameter(self, name: str, axes: Sequence[str], **init: Any) -> Value:
        """Declare a tensor that stays on its devices, by default normal with std 1/sqrt(rows)."""
        value = self._define(name, axes)
        rows = self.sizes[axes[-2]] if len(axes) > 1 else 1
        self._describe(value, "parameter", init or {"kind": "normal", "std": rows**-0.5})
        return value

    def einsum(
        self, name: str, inputs: Sequence[Value], axes: Sequence[str], *, scale: float = 1.0
    ) -> Value:
        """Multiply the inputs and sum over every dimension that is not in ``axes``.

        Counts 2 flops per point of the iteration space and input after the first (one where
        nothing is summed), times ``scale`` once per result element, which is not counted.
        """
        spaces = dict.fromkeys(axis for value in inputs for axis in value.axes)
        reduced = tuple(axis for axis in spaces if axis not in axes)
        letters = {axis: chr(ord("a") + i) for i, axis in enumerate(spaces)}
        left = ",".join("".join(letters[axis] for axis in value.axes) for value in inputs)
        self._check(name, inputs, axes, spaces)
        attributes: dict[str, Any] = {
            "equation": f"{left}->{''.join(letters[axis] for axis in axes)}"
        }
        if scale != 1.0:
            attributes["scale"] = scale
        flops = (2 if reduced else 1) * (len(inputs) - 1)
        return self._add(
            MetaOp(
                name,
                "einsum",
                "einsum",
                tuple(inputs),
                tuple(axes),
                reduced,
                flops=flops,
                attributes=attributes,
            )
        )

    def elementwise(
        self,
        name: str,
        function: str,
        inputs: Sequence[Value],
        *,
        whole: Iterable[str] = (),
        **attributes: Any,
    ) -> Value:
        """Apply a function point by point over the axes of the first input.

        The other inputs are broadcast along the axes that they lack. A function that looks along
        an axis (a rotation, a softmax) names it in ``whole``.
        """
        return self._add(
            self._map(name, function, inputs, "elementwise", whole=frozenset(whole), **attributes)
        )

    def reduce(self, name: str, function: str, value: Value, over: str) -> Value:
        """Reduce one dimension by ``"sum"``, ``"amax"`` or ``"square_sum"``."""
        return self._add(self._reduction(name, function, value, over))

    def softmax(self, name: str, value: Value, over: str) -> Value:
        """Softmax along a dimension: fused, or by maximum, exponential, sum and quotient.

        Where the dimension is split, the maximum and the sum are combined from their tiles, so
        that the result is as stable as the fused one.
        """
        fused = self._map(
            name,
            "softmax",
            [value],
            "softmax",
            whole=frozenset({over}),
            dim=self._position(name, value, over),
        )
        peak = self._reduction(f"{name}.max", "amax", value, over)
        inputs = [value, self._define(peak.name, peak.axes)]
        shifted = self._map(f"{name}.exp", "exp_difference", inputs, "elementwise")
        powers = self._define(shifted.name, shifted.axes)
        total = self._reduction(f"{name}.sum", "sum", powers, over)
        inputs = [powers, self._define(total.name, total.axes)]
        quotient = self._map(name, "divide", inputs, "elementwise")
        return self._fusable(over, fused, (peak, shifted, total, quotient))

    def rms_norm(
        self, name: str, value: Value, weight: Value, over: str, *, epsilon: float = 1e-5
    ) -> Value:
        """Divide by the root mean square along a dimension and multiply with a weight."""
        fused = self._map(
            name,
            "rms_norm",
            [value, weight],
            "norm",
            whole=frozenset({over}),
            dim=self._position(name, value, over),
            epsilon=epsilon,
        )
        squares = self._reduction(f"{name}.squares", "square_sum", value, over)
        inputs = [value, self._define(squares.name, squares.axes), weight]
        size = self.sizes[over]
        scaled = self._map(name, "rms_scale", inputs, "norm", size=size, epsilon=epsilon)
        return self._fusable(over, fused, (squares, scaled))

    def split(self, value: Value, axis: str, into: Sequence[str]) -> Value:
        """View one axis as several, the last the fastest."""
        at = self._position(value.name, value, axis)
        axes = (*value.axes[:at], *into, *value.axes[at + 1 :])
        return self._view(value, axes, (axis,), tuple(into))

    def merge(self, value: Value, axes: Sequence[str], into: str) -> Value:
        """View neighboring axes as one."""
        at = self._position(value.name, value, axes[0])
        if value.axes[at : at + len(axes)] != tuple(axes):
            raise GraphError(f"{self.name}: {', '.join(axes)} are no neighbors in {value.name}")
        merged = (*value.axes[:at], into, *value.axes[at + len(axes) :])
        return self._view(value, merged, tuple(axes), (into,))

    def result(self, value: Value) -> None:
        """Declare the value of a meta-op as a result of the workload."""
        if value.name in self.tensors or value.name in self.views:
            raise GraphError(f"{self.name}: result {value.name!r} is not computed by a meta-op")
        self.results.append(value.name)

    def _tensor(self, name: str, axes: Sequence[str], role: str, init: Mapping[str, Any]) -> Value:
        value = self._define(name, axes)
        self._describe(value, role, init)
        return value

    def _describe(self, value: Value, role: str, init: Mapping[str, Any]) -> None:
        shape = tuple(self.sizes[axis] for axis in value.axes)
        self.tensors[value.name] = TensorSpec(shape, role, dict(init))

    def _define(self, name: str, axes: Sequence[str]) -> Value:
        if name in self.axes:
            raise GraphError(f"{self.name}: {name!r} is defined twice")
        unknown = [axis for axis in axes if axis not in self.sizes]
        if unknown:
            raise GraphError(f"{self.name}: {name} uses dimension {unknown[0]!r} without a size")
        self.axes[name] = tuple(axes)
        return Value(name, tuple(axes))

    def _add(self, op: MetaOp) -> Value:
        self.steps.append(op)
        return self._define(op.name, op.axes)

    def _fusable(self, over: str, fused: MetaOp, parts: tuple[MetaOp, ...]) -> Value:
        self.steps.append(Fusable(over, fused, parts))
        return self._define(fused.name, fused.axes)

    def _map(
        self,
        name: str,
        function: str,
        inputs: Sequence[Value],
        kind: str,
        *,
        whole: frozenset[str] = frozenset(),
        **attributes: Any,
    ) -> MetaOp:
        axes = inputs[0].axes
        self._check(name, inputs, axes, axes)
        positions = tuple(tuple(axes.index(axis) for axis in value.axes) for value in inputs)
        if any(place != tuple(range(len(axes))) for place in positions):
            attributes["axes"] = positions
        return MetaOp(
            name,
            function,
            kind,
            tuple(inputs),
            axes,
            whole=whole,
            flops=FLOPS_PER_ELEMENT[function],
            attributes=attributes,
        )

    def _reduction(self, name: str, function: str, value: Value, over: str) -> MetaOp:
        at = self._position(name, value, over)
        return MetaOp(
            name,
            function,
            "reduce",
            (value,),
            tuple(axis for axis in value.axes if axis != over),
            (over,),
            combine="maximum" if function == "amax" else "add",
            flops=FLOPS_PER_ELEMENT[function],
            attributes={"dim": at},
        )

    def _view(
        self, value: Value, axes: tuple[str, ...], old: tuple[str, ...], new: tuple[str, ...]
    ) -> Value:
        if value.name in self.views:
            raise GraphError(f"{self.name}: {value.name} is a view already; view its source")
        name = f"{value.name}.view{sum(v.source == value.name for v in self.views.values())}"
        view = self._define(name, axes)
        before = tuple(self.sizes[axis] for axis in old)
        after = tuple(self.sizes[axis] for axis in new)
        if _product(before) != _product(after):
            raise GraphError(
                f"{self.name}: cannot view ({', '.join(old)}) of sizes {before} in {value.name} "
                f"as ({', '.join(new)}) of sizes {after}"
            )
        single = [((self.sizes[axis],),) * 2 for axis in value.axes]
        at = value.axes.index(old[0])
        groups = (*single[:at], (before, after), *single[at + len(old) :])
        self.views[name] = View(value.name, groups)
        return view

    def _position(self, name: str, value: Value, axis: str) -> int:
        if axis not in value.axes:
            raise GraphError(f"{self.name}: {name}: {value.name} has no axis {axis!r}")
        return value.axes.index(axis)

    def _check(
        self, name: str, inputs: Sequence[Value], axes: Iterable[str], space: Iterable[str]
    ) -> None:
        space = tuple(space)
        for value in inputs:
            own = self.axes.get(value.name)
            if own is None:
                raise GraphError(f"{self.name}: {name}: {value.name!r} is not in this program")
            for axis, defined in zip(value.axes, own, strict=True):
                if axis not in self.sizes:
                    raise GraphError(f"{self.name}: {name}: dimension {axis!r} has no size")
                if axis not in space:
                    raise GraphError(f"{self.name}: {name}: axis {axis!r} of {value.name} is lost")
                if self.sizes[axis] != self.sizes[defined]:
                    raise GraphError(
                        f"{self.name}: {name} reads axis {defined!r} ({self.sizes[defined]}) of "
                        f"{value.name} as {axis!r} ({self.sizes[axis]})"
                    )
        for axis in axes:
            if axis not in space:
                raise GraphError(f"{self.name}: {name}: no input has the axis {axis!r}")


def check_size(workload: str, name: str, size: object) -> None:
    """Check that a size is a whole number >= 1.

    Raises
    ------
    GraphError
        If not; the message names the workload and the size.
    """
    if check_whole(size, f"{workload}: {name}", 1, error=GraphError) > MOST_SIZE:
        raise GraphError(f"{workload}: {name} is more than {MOST_SIZE:,}")


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total
