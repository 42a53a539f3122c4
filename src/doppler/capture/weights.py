"""The weights of a captured model beside its graph: a file of safetensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from doppler.errors import CaptureError
from doppler.graph import Graph
from doppler.messages import shown
from doppler.torch_tensors import load_torch_tensors, save_torch_tensors

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


def save_weights(
    path: str | os.PathLike[str], model: Module, constants: Mapping[str, Tensor]
) -> Path:
    """Write the parameters, buffers and constants of a captured model, whole or not at all.

    Tied parameters are written once, under their first name, which the graph gives them.

    Parameters
    ----------
    path : path-like
    model : torch.nn.Module
    constants : mapping of str to Tensor
        Of :class:`doppler.capture.capture.Captured`.

    Raises
    ------
    CaptureError
        If a tensor is on the meta device, where it has no values.
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers()), **constants}
    for name, tensor in tensors.items():
        if tensor.is_meta:
            raise CaptureError(
                f"{type(model).__name__}: {shown(name)} is on the meta device and has no values; "
                "capture the model without weights, or make it on a device"
            )
    return save_torch_tensors(path, tensors)


def load_weights(path: str | os.PathLike[str], graph: Graph) -> dict[str, Tensor]:
    """Read the tensors of a graph from a file of safetensors; nothing is unpickled.

    Parameters
    ----------
    path : path-like
        From :func:`save_weights`, or any ``state_dict`` as safetensors.
    graph : Graph
        Inputs are none of its weights; constants that it holds itself may be missing.

    Returns
    -------
    dict of str to Tensor
        On the CPU.

    Raises
    ------
    CheckpointError
        If the file cannot be read.
    CaptureError
        If it lacks a tensor, or has one in another shape or dtype.
    """
    held = load_torch_tensors(path)
    found = {}
    for name, spec in graph.tensors.items():
        if spec.role == "input":
            continue
        if name not in held:
            if spec.init.get("kind") == "values":
                continue
            raise CaptureError(
                f"{path}: lacks the {spec.role} {shown(name)!r} of {shown(graph.name)}; give the "
                "weights of this model"
            )
        tensor = found[name] = held[name]
        dtype = str(tensor.dtype).removeprefix("torch.")
        if tuple(tensor.shape) != tuple(spec.shape) or dtype != spec.dtype:
            raise CaptureError(
                f"{path}: {shown(name)!r} is {dtype} of shape {tuple(tensor.shape)}, the graph "
                f"says {spec.dtype} of {tuple(spec.shape)}; give the weights of this model"
            )
    return found
