"""The dataflow graph: immutable arrays, validated once, when they enter."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from doppler.checks import (
    as_numbers,
    check_items,
    check_mapping,
    check_type,
    check_whole,
)
from doppler.errors import GraphError
from doppler.graph.calls import ATEN, CallForm, check_calls
from doppler.graph.dtypes import WIDTHS
from doppler.graph.order import kahn
from doppler.graph.spec import ROLES, OpSpec, TensorSpec, Tile
from doppler.messages import is_unicode, shown, shown_value

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

_INT32_MAX = np.iinfo(np.int32).max
# Beyond any tensor; a slip must not fill the memory.
_MAX_AXES = 32
_HALF = "half of a surrogate pair and no character"


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that a graph file names: accelerators that share a host with CPUs.

    Attributes
    ----------
    accelerators, cpus : int
        How many of each.
    accelerator_memory : float
        Bytes of each accelerator; the host's memory is not limited.
    """

    accelerators: int
    cpus: int
    accelerator_memory: float


@dataclass(frozen=True, eq=False)
class Graph:
    """A directed acyclic graph of operations.

    Every array is copied, made read-only and validated. An op's cost is either modeled (from
    ``flops`` and bytes, by the device) or explicit (``compute_s`` and ``transfer_s``, in seconds).

    Attributes
    ----------
    src, dst : int32 array, shape [edges]
        Edge ``e`` carries the output of op ``src[e]`` to op ``dst[e]``. Sorted by (src, dst).
        A repeated edge is merged: a tensor is needed once, however often it is read.
    flops : float64 array, shape [ops]
        Floating-point operations.
    output_bytes, param_bytes, bytes_read : float64 array, shape [ops]
        Size of the output; of the inputs and parameters that stay resident on the op's device;
        and of everything that the op reads when it runs. ``param_bytes`` counts a tile for every
        op that reads it; see :func:`doppler.graph.shared_tiles.shared_tiles`.
    names, kinds, meta_ops : tuple of str, length ops
        Name of the op; what sort of computation it is; the op it was before sharding.
    shards : int32 array, shape [ops]
        Index of the op among the shards of its meta-op.
    tiles : int32 array, shape [ops, axes]
        Where each op lies in the grid of its meta-op's tiles, -1 past the last of the op's own
        axes; shape [ops, 0] where the graph tells no such thing.
    compute_s, transfer_s : float64 array, shape [ops], or None
        Explicit seconds: of the op on a reference device, and of moving its output across a
        reference link.
    class_compute_s : mapping of str to float64 array, shape [ops]
        Explicit seconds on each device class (``"gpu"``, ``"cpu"``), for heterogeneous files;
        infinite where the class cannot run the op. Takes precedence over ``compute_s``.
    pinned : int32 array, shape [ops]
        Device that the op must run on, or -1.
    colocation : int32 array, shape [ops]
        Ops with the same number >= 0 must share a device; -1 is free.
    specs : tuple of OpSpec, length ops, or None
        The executable form.
    tensors : mapping of str to TensorSpec
        Inputs and parameters that the specs read.
    outputs : mapping of int to Tile
        Ops that hold a tile of the workload's result, and where the tile belongs.
    machine : Machine or None
        The machine named by the file that the graph came from.
    """

    name: str
    src: IntArray
    dst: IntArray
    flops: FloatArray
    output_bytes: FloatArray
    param_bytes: FloatArray
    bytes_read: FloatArray
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    meta_ops: tuple[str, ...]
    shards: IntArray
    tiles: IntArray
    pinned: IntArray
    colocation: IntArray
    compute_s: FloatArray | None = None
    transfer_s: FloatArray | None = None
    class_compute_s: Mapping[str, FloatArray] = field(default_factory=dict)
    specs: tuple[OpSpec, ...] | None = None
    tensors: Mapping[str, TensorSpec] = field(default_factory=dict)
    outputs: Mapping[int, Tile] = field(default_factory=dict)
    machine: Machine | None = None
    source: str = ""

    @classmethod
    def build(
        cls,
        n_ops: int,
        src: npt.ArrayLike,
        dst: npt.ArrayLike,
        *,
        name: str = "graph",
        source: str = "",
        flops: npt.ArrayLike | None = None,
        output_bytes: npt.ArrayLike | None = None,
        param_bytes: npt.ArrayLike | None = None,
        bytes_read: npt.ArrayLike | None = None,
        names: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        meta_ops: Sequence[str] | None = None,
        shards: npt.ArrayLike | None = None,
        tiles: Sequence[Sequence[int]] | IntArray | None = None,
        pinned: npt.ArrayLike | None = None,
        colocation: npt.ArrayLike | None = None,
        compute_s: npt.ArrayLike | None = None,
        transfer_s: npt.ArrayLike | None = None,
        class_compute_s: Mapping[str, npt.ArrayLike] | None = None,
        specs: Sequence[OpSpec] | None = None,
        tensors: Mapping[str, TensorSpec] | None = None,
        outputs: Mapping[int, Tile] | None = None,
        machine: Machine | None = None,
    ) -> Graph:
        """Validate the parts and make a graph of them.

        Parameters
        ----------
        n_ops : int
            Number of ops, at least 1.
        tiles : sequence of sequences of int, or int array of shape [ops, axes]
            Coordinates of each op; rows may be of different lengths, or padded with -1.
        source : str
            Where the graph comes from (a file name), for error messages.

        Raises
        ------
        GraphError
            On an empty graph, a self edge, an edge to a missing op, a cycle, a number that is not
            finite or is negative, an array of the wrong length, or a spec that reads an op
            without an edge or a tile outside its tensor. The message is one line that names the
            source, the op and the rule.
        """
        for what, label in (("name", name), ("source", source)):
            check_type(label, str, f"graph: {what}", GraphError)
        where = source or name

        def mapping(values: object, what: str) -> dict[Any, Any]:
            return {} if values is None else check_mapping(values, f"{where}: {what}", GraphError)

        n_ops = check_whole(n_ops, f"{where}: the number of ops", 0, _INT32_MAX, GraphError)
        by_class = mapping(class_compute_s, "compute seconds by class")
        for text in (name, *by_class, *mapping(tensors, "tensors")):
            if not is_unicode(str(text)):
                raise GraphError(f"{shown(where)}: the name {shown_value(text)} holds {_HALF}")
        if n_ops < 1:
            raise GraphError(f"{where}: the graph is empty; a graph needs at least one op")
        labels = _strings(names, n_ops, where, "names", lambda i: f"op{i}")
        edges_src, edges_dst = _edges(src, dst, n_ops, labels, where)

        def cost(values: npt.ArrayLike | None, what: str) -> FloatArray:
            return _costs(values, n_ops, labels, where, what)

        explicit = {
            key: _costs(
                values, n_ops, labels, where, f"{shown(key)} compute seconds", infinite=True
            )
            for key, values in by_class.items()
        }
        kinds_ = _strings(kinds, n_ops, where, "kinds", lambda i: "op")
        graph = cls(
            name=name,
            src=edges_src,
            dst=edges_dst,
            flops=cost(flops, "flops"),
            output_bytes=cost(output_bytes, "output bytes"),
            param_bytes=cost(param_bytes, "parameter bytes"),
            bytes_read=cost(bytes_read, "bytes read"),
            names=labels,
            kinds=kinds_,
            meta_ops=_strings(meta_ops, n_ops, where, "meta-ops", lambda i: labels[i]),
            shards=_integers(shards, n_ops, labels, where, "shards", 0),
            tiles=_tiles(tiles, n_ops, labels, where),
            pinned=_integers(pinned, n_ops, labels, where, "pinned devices", -1),
            colocation=_integers(colocation, n_ops, labels, where, "colocation groups", -1),
            compute_s=None if compute_s is None else cost(compute_s, "compute seconds"),
            transfer_s=None if transfer_s is None else cost(transfer_s, "transfer seconds"),
            class_compute_s=explicit,
            specs=None
            if specs is None
            else check_items(specs, OpSpec, f"{where}: specs", GraphError),
            tensors=mapping(tensors, "tensors"),
            outputs=mapping(outputs, "outputs"),
            machine=machine,
            source=source,
        )
        if machine is not None:
            _check_machine(check_type(machine, Machine, f"{where}: machine", GraphError), where)
        _check_executable(graph, where)
        if (compute_s is None) != (transfer_s is None) and not explicit:
            raise GraphError(f"{where}: give compute and transfer seconds together, or neither")
        if len(graph.topological_order) != n_ops:
            raise GraphError(f"{where}: the graph has a cycle: {_describe_cycle(graph)}")
        return graph

    @classmethod
    def from_arrays(
        cls,
        src: npt.ArrayLike,
        dst: npt.ArrayLike,
        compute: npt.ArrayLike,
        transfer: npt.ArrayLike,
        *,
        name: str = "graph",
        **extra: Any,
    ) -> Graph:
        """Make a graph with explicit costs.

        Parameters
        ----------
        src, dst : int array, shape [edges]
            Producer and consumer of each edge.
        compute : float array, shape [ops]
            Seconds of each op on any device.
        transfer : float array, shape [ops]
            Seconds to move each op's output to another device.
        **extra
            Any further part that :meth:`build` takes.

        Raises
        ------
        GraphError
            As :meth:`build`.
        """
        n_ops = _vector(compute, extra.get("source") or name, "compute seconds").size
        return cls.build(
            n_ops, src, dst, name=name, compute_s=compute, transfer_s=transfer, **extra
        )

    @property
    def n_ops(self) -> int:
        """Number of ops."""
        return len(self.names)

    @property
    def n_edges(self) -> int:
        """Number of edges, repeats merged."""
        return len(self.src)

    @cached_property
    def successors(self) -> tuple[IntArray, IntArray]:
        """CSR (pointers [ops + 1], consumers [edges]); the consumers of op ``u`` ascend."""
        pointers = np.zeros(self.n_ops + 1, np.int32)
        np.cumsum(np.bincount(self.src, minlength=self.n_ops), out=pointers[1:])
        return _frozen(pointers), self.dst

    @cached_property
    def predecessors(self) -> tuple[IntArray, IntArray]:
        """CSR (pointers [ops + 1], producers [edges]); the producers of op ``v`` ascend."""
        pointers = np.zeros(self.n_ops + 1, np.int32)
        np.cumsum(np.bincount(self.dst, minlength=self.n_ops), out=pointers[1:])
        order = np.argsort(self.dst, kind="stable")
        return _frozen(pointers), _frozen(self.src[order])

    @cached_property
    def topological_order(self) -> IntArray:
        """Ops in topological order; shorter than ``n_ops`` on a cycle. O(V + E)."""
        return _frozen(self._order[0])

    @cached_property
    def depth(self) -> IntArray:
        """The most edges on a path from an entry to each op, shape [ops]."""
        return _frozen(self._order[1])

    @cached_property
    def _order(self) -> tuple[IntArray, IntArray]:
        return kahn(*self.successors, self.n_ops)

    def tile_rows(self) -> list[tuple[int, ...]]:
        """Coordinates of each op without padding, length ops."""
        lengths = (self.tiles >= 0).sum(axis=1).tolist()
        return [
            tuple(row[:length]) for row, length in zip(self.tiles.tolist(), lengths, strict=True)
        ]

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, ops={self.n_ops}, edges={self.n_edges})"


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.setflags(write=False)
    return array


