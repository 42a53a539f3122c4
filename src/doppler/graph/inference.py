"""Shapes and dtypes of what the ops of a graph give, found before any of them computes.

Ops run on tensors of torch's device ``meta``, which have a shape and no elements: nothing is
allocated and no kernel runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from doppler.errors import DopplerError, GraphError
from doppler.graph.aten import Value, bind, torch_value
from doppler.graph.calls import ATEN
from doppler.graph.graph import Graph
from doppler.graph.spec import OpSpec, Tile
from doppler.messages import shown, shown_value

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_LONGEST = 300


def check_ops(
    graph: Graph, dtypes: Mapping[str, torch.dtype], most_bytes: float
) -> list[tuple[Value, ...]]:
    """Check that every op can be computed, and gives what its spec says.

    Parameters
    ----------
    graph : Graph
        With specs.
    dtypes : mapping of str to torch.dtype
        Of each whole tensor.
    most_bytes : float
        No tensor may be larger.

    Returns
    -------
    list of tuple of Value, length ops
        What each op reads, on the device ``meta``.

    Raises
    ------
    GraphError
        Names the file, the op, the call and the rule: an operator that no op may call, arguments
        that do not suit it, a shape or dtype that is not what the spec says, a tensor that is too
        large. Nothing has been computed. O(ops), and torch is asked once for each distinct op with
        distinct inputs.
    """
    import torch

    assert graph.specs is not None
    where = graph.source or graph.name
    tiles: dict[tuple[Any, ...], tuple[Value, Any]] = {}
    known: dict[Any, tuple[Value, Any]] = {}
    forms: dict[int, str] = {}
    values: list[tuple[Value, Any]] = [(None, None)] * graph.n_ops
    read: list[tuple[Value, ...]] = [()] * graph.n_ops
    with torch.no_grad():
        for op in graph.topological_order.tolist():
            spec = graph.specs[op]
            inputs = []
            for source in spec.inputs:
                if isinstance(source, Tile):
                    shape = tuple(stop - start for start, stop in source.slices)
                    key = (shape, dtypes[source.tensor])
                    if key not in tiles:
                        tiles[key] = _keyed(torch.empty(shape, dtype=key[1], device="meta"))
                    inputs.append(tiles[key])
                else:
                    inputs.append(values[source])
            if id(spec.attributes) not in forms:
                forms[id(spec.attributes)] = json.dumps(spec.attributes, sort_keys=True)
            form = (spec.function, tuple(spec.shape), forms[id(spec.attributes)])
            key = (form, *(each for _, each in inputs))
            if key not in known:
                try:
                    value = _infer(spec, [value for value, _ in inputs], most_bytes)
                except (DopplerError, RuntimeError) as error:
                    raise GraphError(
                        f"{where}: op {op} ({shown(graph.names[op])}): {_line(error)}"
                    ) from None
                known[key] = _keyed(value)
            values[op] = known[key]
            read[op] = tuple(value for value, _ in inputs)
    return read


def infer_calls(attributes: Mapping[str, Any], inputs: Sequence[Value], most_bytes: float) -> Value:
    """Find what an op of calls gives.

    Parameters
    ----------
    attributes : mapping
        Whose form :func:`doppler.graph.calls.check_calls` has found right.
    inputs : sequence of tensor or tuple of tensors
        On the device ``meta``.
    most_bytes : float
        No tensor may be larger.

    Raises
    ------
    GraphError
        Names the call or the result, and the rule.
    """
    from torch import SymInt

    values = list(inputs)

    def argument(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return [argument(entry) for entry in value]
        if isinstance(value, Mapping) and "ref" in value:
            return _pick(values[value["ref"]], value)
        return torch_value(value, "meta")

    for number, call in enumerate(attributes["calls"]):
        try:
            bound = bind(call)
            args = [argument(value) for value in bound.args]
            kwargs = {name: argument(value) for name, value in bound.kwargs.items()}
            value = _call(bound.operator.call, args, kwargs)
            if bound.operator.several:
                # No op reads a number that comes beside the tensors.
                value = tuple(None if isinstance(each, int | SymInt) else each for each in value)
            for each in value if isinstance(value, tuple) else (value,):
                _check_tensor(each, most_bytes)
        except GraphError as error:
            raise GraphError(f"call {number} ({shown(call['op'])}): {error}") from None
        values.append(value)
    results = []
    for number, result in enumerate(attributes["results"]):
        try:
            found = _pick(values[result["ref"]], result)
            if found is None:
                raise GraphError(f"value {result['ref']} has no tensor there")
            _check_result(found, result, most_bytes)
        except GraphError as error:
            raise GraphError(f"result {number}: {error}") from None
        results.append(found)
    return results[0] if len(results) == 1 else tuple(results)


def _infer(spec: OpSpec, inputs: list[Value], most_bytes: float) -> Value:
    if spec.function == ATEN:
        return infer_calls(spec.attributes, inputs, most_bytes)
    from doppler.graph.execution import run_op

    return run_op(spec, inputs)


def _call(function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except NotImplementedError:
        raise GraphError(
            "torch cannot tell the shape of what it returns without computing it"
        ) from None
    except Exception as error:
        raise GraphError(f"torch refuses it: {_line(error)}") from None


def _pick(value: Value, ref: Mapping[str, Any]) -> Value:
    if ("item" in ref) != isinstance(value, tuple):
        what = "several tensors" if isinstance(value, tuple) else "one tensor"
        rule = "without" if isinstance(value, tuple) else "with"
        raise GraphError(f"reads value {ref['ref']}, which is {what}, {rule} an item")
    if not isinstance(value, tuple):
        return value
    if ref["item"] >= len(value):
        raise GraphError(f"reads item {ref['item']} of value {ref['ref']}, which has {len(value)}")
    return value[ref["item"]]


def _check_tensor(value: Any, most_bytes: float) -> None:
    import torch

    if value is None:  # One of several, which the arguments did not ask for.
        return
    if type(value) is not torch.Tensor or value.device.type != "meta":
        raise GraphError(f"returns {shown_value(type(value).__name__)}, must return tensors")
    if value.layout != torch.strided or value.is_quantized:
        raise GraphError("returns a tensor that is sparse or quantized, must be dense")
    try:
        size = value.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError):
        raise GraphError("returns a tensor without memory of its own, must be dense") from None
    if size > most_bytes:
        raise _too_large(value, size, most_bytes)


def _check_result(value: Tensor, result: Mapping[str, Any], most_bytes: float) -> None:
    shape, dtype = tuple(value.shape), str(value.dtype).removeprefix("torch.")
    # On the CPU some operators save nothing where they are not training, as batch norm; "meta" does
    # not know.
    if shape != tuple(result["shape"]) and 0 not in result["shape"]:
        raise GraphError(f"has shape {shape}, the file says {tuple(result['shape'])}")
    if dtype != result["dtype"]:
        raise GraphError(f"has dtype {dtype}, the file says {result['dtype']}")
    size = value.numel() * value.element_size()
    if size > most_bytes:  # Of an expanded one more is sent than it takes here.
        raise _too_large(value, size, most_bytes)


def _too_large(value: Tensor, size: float, most_bytes: float) -> GraphError:
    return GraphError(
        f"gives a tensor of shape {shown_value(tuple(value.shape))}, {size:.3g} B, and this "
        f"machine has {most_bytes:.3g} B of memory"
    )


def _keyed(value: Value) -> tuple[Value, Any]:
    """Return a value with what its consumers can tell of it."""
    if isinstance(value, tuple):
        return value, tuple(_keyed(each)[1] for each in value)
    return value, (tuple(value.shape), value.stride(), value.dtype)


def _line(error: BaseException) -> str:
    lines = str(error).strip().split("\n")
    text = " ".join(lines[0].split()) or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
