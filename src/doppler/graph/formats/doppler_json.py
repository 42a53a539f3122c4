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
from typing import Any

import numpy as np

from doppler.errors import GraphError
from doppler.graph.formats.fields import Fields
from doppler.graph.graph import Graph, Machine
from doppler.graph.spec import OpSpec, TensorSpec, Tile
from doppler.messages import shown, shown_value

FORMAT = "doppler-graph"
VERSION = 1

_COSTS = ("flops", "output_bytes", "param_bytes", "bytes_read")
_EXPLICIT = ("compute_s", "transfer_s")
_LABELS = ("kinds", "meta_ops")
_INTEGERS = ("shards", "pinned", "colocation")
_KEYS = (
    *("format", "version", "name", "names", "src", "dst", "class_compute_s", "specs"),
    *("tiles", "tensors", "outputs", "machine"),
    *(_COSTS + _EXPLICIT + _LABELS + _INTEGERS),
)
_NUMBER = (int, float)


def recognizes(document: Fields) -> bool:
    """Return whether the object names a format."""
    return "format" in document


def read(document: Fields, where: str) -> Graph:
    """Make a graph of the parsed document.

    Parameters
    ----------
    document : Fields
        The file's top object.
    where : str
        The file, for messages.

    Raises
    ------
    GraphError
        Names the file, the key or the op, and the rule; also on another format or a newer version.
    """
    if document.text("format") != FORMAT:
        document.fail("format", f"is {shown_value(document.text('format'))}, must be {FORMAT!r}")
    version = document.integer("version")
    if version > VERSION:
        document.fail("version", f"is newer than {VERSION}, the last that is known: update doppler")
    if version < 1:
        document.fail("version", f"must be from 1 to {VERSION}")
    document.known_only(_KEYS)
    names = document.array("names", (str,))
    n_ops = len(names)
    columns: dict[str, Any] = {}
    for keys, types in (
        (_COSTS + _EXPLICIT, _NUMBER),
        (_LABELS, (str,)),
        (_INTEGERS, (int,)),
    ):
        for key in keys:
            if key in document:
                columns[key] = _column(document, key, n_ops, types)
    if "tiles" in document:
        columns["tiles"] = _column(document, "tiles", n_ops, (list,))
    return Graph.build(
        n_ops,
        document.array("src", (int,)),
        document.array("dst", (int,)),
        name=document.text("name") if "name" in document else "graph",
        source=where,
        names=names,
        class_compute_s=_class_seconds(document, n_ops),
        specs=_read_specs(document.fields("specs"), n_ops) if "specs" in document else None,
        tensors=_read_tensors(document),
        outputs=_read_outputs(document),
        machine=_read_machine(document.fields("machine")) if "machine" in document else None,
        **columns,
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


def _column(fields: Fields, key: str, n_ops: int, types: Sequence[type]) -> list[Any]:
    if isinstance(fields.require(key), dict):
        table = fields.fields(key)
        table.known_only(("values", "index"))
        values = table.array("values", types)
        index = table.array("index", (int,))
        if index and not 0 <= min(index) <= max(index) < len(values):
            table.fail("index", f"points outside the {len(values)} values")
        column = [values[i] for i in index]
    else:
        column = fields.array(key, types)
    if len(column) != n_ops:
        fields.fail(key, f"has {len(column)} entries for {n_ops} ops")
    return column


def _class_seconds(document: Fields, n_ops: int) -> dict[str, list[float]]:
    if "class_compute_s" not in document:
        return {}
    classes = document.fields("class_compute_s")
    return {
        name: [
            np.inf if seconds is None else seconds
            for seconds in _column(classes, name, n_ops, (*_NUMBER, type(None)))
        ]
        for name in classes.values
    }


def _pack(tile: Tile) -> list[Any]:
    return [tile.tensor, *([int(start), int(stop)] for start, stop in tile.slices)]


def _unpack(fields: Fields, key: str, entry: list[Any]) -> Tile:
    if not (entry and isinstance(entry[0], str) and all(map(_is_span, entry[1:]))):
        fields.fail(key, "must be a tensor's name followed by one [start, stop] per axis")
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


def _read_specs(fields: Fields, n_ops: int) -> list[OpSpec]:
    fields.known_only(("forms", "form", "arity", "inputs", "tiles"))
    forms = []
    for record in fields.records("forms"):
        record.known_only(("function", "shape", "attributes"))
        attributes = record.fields("attributes").values if "attributes" in record else {}
        forms.append((record.text("function"), _shape(record), _frozen_sequences(attributes)))
    tiles = [
        _unpack(fields, f"tiles[{i}]", entry)
        for i, entry in enumerate(fields.array("tiles", (list,)))
    ]
    form = _column(fields, "form", n_ops, (int,))
    if form and not 0 <= min(form) <= max(form) < len(forms):
        fields.fail("form", f"points outside the {len(forms)} forms")
    arity = _column(fields, "arity", n_ops, (int,))
    inputs = fields.array("inputs", (int,))
    if arity and (min(arity) < 0 or sum(arity) != len(inputs)):
        fields.fail("arity", f"must add up to the {len(inputs)} inputs, and hold no number below 0")
    if inputs and not -1 - len(tiles) < min(inputs):
        fields.fail("inputs", f"points outside the {len(tiles)} tiles")
    values = iter([op if op >= 0 else tiles[-1 - op] for op in inputs])
    return [
        OpSpec(function, tuple(islice(values, count)), shape, attributes)
        for (function, shape, attributes), count in zip(
            (forms[i] for i in form), arity, strict=True
        )
    ]


def _shape(fields: Fields) -> tuple[int, ...]:
    return tuple(fields.array("shape", (int,)))


def _read_tensors(document: Fields) -> dict[str, TensorSpec]:
    if "tensors" not in document:
        return {}
    tensors = document.fields("tensors")
    found = {}
    for name in tensors.values:
        record = tensors.fields(name)
        record.known_only(("shape", "role", "init"))
        init = _frozen_sequences(record.fields("init").values)
        found[name] = TensorSpec(_shape(record), record.text("role"), init)
    return found


def _read_outputs(document: Fields) -> dict[int, Tile]:
    if "outputs" not in document:
        return {}
    outputs: dict[int, Tile] = {}
    for i, entry in enumerate(document.array("outputs", (list,))):
        key = f"outputs[{i}]"
        if not entry or type(entry[0]) is not int or entry[0] in outputs:
            document.fail(key, "must start with the id of an op, each op once")
        outputs[entry[0]] = _unpack(document, key, entry[1:])
    return outputs


def _read_machine(fields: Fields) -> Machine:
    fields.known_only(("accelerators", "cpus", "accelerator_memory"))
    return Machine(
        fields.integer("accelerators"), fields.integer("cpus"), fields.cost("accelerator_memory")
    )


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