def _strings(
    values: Sequence[str] | None,
    n_ops: int,
    where: str,
    what: str,
    default: Callable[[int], str],
) -> tuple[str, ...]:
    if values is None:
        return tuple(default(i) for i in range(n_ops))
    listed = isinstance(values, Sequence | np.ndarray) and not isinstance(values, str)
    if not listed or not all(isinstance(value, str) for value in values):
        raise GraphError(f"{where}: {what} must be a list of strings, one for each op")
    if len(values) != n_ops:
        raise GraphError(f"{where}: {len(values)} {what} for {n_ops} ops")
    for op, value in enumerate(values):
        if not is_unicode(value):
            raise GraphError(f"{where}: op {op}: {what} holds {shown_value(value)}, {_HALF}")
    return tuple(map(str, values))


def _vector(values: npt.ArrayLike, where: str, what: str) -> npt.NDArray[Any]:
    """Copy ``values`` to a one-dimensional numeric array; numpy would take ``"1"`` and ``True``."""
    array = as_numbers(values)
    if array is None or array.ndim != 1:
        raise GraphError(f"{where}: {what} must be a flat list of numbers")
    if array.size and array.dtype.kind not in "iuf":
        listed = values if isinstance(values, Sequence) else np.asarray(values).tolist()
        raise GraphError(f"{where}: {what} must be numbers{_first_that_is_none(listed)}")
    return array


