"""A policy in the middle of its training, as tensors: its weights and what Adam remembers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from doppler.policy.network import DualPolicy

_MOMENTS = {"step", "exp_avg", "exp_avg_sq"}


def training_tensors(policy: DualPolicy, optimizer: torch.optim.Adam) -> dict[str, Tensor]:
    """Return the weights, ``policy/...``, and the optimizer's moments, ``adam/...``."""
    tensors = {f"policy/{k}": v.contiguous() for k, v in policy.state_dict().items()}
    for index, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"adam/{index}/{name}": tensor for name, tensor in moments.items()}
    return tensors


def restore_training(
    policy: DualPolicy, optimizer: torch.optim.Adam, tensors: Mapping[str, Tensor]
) -> None:
    """Take up what :func:`training_tensors` gave; other tensors are passed over.

    Raises
    ------
    LookupError, RuntimeError, TypeError, ValueError
        If they do not suit the policy; it may then be changed in part.
    """
    weights = tensors_of(tensors, "policy/")
    parameters = list(policy.parameters())
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors_of(tensors, "adam/").items():
        index, moment = name.split("/")
        if moment != "step" and tensor.shape != parameters[int(index)].shape:
            raise ValueError(f"{name} has another shape than its parameter")
        moments.setdefault(int(index), {})[moment] = tensor
    if any(each.keys() != _MOMENTS for each in moments.values()):
        raise ValueError("a moment is missing")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in weights.values()):
        raise ValueError("weights are not finite")
    policy.load_state_dict(weights)
    adam: dict[str, Any] = optimizer.state_dict()
    adam["state"] = moments
    optimizer.load_state_dict(adam)


def tensors_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return those whose names begin with a prefix, without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
