"""Policies in files: weights in safetensors, what they mean in its JSON header."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from doppler.errors import CheckpointError, UnknownNameError
from doppler.policy.features import DEVICE_FEATURES, NODE_FEATURES, FeatureSet
from doppler.policy.frozen import FrozenPolicy, Sizes
from doppler.tensors import Arrays, read_tensors, write_tensors

if TYPE_CHECKING:
    from doppler.policy.network import DualPolicy

FORMAT = "doppler-policy"
VERSION = 1
PRETRAINED = "pretrained"
# Of what a header may claim.
MOST = 4096


def save_policy(
    policy: DualPolicy | FrozenPolicy, path: str | Path, info: Mapping[str, Any] | None = None
) -> Path:
    """Write a policy, whole or not at all.

    Parameters
    ----------
    policy : DualPolicy or FrozenPolicy
    path : path-like
    info : mapping, optional
        JSON-able facts to keep with it: training data, metrics, revision.
    """
    frozen = policy.frozen()
    header = {
        "format": FORMAT,
        "version": VERSION,
        "sizes": dataclasses.asdict(frozen.sizes),
        "feature_set": frozen.features.name,
        "node_features": list(NODE_FEATURES),
        "device_features": list(DEVICE_FEATURES),
        "info": dict(info or {}),
    }
    return write_tensors(path, frozen.weights, header)


def load_policy(path: str | Path) -> DualPolicy:
    """Read a policy for learning, as :func:`load_frozen` reads one for inference."""
    # Imported late: torch and its message passing take three seconds, and inference needs neither.
    from doppler.policy.network import DualPolicy

    return DualPolicy.of(load_frozen(path))


def load_frozen(path: str | Path) -> FrozenPolicy:
    """Read a policy file, or the policy that comes with the package (``"pretrained"``).

    Raises
    ------
    CheckpointError
        If the file is missing, corrupt, not a policy, of another version or of another feature
        set than this Doppler computes.
    """
    source = policy_path(path)
    header, weights = _read(source)
    for key, known in (("node_features", NODE_FEATURES), ("device_features", DEVICE_FEATURES)):
        if header.get(key) != list(known):
            raise CheckpointError(
                f"{source}: trained on another set of {key.replace('_', ' ')} than this Doppler "
                "computes; train it again"
            )
    sizes = _sizes(header, source)
    try:
        features = FeatureSet.named(str(header.get("feature_set")))
    except UnknownNameError as error:
        raise CheckpointError(f"{source}: {error}") from None
    found = {name: f"{array.dtype} {list(array.shape)}" for name, array in weights.items()}
    wanted = {name: f"float32 {list(shape)}" for name, shape in sizes.shapes().items()}
    for name in sorted(wanted.keys() | found.keys()):
        if found.get(name) != wanted.get(name):
            raise CheckpointError(
                f"{source}: its weights do not fit its header "
                f"({name} is {found.get(name, 'missing')}, not {wanted.get(name, 'missing')})"
            )
    if not all(np.isfinite(array).all() for array in weights.values()):
        raise CheckpointError(f"{source}: holds weights that are not finite numbers")
    return FrozenPolicy(sizes, features, weights)


def read_header(path: str | Path) -> dict[str, Any]:
    """Read what a policy file says of itself.

    Raises
    ------
    CheckpointError
        As :func:`load_frozen`, weights aside.
    """
    return _read(policy_path(path))[0]


def _read(source: Path) -> tuple[dict[str, Any], Arrays]:
    fix = f"give the path of a policy, or {PRETRAINED!r}"
    return read_tensors(source, "policy", FORMAT, VERSION, fix=fix)


def _sizes(header: Mapping[str, Any], source: Path) -> Sizes:
    names = [field.name for field in dataclasses.fields(Sizes)]
    sizes = header.get("sizes")
    if (
        not isinstance(sizes, dict)
        or sorted(sizes) != sorted(names)
        or not all(type(size) is int and 1 <= size <= MOST for size in sizes.values())
    ):
        raise CheckpointError(
            f"{source}: its header must give whole numbers from 1 to {MOST} as "
            f"{', '.join(names)}, not {sizes!r}"
        )
    return Sizes(**sizes)


def policy_path(path: str | Path) -> Path:
    """Return the path of a policy file, that of the package for ``"pretrained"``."""
    if str(path) == PRETRAINED:
        return Path(str(resources.files("doppler.policy") / "pretrained.safetensors"))
    return Path(path)