def _first_that_is_none(values: Sequence[object]) -> str:
    for index, value in enumerate(values):
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float)):
            return f", and entry {index} is {shown_value(value)}"
    return " that fit in 64 bits"


def _costs(
    values: npt.ArrayLike | None,
    n_ops: int,
    labels: tuple[str, ...],
    where: str,
    what: str,
    infinite: bool = False,
) -> FloatArray:
    if values is None:
        return _frozen(np.zeros(n_ops))
    array = _vector(values, where, what).astype(np.float64)
    if array.size != n_ops:
        raise GraphError(f"{where}: {array.size} {what} for {n_ops} ops")
    bad = np.isnan(array) | (array < 0) | (np.isinf(array) & (not infinite))
    if bad.any():
        op = int(np.flatnonzero(bad)[0])
        rule = "must be a number >= 0" if infinite else "must be a finite number >= 0"
        raise GraphError(f"{where}: op {op} ({shown(labels[op])}): {what} is {array[op]}, {rule}")
    return _frozen(array)


def _integers(
    values: npt.ArrayLike | None,
    n_ops: int,
    labels: tuple[str, ...],
    where: str,
    what: str,
    default: int,
) -> IntArray:
    if values is None:
        return _frozen(np.full(n_ops, default, np.int32))
    array = _vector(values, where, what)
    if array.size != n_ops:
        raise GraphError(f"{where}: {array.size} {what} for {n_ops} ops")
    if array.dtype.kind not in "iu":
        raise GraphError(f"{where}: {what} must be whole numbers")
    bad = (array < default) | (array > _INT32_MAX)
    if bad.any():
        op = int(np.flatnonzero(bad)[0])
        rule = f"must be from {default} to {_INT32_MAX}"
        raise GraphError(
            f"{where}: op {op} ({shown(labels[op])}): {what} holds {array[op]}, {rule}"
        )
    return _frozen(array.astype(np.int32))


