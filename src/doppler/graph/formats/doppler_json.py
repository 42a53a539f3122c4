"""Doppler's own JSON, which holds everything that a :class:`Graph` holds.

Version 1 is one object. Required are ``format`` (``"doppler-graph"``), ``version`` (1), ``names``
(an array that tells how many ops there are), ``src`` and ``dst``; every other field of a graph is
optional and has the key of its attribute. Unknown keys are refused.

A column (one entry per op) is an array, or, where few values repeat,
``{"values": [...], "index": [...]}``. An entry of ``tiles`` is the list of the op's coordinates;
a file may do without. An infinite entry of ``class_compute_s`` is ``null``.

``specs`` is columnar as well: ``forms`` lists the distinct combinations of ``function``, ``shape``
and ``attributes``, ``form`` is the column that tells which one an op has, ``arity`` the column of
how many inputs it has, and ``inputs`` all inputs end to end: an op's id, or ``-1 - t`` for entry
``t`` of ``tiles``. A tile is ``[tensor, [start, stop], ...]``, one pair per axis. Sequences within
attributes come back as tuples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, NoReturn

import numpy as np
from pydantic import BeforeValidator, Field

from doppler.documents.schema import Strict, check
from doppler.errors import GraphError
from doppler.graph.calls import OwnCalls
from doppler.graph.graph import Graph, Machine
from doppler.graph.spec import OpSpec, TensorSpec, Tile
from doppler.messages import shown, shown_value

FORMAT = "doppler-graph"
VERSION = 1

_COSTS = ("flops", "output_bytes", "param_bytes", "bytes_read")
_EXPLICIT = ("compute_s", "transfer_s")
_LABELS = ("kinds", "meta_ops")
_INTEGERS = ("shards", "pinned", "colocation")
_COLUMNS = (*_COSTS, *_EXPLICIT, *_LABELS, *_INTEGERS, "tiles")


def _expand(value: Any) -> Any:
    """Write out a column of few values that repeat."""
    if not isinstance(value, dict):
        return value
    values, index = value.get("values"), value.get("index")
    if value.keys() != {"values", "index"} or not isinstance(values, list):
        raise ValueError("must be a list, or a mapping with the lists 'values' and 'index'")
    if not isinstance(index, list) or not set(map(type, index)) <= {int}:
        raise ValueError("index must be a list of whole numbers")
    if index and not 0 <= min(index) <= max(index) < len(values):
        raise ValueError(f"index points outside the {len(values)} values")
    return [values[i] for i in index]


_Numbers = Annotated[list[float], BeforeValidator(_expand)]
_Integers = Annotated[list[int], BeforeValidator(_expand)]
_Texts = Annotated[list[str], BeforeValidator(_expand)]
_Rows = Annotated[list[list[int]], BeforeValidator(_expand)]
_Seconds = Annotated[list[float | None], BeforeValidator(_expand)]


class _Form(Strict):
    function: str
    shape: list[int]
    attributes: dict[str, Any] = Field(default_factory=dict)


class _Specs(Strict):
    forms: list[_Form]
    form: _Integers
    arity: _Integers
    inputs: list[int]
    tiles: list[list[Any]]


class _Tensor(Strict):
    shape: list[int]
    role: str
    init: dict[str, Any]
    dtype: str | None = None


class _Machine(Strict):
    accelerators: int
    cpus: int
    accelerator_memory: float


class _File(Strict):
    format: str
    version: int
    name: str = "graph"
    names: list[str]
    src: list[int]
    dst: list[int]
    flops: _Numbers | None = None
    output_bytes: _Numbers | None = None
    param_bytes: _Numbers | None = None
    bytes_read: _Numbers | None = None
    compute_s: _Numbers | None = None
    transfer_s: _Numbers | None = None
    class_compute_s: dict[str, _Seconds] = Field(default_factory=dict)
    kinds: _Texts | None = None
    meta_ops: _Texts | None = None
    shards: _Integers | None = None
    pinned: _Integers | None = None
    colocation: _Integers | None = None
    tiles: _Rows | None = None
    specs: _Specs | None = None
    tensors: dict[str, _Tensor] = Field(default_factory=dict)
    outputs: list[list[Any]] = Field(default_factory=list)
    machine: _Machine | None = None


def recognizes(document: Mapping[str, Any]) -> bool:
    """Return whether the object names a format."""
    return "format" in document


def read(document: Mapping[str, Any], where: str) -> Graph:
    """Make a graph of the parsed document.

    Parameters
    ----------
    document : mapping
        The file's top object.
    where : str
        The file, for messages.

    Raises
    ------
    GraphError
        Names the file, the key or the op, and the rule; also on another format or a newer version.
    """
    if document["format"] != FORMAT:
        _fail(where, "format", f"is {shown_value(document['format'])}, must be {FORMAT!r}")
    version = document.get("version")
    if type(version) is int and version > VERSION:
        _fail(where, "version", f"is newer than {VERSION}, the last that is known: update doppler")
    file = check(_File, document, where, GraphError)
    if version != VERSION:
        _fail(where, "version", f"is {version}, must be from 1 to {VERSION}")
    n_ops = len(file.names)
    return Graph.build(
        n_ops,
        file.src,
        file.dst,
        name=file.name,
        source=where,
        names=file.names,
        class_compute_s={
            name: [np.inf if seconds is None else seconds for seconds in column]
            for name, column in file.class_compute_s.items()
        },
        specs=None if file.specs is None else _read_specs(file.specs, n_ops, where),
        tensors={
            name: TensorSpec(tuple(each.shape), each.role, _frozen_sequences(each.init), each.dtype)
            for name, each in file.tensors.items()
        },
        outputs=_read_outputs(file.outputs, where),
        machine=None if file.machine is None else Machine(**dict(file.machine)),
        **{key: getattr(file, key) for key in _COLUMNS},
    )


def write(graph: Graph) -> str:
    """Return the graph as JSON text; all but ``source`` comes back exactly.

    Raises
    ------
    GraphError
        If an attribute of a spec, or how to fill a tensor, holds a value that JSON does not know.
    """
    document: dict[str, Any] = {"format": FORMAT, "version": VERSION, "name": graph.name}
    document["names"] = list(graph.names)
    document["src"] = graph.src.tolist()
    document["dst"] = graph.dst.tolist()
    for key in _COSTS + _EXPLICIT:
        values = getattr(graph, key)
        if values is not None:
            document[key] = _compact(list(map(_shortest, values.tolist())))
    for key in _LABELS:
        document[key] = _compact(list(getattr(graph, key)))
    for key in _INTEGERS:
        document[key] = _compact(getattr(graph, key).tolist())
    if graph.tiles.shape[1]:
        document["tiles"] = _compact(graph.tile_rows())
    if graph.class_compute_s:
        document["class_compute_s"] = {
            name: _compact([None if s == np.inf else _shortest(s) for s in seconds.tolist()])
            for name, seconds in graph.class_compute_s.items()
        }
    if graph.specs is not None:
        document["specs"] = _write_specs(graph.specs, graph)
    if graph.tensors:
        document["tensors"] = {
            name: {
                "shape": list(map(int, tensor.shape)),
                "role": tensor.role,
                "init": json.loads(_encoded(tensor.init, f"tensor {shown_value(name)}", graph)),
                **({} if tensor.dtype is None else {"dtype": tensor.dtype}),
            }
            for name, tensor in graph.tensors.items()
        }
    if graph.outputs:
        document["outputs"] = [[int(op), *_pack(tile)] for op, tile in graph.outputs.items()]
    if graph.machine is not None:
        document["machine"] = {
            "accelerators": graph.machine.accelerators,
            "cpus": graph.machine.cpus,
            "accelerator_memory": graph.machine.accelerator_memory,
        }
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def _shortest(value: float) -> float:
    """Return an integer where it is the same number in fewer characters."""
    return int(value) if value.is_integer() and value < 1e15 else value


def _compact(values: list[Any]) -> list[Any] | dict[str, list[Any]]:
    distinct = dict.fromkeys(values)
    if len(distinct) > len(values) // 4:
        return values
    index = {value: i for i, value in enumerate(distinct)}
    return {"values": list(distinct), "index": [index[value] for value in values]}


def _pack(tile: Tile) -> list[Any]:
    return [tile.tensor, *([int(start), int(stop)] for start, stop in tile.slices)]


def _unpack(entry: list[Any], where: str, key: str) -> Tile:
    if not (entry and isinstance(entry[0], str) and all(map(_is_span, entry[1:]))):
        _fail(where, key, "must be a tensor's name followed by one [start, stop] per axis")
    return Tile(entry[0], tuple((start, stop) for start, stop in entry[1:]))


def _is_span(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(end) is int for end in value)


def _write_specs(specs: Sequence[OpSpec], graph: Graph) -> dict[str, Any]:
    forms: dict[tuple[str, tuple[int, ...], str], int] = {}
    form_values: list[dict[str, Any]] = []
    tiles: dict[Tile, int] = {}
    form: list[int] = []
    arity: list[int] = []
    inputs: list[int] = []
    # Ops made from one meta-op often share the mapping itself.
    known: dict[int, str] = {}
    for op, spec in enumerate(specs):
        if id(spec.attributes) not in known:
            owner = f"op {op} ({shown(graph.names[op])})"
            if isinstance(spec.attributes, OwnCalls) and spec.attributes.foreign:
                raise GraphError(
                    f"{graph.name}: {owner} calls {spec.attributes.foreign[0]}, which no file may; "
                    "save the graph without its specs, to be placed and not run"
                )
            known[id(spec.attributes)] = _encoded(spec.attributes, owner, graph)
        attributes = known[id(spec.attributes)]
        key = (spec.function, tuple(spec.shape), attributes)
        if key not in forms:
            forms[key] = len(forms)
            form_values.append(
                {
                    "function": spec.function,
                    "shape": list(map(int, spec.shape)),
                    "attributes": json.loads(attributes),
                }
            )
        form.append(forms[key])
        arity.append(len(spec.inputs))
        inputs.extend(
            -1 - tiles.setdefault(value, len(tiles)) if isinstance(value, Tile) else int(value)
            for value in spec.inputs
        )
    return {
        "forms": form_values,
        "form": form,
        "arity": arity,
        "inputs": inputs,
        "tiles": [_pack(tile) for tile in tiles],
    }


def _read_specs(specs: _Specs, n_ops: int, where: str) -> list[OpSpec]:
    forms = [
        (form.function, tuple(form.shape), _frozen_sequences(form.attributes))
        for form in specs.forms
    ]
    tiles = [_unpack(tile, where, f"specs.tiles[{i}]") for i, tile in enumerate(specs.tiles)]
    form, arity, inputs = specs.form, specs.arity, specs.inputs
    for key, column in (("form", form), ("arity", arity)):
        if len(column) != n_ops:
            _fail(where, f"specs.{key}", f"has {len(column)} entries for {n_ops} ops")
    if form and not 0 <= min(form) <= max(form) < len(forms):
        _fail(where, "specs.form", f"points outside the {len(forms)} forms")
    if arity and (min(arity) < 0 or sum(arity) != len(inputs)):
        rule = f"must add up to the {len(inputs)} inputs, and hold no number below 0"
        _fail(where, "specs.arity", rule)
    if inputs and not -1 - len(tiles) < min(inputs):
        _fail(where, "specs.inputs", f"points outside the {len(tiles)} tiles")
    values = iter([op if op >= 0 else tiles[-1 - op] for op in inputs])
    return [
        OpSpec(function, tuple(islice(values, count)), shape, attributes)
        for (function, shape, attributes), count in zip(
            (forms[i] for i in form), arity, strict=True
        )
    ]


def _read_outputs(entries: list[list[Any]], where: str) -> dict[int, Tile]:
    outputs: dict[int, Tile] = {}
    for i, entry in enumerate(entries):
        if not entry or type(entry[0]) is not int or entry[0] in outputs:
            _fail(where, f"outputs[{i}]", "must start with the id of an op, each op once")
        outputs[entry[0]] = _unpack(entry[1:], where, f"outputs[{i}]")
    return outputs


def _fail(where: str, key: str, rule: str) -> NoReturn:
    raise GraphError(f"{where}: {key} {rule}")


def _frozen_sequences(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen_sequences, value))
    if isinstance(value, dict):
        return {key: _frozen_sequences(entry) for key, entry in value.items()}
    return value


def _encoded(value: Mapping[str, Any], owner: str, graph: Graph) -> str:
    try:
        return json.dumps(dict(value), allow_nan=False, default=_scalar)
    except (TypeError, ValueError) as error:
        raise GraphError(
            f"{graph.source or graph.name}: {owner}: an attribute cannot be saved as JSON ({error})"
        ) from None


def _scalar(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__}")
