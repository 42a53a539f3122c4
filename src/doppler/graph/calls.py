"""Ops that are calls of torch's operators: their form, which needs no torch to be checked.

An op whose function is ``"aten"`` has two attributes::

    calls    ({"op": "aten.linear.default", "args": (...), "kwargs": {...}}, ...)
    results  ({"ref": 2, "shape": (4, 8), "dtype": "float32"}, ...)

Values are numbered: the op's inputs come first, then its calls. An argument is None, a bool, an
int, a finite float, a text, a sequence of arguments, or a mapping of one kind:

- ``{"ref": n}``, a value that is one tensor, or ``{"ref": n, "item": i}``, tensor ``i`` of a value
  that is several;
- ``{"dtype": "float32"}``, ``{"layout": "strided"}``, ``{"memory_format": "contiguous_format"}``;
- ``{"device": "here"}``, the device on which the op runs;
- ``{"float": "inf"}``, ``"-inf"`` or ``"nan"``, which JSON does not know.

Of one result the op's value is that tensor; of several it is a tuple of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from doppler.errors import GraphError
from doppler.graph.dtypes import WIDTHS
from doppler.messages import is_unicode, shown, shown_value

#: The function of an op that is calls of torch's operators.
ATEN = "aten"

#: Names of what torch has values of its own for, by kind.
NAMES: Mapping[str, tuple[str, ...]] = {
    "dtype": tuple(WIDTHS),
    "layout": ("strided",),
    "memory_format": (
        *("contiguous_format", "preserve_format"),
        *("channels_last", "channels_last_3d"),
    ),
    "device": ("here",),
    "float": ("inf", "-inf", "nan"),
}

_OPERATOR = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\.[A-Za-z_][A-Za-z0-9_]*\.[A-Za-z_][A-Za-z0-9_]*")
# Operators take lists of numbers and of tensors, none takes lists of lists.
_MOST_DEPTH = 2
_MOST_AXES = 64
_INT64 = 2**63


class OwnCalls(dict[str, Any]):
    """Attributes of an op whose calls were captured in this process.

    These may call operators of any namespace, also such as this process registered; what comes
    from a file may not.
    """

    @property
    def foreign(self) -> list[str]:
        """The operators of other namespaces that it calls."""
        return [call["op"] for call in self["calls"] if not call["op"].startswith("aten.")]


@dataclass(frozen=True, slots=True)
class CallForm:
    """What calls read of their op's inputs and give to its consumers.

    Attributes
    ----------
    reads : tuple of (int, int)
        An input, by its number, and which of its tensors, -1 for its only one. Without repeats.
    results : tuple of shape
    bytes : int
        Of all results.
    """

    reads: tuple[tuple[int, int], ...]
    results: tuple[tuple[int, ...], ...]
    bytes: int


def check_calls(attributes: Mapping[str, Any], n_inputs: int) -> CallForm:
    """Check the form of an op's calls.

    Parameters
    ----------
    attributes : mapping
    n_inputs : int
        How many inputs the op has.

    Returns
    -------
    CallForm

    Raises
    ------
    GraphError
        Says which call or result breaks which rule; the caller says which op of which file.
    """
    if set(attributes) != {"calls", "results"}:
        raise GraphError(
            f"has the attributes {shown_value(sorted(map(str, attributes)))}, must have 'calls' "
            "and 'results'"
        )
    calls = _listed(attributes["calls"], "calls", 0)
    results = _listed(attributes["results"], "results", 1)
    reads: dict[tuple[int, int], None] = {}
    for number, call in enumerate(calls):
        label = f"call {number}"
        keys = _mapping(call, label)
        if not {"op"} <= keys <= {"op", "args", "kwargs"}:
            raise GraphError(f"{label} has the keys {_keys(call)}, must be op, args, kwargs")
        allowed = isinstance(call["op"], str) and _OPERATOR.fullmatch(call["op"])
        if not allowed or not (call["op"].startswith("aten.") or isinstance(attributes, OwnCalls)):
            raise GraphError(
                f"{label}: operator {shown_value(call['op'])} must be 'aten.NAME.OVERLOAD'; "
                "operators of other namespaces are not run"
            )
        label = f"{label} ({shown(call['op'])})"
        args, kwargs = call.get("args", ()), call.get("kwargs", {})
        if not isinstance(args, Sequence) or isinstance(args, str):
            raise GraphError(f"{label}: args is {shown_value(args)}, must be a list")
        _mapping(kwargs, f"{label}: kwargs")
        named = [(f"argument {at}", argument) for at, argument in enumerate(args)]
        named += [(f"argument {shown_value(name)}", value) for name, value in kwargs.items()]
        for name, argument in named:
            for ref, item in _refs(argument, n_inputs + number, f"{label}: {name}", 0):
                if ref < n_inputs:
                    reads[ref, item] = None
    shapes, size = [], 0
    for number, result in enumerate(results):
        label = f"result {number}"
        keys = _mapping(result, label)
        if not {"ref", "shape", "dtype"} <= keys <= {"ref", "item", "shape", "dtype"}:
            raise GraphError(
                f"{label} has the keys {_keys(result)}, must be ref, shape, dtype and perhaps item"
            )
        ref, item = _ref(result, n_inputs + len(calls), label)
        if ref < n_inputs:
            reads[ref, item] = None
        shape = result["shape"]
        if not (
            isinstance(shape, tuple | list)
            and len(shape) <= _MOST_AXES
            and all(type(extent) is int and 0 <= extent < _INT64 for extent in shape)
        ):
            raise GraphError(f"{label}: shape is {shown_value(shape)}, must be whole numbers >= 0")
        if not isinstance(result["dtype"], str) or result["dtype"] not in WIDTHS:
            _unknown(label, "dtype", result["dtype"])
        shapes.append(tuple(shape))
        size += math.prod(shape) * WIDTHS[result["dtype"]]
    return CallForm(tuple(reads), tuple(shapes), size)


def _listed(value: object, label: str, least: int) -> Sequence[Any]:
    if not isinstance(value, tuple | list) or len(value) < least:
        raise GraphError(f"{label} is {shown_value(value)}, must be a list of at least {least}")
    return value


def _mapping(value: object, label: str) -> set[str]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise GraphError(f"{label} is {shown_value(value)}, must be a mapping of names")
    return set(value)


def _keys(value: Mapping[str, Any]) -> str:
    return shown_value(sorted(value))


def _refs(value: Any, n_values: int, label: str, depth: int) -> Iterator[tuple[int, int]]:
    """Check an argument and go through the values that it reads."""
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, int):
        if not -_INT64 <= value < _INT64:
            raise GraphError(f"{label} is {shown_value(value)}, which does not fit in 64 bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise GraphError(f"{label} is {value}, must be a finite number, or {{'float': 'inf'}}")
    elif isinstance(value, str):
        if not is_unicode(value):
            raise GraphError(f"{label}: {shown_value(value)} holds half of a surrogate pair")
    elif isinstance(value, tuple | list):
        if depth == _MOST_DEPTH:
            raise GraphError(f"{label}: lists are nested deeper than any operator takes them")
        for entry in value:
            yield from _refs(entry, n_values, label, depth + 1)
    elif isinstance(value, Mapping):
        if "ref" in value:
            if not set(value) <= {"ref", "item"}:
                raise GraphError(f"{label} has the keys {_keys(value)}, must be ref and item")
            yield _ref(value, n_values, label)
            return
        kind = next(iter(value), "")
        if len(value) != 1 or kind not in NAMES:
            raise GraphError(
                f"{label} is {shown_value(dict(value))}, must be a mapping of one of the keys "
                f"ref, {', '.join(NAMES)}"
            )
        if not isinstance(value[kind], str) or value[kind] not in NAMES[kind]:
            _unknown(label, kind, value[kind])
    else:
        raise GraphError(f"{label} is {shown_value(value)}, which is nothing that a call may hold")


def _ref(value: Mapping[str, Any], n_values: int, label: str) -> tuple[int, int]:
    ref, item = value["ref"], value.get("item", -1)
    if type(ref) is not int or not 0 <= ref < n_values:
        raise GraphError(
            f"{label} reads value {shown_value(ref)}; "
            + (f"before it are values 0 to {n_values - 1}" if n_values else "there is none yet")
        )
    if "item" in value and (type(item) is not int or not 0 <= item < _INT64):
        raise GraphError(f"{label}: item is {shown_value(item)}, must be a whole number >= 0")
    return ref, item


def _unknown(label: str, kind: str, name: object) -> NoReturn:
    raise GraphError(
        f"{label}: {kind} {shown_value(name)} is not known; known are {', '.join(NAMES[kind])}"
    )