def _tiles(
    rows: Sequence[Sequence[int]] | IntArray | None,
    n_ops: int,
    labels: tuple[str, ...],
    where: str,
) -> IntArray:
    """Pad the coordinates of the ops to one width, the least that holds them all."""
    if rows is None:
        return _frozen(np.empty((n_ops, 0), np.int32))
    try:
        lengths = np.array(list(map(len, rows)), np.int64)
    except TypeError:
        raise GraphError(f"{where}: tiles must be a list of coordinates for each op") from None
    if len(rows) != n_ops:
        raise GraphError(f"{where}: {len(rows)} tiles for {n_ops} ops")
    if isinstance(rows, np.ndarray):
        given: npt.ArrayLike = rows.ravel()
    else:
        given = list(itertools.chain.from_iterable(rows))
    flat = _vector(given, where, "tile coordinates")
    if flat.size and flat.dtype.kind not in "iu":
        raise GraphError(f"{where}: tile coordinates must be whole numbers")
    width = int(lengths.max())
    if width > _MAX_AXES:
        raise GraphError(f"{where}: a tile has {width} coordinates, at most {_MAX_AXES}")
    own = np.arange(width) < lengths[:, None]
    table = np.full((n_ops, width), -1, np.int64)
    # Unsigned numbers beyond the range must not wrap to -1.
    table[own] = np.where(flat > _INT32_MAX, _INT32_MAX + 1, flat.astype(np.int64))
    # After the first -1 nothing may follow: an axis has the same number for every op of a meta-op.
    late = (table[:, 1:] >= 0) & (table[:, :-1] < 0)
    bad = ((table < -1) | (table > _INT32_MAX)).any(axis=1) | late.any(axis=1)
    if bad.any():
        op = int(np.flatnonzero(bad)[0])
        raise GraphError(
            f"{where}: op {op} ({shown(labels[op])}): its tile is "
            f"{shown_value(table[op, : lengths[op]].tolist())}, "
            f"must be numbers from 0 to {_INT32_MAX}"
        )
    axes = int((table >= 0).any(axis=0).sum())
    return _frozen(table[:, :axes].astype(np.int32))


