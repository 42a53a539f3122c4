"""Placed models on disk: the graph, the cluster, the placement and how it is called; no weights."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from doppler.capture.capture import Captured
from doppler.capture.export import Signature, TensorName
from doppler.checks import check_path, check_type
from doppler.cluster import Cluster, save_cluster
from doppler.documents.json_text import read_json
from doppler.documents.schema import Strict, check
from doppler.errors import CaptureError, DopplerError
from doppler.files import write_atomic
from doppler.graph import Graph
from doppler.graph.formats import load_graph, save_graph
from doppler.messages import shown, shown_value
from doppler.placed.calls import children
from doppler.placed.devices import open_backend
from doppler.placed.model import Mode, PlacedModel, state_names
from doppler.placed.state import ModelState, ModuleTree
from doppler.placement import Placement
from doppler.torch_tensors import load_torch_tensors, save_torch_tensors

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from torch.utils._pytree import TreeSpec

FORMAT, VERSION = "doppler-placed", 1
GRAPH, CLUSTER, PLACEMENT = "graph.json", "cluster.yaml", "placement.json"
CONSTANTS, MODEL = "constants.safetensors", "model.json"


class _File(Strict):
    format: Literal["doppler-placed"]
    version: Literal[1]
    arguments: str
    inputs: list[Any]
    results: str
    outputs: list[Any]
    training: bool
    exceptions: list[str]
    autocast: list[list[str]]
    tied: dict[str, str]
    measured: dict[str, float]


def save_placed(placed: PlacedModel, directory: str | Path) -> Path:
    """Write a placed model; see :meth:`doppler.placed.PlacedModel.save`.

    Raises
    ------
    CaptureError
        If what it takes or returns has a structure that cannot be written.
    """
    from torch.utils import _pytree as pytree

    path = check_path(directory, "directory")
    signature = placed.captured.signature
    try:
        specs = [pytree.treespec_dumps(each) for each in (signature.arguments, signature.results)]
        for spec in specs:
            _check_node(json.loads(spec)[1])
        document = json.dumps(
            {
                "format": FORMAT,
                "version": VERSION,
                "arguments": specs[0],
                "inputs": list(map(_entry, signature.inputs)),
                "results": specs[1],
                "outputs": list(map(_entry, signature.outputs)),
                "training": placed.mode.training,
                "exceptions": placed.mode.exceptions,
                "autocast": placed.mode.autocast,
                "tied": placed.tied,
                "measured": placed.measured,
            },
            allow_nan=False,
        )
    except (NotImplementedError, TypeError, ValueError) as error:
        raise CaptureError(
            f"{placed.graph.name}: what it takes or returns cannot be written ({error}); register "
            "its type with a serialized_type_name (torch.utils._pytree)"
        ) from None
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise DopplerError(f"{path}: no such directory can be made ({why}); give another") from None
    save_graph(placed.graph, path / GRAPH)
    save_cluster(placed.cluster, path / CLUSTER)
    placed.placement.save(path / PLACEMENT)
    save_torch_tensors(path / CONSTANTS, placed.captured.constants)
    # Last: a directory that holds it is whole.
    write_atomic(path / MODEL, document + "\n")
    return path


def load_placed(
    directory: str | Path,
    model: Module,
    devices: Sequence[str] | None = None,
    *,
    threads: int | None = None,
    memory: float = math.inf,
) -> PlacedModel:
    """Read a placed model that was saved, for a model with the same parameters.

    Parameters
    ----------
    directory : path-like
    model : torch.nn.Module
        Gives the parameters and buffers.
    devices : sequence of str, optional
        As for :func:`doppler.compile`; without them it cannot be called.
    threads, memory
        As for :func:`doppler.compile`.

    Raises
    ------
    DopplerError
        If a file is missing, damaged or hostile, or the model lacks a parameter or has it in
        another shape or dtype.
    """
    import torch

    path = check_path(directory, "directory")
    check_type(model, torch.nn.Module, "model", CaptureError)
    where = str(path / MODEL)
    file = check(_File, read_json(where, "placed model", CaptureError), where, CaptureError)
    arguments = _structure(file.arguments, f"{where}: arguments")
    results = _structure(file.results, f"{where}: results")
    if [arguments.type, *(child.type for child in children(arguments))] != [tuple, tuple, dict]:
        raise CaptureError(f"{where}: arguments: must be a tuple and a dict of keyword arguments")
    if "placed" not in file.measured or any(len(pair) != 2 for pair in file.autocast):
        raise CaptureError(f"{where}: measured lacks 'placed', or autocast is not of pairs")
    graph = load_graph(path / GRAPH)
    cluster = Cluster.load(path / CLUSTER)
    placement = Placement.load(path / PLACEMENT)
    placement.validate_on(graph, cluster.n_devices)
    constants = load_torch_tensors(path / CONSTANTS)
    signature = Signature(
        arguments,
        tuple(_leaf(entry, where) for entry in file.inputs),
        results,
        tuple(_leaf(entry, where) for entry in file.outputs),
    )
    for spec, leaves, what in (
        (arguments, signature.inputs, "inputs"),
        (results, signature.outputs, "outputs"),
    ):
        if spec.num_leaves != len(leaves):
            raise CaptureError(f"{where}: {what} are {len(leaves)}, must be {spec.num_leaves}")
    _check_names(signature, graph, where)
    _check_constants(constants, graph, str(path / CONSTANTS))
    state = ModelState(model, state_names(graph))
    for name in state_names(graph):
        found, then = _meta(state.tensor(name)), graph.tensors.get(name)
        if then is not None and found != (tuple(then.shape), then.dtype):
            raise CaptureError(
                f"{path}: {name} has shape {found[0]} and dtype {found[1]} in the model, "
                f"{tuple(then.shape)} and {then.dtype} when it was placed; compile it again"
            )
    for other, name in file.tied.items():
        if state.tied.get(other) != name:
            raise CaptureError(
                f"{path}: {shown(other)!r} and {shown(name)!r} are one tensor in the placed model, "
                "and not in this one; tie them"
            )
    exceptions = ModuleTree(model).exceptions
    if set(exceptions) != set(file.exceptions):
        differ = min(set(exceptions) ^ set(file.exceptions))
        raise CaptureError(
            f"{path}: the module {shown(differ)!r} is in another mode (train or eval) than when "
            "the model was placed; compile it again"
        )
    backend = None if devices is None else open_backend(devices, threads=threads, memory=memory)
    if backend is not None and len(backend.device_names) != cluster.n_devices:
        raise DopplerError(
            f"{path}: was placed on {cluster.n_devices} devices, and "
            f"{len(backend.device_names)} are given"
        )
    return PlacedModel(
        model,
        Captured(graph, constants, signature),
        cluster,
        placement,
        backend,
        mode=Mode(file.training, exceptions, tuple((kind, dtype) for kind, dtype in file.autocast)),
        measured=file.measured,
    )


def _check_names(signature: Signature, graph: Graph, where: str) -> None:
    made = {tile.tensor for tile in graph.outputs.values()}
    for label in signature.outputs:
        if isinstance(label, TensorName) and label.name not in made:
            raise CaptureError(f"{where}: output {shown_value(label.name)} is not in the graph")
    given = {label.name for label in signature.inputs if isinstance(label, TensorName)}
    inputs = {name for name, tensor in graph.tensors.items() if tensor.role == "input"}
    written = {name.partition(":")[2] for name in made if name.startswith("input:")}
    for name in sorted((given ^ inputs) | (written - given)):
        lacking = "the graph" if name in given else "the arguments"
        raise CaptureError(f"{where}: input {shown_value(name)} is not in {lacking}")


def _check_constants(constants: Mapping[str, Tensor], graph: Graph, where: str) -> None:
    expected = {
        name: (tuple(tensor.shape), tensor.dtype)
        for name, tensor in graph.tensors.items()
        if tensor.role == "constant"
    }
    found = {name: _meta(tensor) for name, tensor in constants.items()}
    for name in sorted(expected):
        if found.get(name) != expected[name]:
            raise CaptureError(
                f"{where}: lacks the constant {shown(name)!r} of shape {expected[name][0]} and "
                f"dtype {expected[name][1]} that {GRAPH} reads; save the model again"
            )
    for name in sorted(found.keys() - expected.keys()):
        if name in graph.tensors:
            raise CaptureError(f"{where}: {shown(name)!r} is no constant of {GRAPH}")


def _meta(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    return tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")


def _structure(text: str, where: str) -> TreeSpec:
    """Read a structure of arguments or results. Nothing is imported for what the text names."""
    from torch.utils import _pytree as pytree

    try:
        _, node = json.loads(text)
        _check_node(node)
        return pytree.treespec_loads(text)
    except Exception as error:
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise CaptureError(
            f"{where}: the structure cannot be read ({why}); import what defines its types first"
        ) from None


def _check_node(node: Any) -> None:
    """Refuse what torch would import a module for, and dicts of more or fewer keys than values."""
    kind, context, inside = node["type"], node["context"], node["children_spec"]
    if kind is not None and kind.endswith("defaultdict"):
        raise ValueError("a defaultdict names a function to import")
    if isinstance(context, str):
        with suppress(json.JSONDecodeError):
            context = json.loads(context, object_hook=_plain)
    if kind in ("builtins.dict", "collections.OrderedDict") and len(context) != len(inside):
        raise ValueError(f"a dict of {len(context)} keys and {len(inside)} values")
    for child in inside:
        _check_node(child)


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    if "__enum__" in value:
        raise ValueError("an enum names a module to import")
    return value


def _entry(leaf: Any) -> Any:
    if isinstance(leaf, TensorName):
        return {"tensor": leaf.name}
    if leaf is None or type(leaf) in (bool, int, float, str):
        return leaf
    raise TypeError(f"a {type(leaf).__name__}")


def _leaf(entry: Any, where: str) -> Any:
    if isinstance(entry, dict):
        if entry.keys() != {"tensor"} or not isinstance(entry["tensor"], str):
            raise CaptureError(f"{where}: {shown_value(entry)} must be a value, or a tensor's name")
        return TensorName(entry["tensor"])
    return entry
