"""Placed models on disk: the graph, the cluster, the placement and how it is called; no weights."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from doppler.capture.capture import Captured
from doppler.capture.export import Signature, TensorName
from doppler.checks import check_path
from doppler.cluster import Cluster, save_cluster
from doppler.documents.json_text import read_json
from doppler.documents.schema import Strict, check
from doppler.errors import CaptureError, DopplerError
from doppler.files import write_atomic
from doppler.graph.formats import load_graph, save_graph
from doppler.messages import shown_value
from doppler.placed.devices import open_backend
from doppler.placed.model import Mode, PlacedModel, state_names
from doppler.placed.state import ModelState
from doppler.placement import Placement
from doppler.torch_tensors import load_torch_tensors, save_torch_tensors

if TYPE_CHECKING:
    from torch.nn import Module

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
    autocast: list[tuple[str, str]]
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
        document = json.dumps(
            {
                "format": FORMAT,
                "version": VERSION,
                "arguments": specs[0],
                "inputs": list(map(_entry, signature.inputs)),
                "results": specs[1],
                "outputs": list(map(_entry, signature.outputs)),
                "training": placed.mode.training,
                "autocast": placed.mode.autocast,
                "measured": placed.measured,
            },
            allow_nan=False,
        )
    except (NotImplementedError, TypeError, ValueError) as error:
        raise CaptureError(
            f"{placed.graph.name}: what it takes or returns cannot be written ({error}); register "
            "its type with a serialized_type_name (torch.utils._pytree)"
        ) from None
    path.mkdir(parents=True, exist_ok=True)
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
    from torch.utils import _pytree as pytree

    path = check_path(directory, "directory")
    where = str(path / MODEL)
    file = check(_File, read_json(where, "placed model", CaptureError), where, CaptureError)
    try:
        arguments, results = map(pytree.treespec_loads, (file.arguments, file.results))
    except Exception as error:
        raise CaptureError(
            f"{where}: the structure of its arguments or results cannot be read "
            f"({' '.join(str(error).split())[:200]}); import what defines the types first"
        ) from None
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
    state = ModelState(model, state_names(graph))
    for name in state_names(graph):
        tensor, then = state.tensor(name), graph.tensors.get(name)
        dtype = str(tensor.dtype).removeprefix("torch.")
        if then is not None and (tuple(tensor.shape), dtype) != (tuple(then.shape), then.dtype):
            raise CaptureError(
                f"{path}: {name} has shape {tuple(tensor.shape)} and dtype {dtype} in the model, "
                f"{tuple(then.shape)} and {then.dtype} when it was placed; compile it again"
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
        mode=Mode(file.training, tuple(file.autocast)),
        measured=file.measured,
    )


def _check_names(signature: Signature, graph: Any, where: str) -> None:
    made = {tile.tensor for tile in graph.outputs.values()}
    for label in signature.outputs:
        if isinstance(label, TensorName) and label.name not in made:
            raise CaptureError(f"{where}: output {shown_value(label.name)} is not in the graph")


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