def _edges(
    src: npt.ArrayLike, dst: npt.ArrayLike, n_ops: int, labels: tuple[str, ...], where: str
) -> tuple[IntArray, IntArray]:
    heads = _vector(src, where, "edge sources")
    tails = _vector(dst, where, "edge destinations")
    if heads.size != tails.size:
        raise GraphError(f"{where}: {heads.size} edge sources but {tails.size} destinations")
    for ends in (heads, tails):
        bad = ~((ends >= 0) & (ends < n_ops) & (ends == np.floor(ends)))
        if bad.any():
            edge = int(np.flatnonzero(bad)[0])
            raise GraphError(
                f"{where}: edge {edge} ({heads[edge]} -> {tails[edge]}) names a missing op; "
                f"ids run from 0 to {n_ops - 1}"
            )
    loops = np.flatnonzero(heads == tails)
    if loops.size:
        op = int(heads[loops[0]])
        raise GraphError(f"{where}: op {op} ({shown(labels[op])}) has an edge to itself")
    keys = np.unique(heads.astype(np.int64) * n_ops + tails.astype(np.int64))
    return _frozen((keys // n_ops).astype(np.int32)), _frozen((keys % n_ops).astype(np.int32))


def _check_machine(machine: Machine, where: str) -> None:
    if machine.accelerators < 0 or machine.cpus < 0 or machine.accelerators + machine.cpus < 1:
        raise GraphError(
            f"{where}: the machine has {machine.accelerators} accelerators and {machine.cpus} "
            "cpus; it needs at least one device, and no count below 0"
        )
    memory = machine.accelerator_memory
    if not (np.isfinite(memory) and memory >= 0):
        raise GraphError(f"{where}: accelerator memory is {memory}, must be a finite number >= 0")


def _check_executable(graph: Graph, where: str) -> None:
    """Hold the executable form against the arrays: what an op reads must exist and be ordered."""
    for name, tensor in graph.tensors.items():
        check_type(tensor, TensorSpec, f"{where}: tensor {shown_value(name)}", GraphError)
        if any(extent < 1 for extent in tensor.shape):
            raise GraphError(
                f"{where}: tensor {shown_value(name)} has shape "
                f"{shown_value(tuple(tensor.shape))}; every axis needs at least one element"
            )
        _check_known(f"{where}: tensor {shown_value(name)}: role", tensor.role, ROLES)
        if tensor.dtype is not None:
            _check_known(f"{where}: tensor {shown_value(name)}: dtype", tensor.dtype, WIDTHS)
    for op, tile in graph.outputs.items():
        check_whole(op, f"{where}: output op", -_INT32_MAX, error=GraphError)
        check_type(tile, Tile, f"{where}: output of op {op}", GraphError)
        if not 0 <= op < graph.n_ops:
            raise GraphError(f"{where}: output op {op} is missing; ids end at {graph.n_ops - 1}")
    if graph.specs is None:
        return
    if len(graph.specs) != graph.n_ops:
        raise GraphError(f"{where}: {len(graph.specs)} specs for {graph.n_ops} ops")
    readers: list[int] = []
    read: list[int] = []
    checked: set[Tile] = set()
    for op, spec in enumerate(graph.specs):
        for value in spec.inputs:
            if not isinstance(value, Tile):
                readers.append(op)
                read.append(value)
            elif value not in checked:
                _check_tile(value, graph, op, where)
                checked.add(value)
    n_ops = graph.n_ops
    # A missing op becomes -1, which no edge has; it might not fit in 64 bits.
    producers = np.array([u if 0 <= u < n_ops else -1 for u in read], np.int64)
    edges = graph.src.astype(np.int64) * n_ops + graph.dst
    ordered = (producers >= 0) & np.isin(producers * n_ops + np.array(readers, np.int64), edges)
    if not ordered.all():
        at = int(np.flatnonzero(~ordered)[0])
        op = readers[at]
        raise GraphError(
            f"{where}: op {op} ({shown(graph.names[op])}): its spec reads op "
            f"{shown_value(int(read[at]))}, but there is no edge from it"
        )
    if any(spec.function == ATEN for spec in graph.specs):
        _check_calls(graph, where)


def _check_known(label: str, value: object, known: Collection[str]) -> None:
    if not isinstance(value, str) or value not in known:
        raise GraphError(f"{label} is {shown_value(value)}, must be one of {', '.join(known)}")


def _check_calls(graph: Graph, where: str) -> None:
    """Hold ops that are calls against the ops that they read, and against their costs."""
    specs = graph.specs
    assert specs is not None
    known: dict[tuple[int, int], CallForm] = {}
    forms: list[CallForm | None] = [None] * graph.n_ops

    def fail(op: int, rule: object) -> NoReturn:
        raise GraphError(f"{where}: op {op} ({shown(graph.names[op])}): {rule}")

    for op, spec in enumerate(specs):
        if spec.function == ATEN:
            # Ops made from one form share the mapping itself.
            key = (id(spec.attributes), len(spec.inputs))
            if key not in known:
                try:
                    known[key] = check_calls(spec.attributes, len(spec.inputs))
                except GraphError as error:
                    fail(op, error)
            forms[op] = known[key]
    counts = [1 if form is None else len(form.results) for form in forms]
    for op, (spec, form) in enumerate(zip(specs, forms, strict=True)):
        reads = ((at, -1) for at in range(len(spec.inputs))) if form is None else form.reads
        for at, item in reads:
            source = spec.inputs[at]
            count = 1 if isinstance(source, Tile) else counts[source]
            if count == 1 and item >= 0:
                fail(op, f"reads item {item} of its input {at}, which is one tensor")
            if count > 1 and not 0 <= item < count:
                which = "without an item" if item < 0 else f"item {item}"
                fail(op, f"reads its input {at} {which}; that is {count} tensors")
        if form is None:
            continue
        if tuple(spec.shape) != form.results[0]:
            fail(op, f"has shape {tuple(spec.shape)}, its first result {form.results[0]}")
        if graph.output_bytes[op] != form.bytes:
            fail(op, f"output bytes are {graph.output_bytes[op]:.0f}, its results {form.bytes}")
    sizes: dict[str, int] = {}
    whole: dict[str, list[int]] = {}
    for op, tile in graph.outputs.items():
        form = forms[op]
        if counts[op] > 1:
            fail(op, f"is an output and has {counts[op]} results, must have one")
        extents = tuple(stop - start for start, stop in tile.slices)
        if form is not None and (
            extents != form.results[0] or any(start < 0 for start, _ in tile.slices)
        ):
            fail(op, f"has shape {form.results[0]}, its tile is {shown_value(tile.slices)}")
        shape = whole.setdefault(tile.tensor, [0] * len(tile.slices))
        if len(shape) != len(tile.slices):
            fail(op, f"its tile of {shown_value(tile.tensor)} has another number of axes")
        shape[:] = (max(extent, stop) for extent, (_, stop) in zip(shape, tile.slices, strict=True))
        sizes[tile.tensor] = sizes.get(tile.tensor, 0) + math.prod(extents)
    distinct = set(graph.outputs.values())
    for name, shape in whole.items():
        if sizes[name] != math.prod(shape) or len(distinct) < len(graph.outputs):
            raise GraphError(
                f"{where}: the tiles of result {shown_value(name)} leave gaps in its shape "
                f"{shown_value(tuple(shape))}, or overlap"
            )


def _check_tile(tile: Tile, graph: Graph, op: int, where: str) -> None:
    tensor = graph.tensors.get(tile.tensor)
    label = f"{where}: op {op} ({shown(graph.names[op])}): its spec reads"
    if tensor is None:
        raise GraphError(f"{label} tensor {shown_value(tile.tensor)}, which is not in the graph")
    if len(tile.slices) != len(tensor.shape) or not all(
        0 <= start < stop <= extent
        for (start, stop), extent in zip(tile.slices, tensor.shape, strict=True)
    ):
        raise GraphError(
            f"{label} {shown_value(tile.slices)} of tensor {shown_value(tile.tensor)}, "
            f"whose shape is {shown_value(tuple(tensor.shape))}"
        )


def _describe_cycle(graph: Graph) -> str:
    left = np.ones(graph.n_ops, bool)
    left[graph.topological_order] = False
    pointers, producers = graph.predecessors
    op = int(np.flatnonzero(left)[0])
    path = [op]
    seen = {op: 0}
    while True:
        inputs = producers[pointers[op] : pointers[op + 1]]
        op = int(inputs[left[inputs]][0])
        path.append(op)
        if op in seen:
            cycle = path[seen[op] :][::-1]
            steps = [f"{o} ({shown(graph.names[o])})" for o in cycle]
            if len(cycle) <= 8:
                return " -> ".join(steps)
            return " -> ".join([*steps[:6], "...", steps[-1]]) + f" ({len(cycle) - 1} ops)"
        seen[op] = len(path) - 1
