"""Policies in files: exact round trips, and one clear line for everything that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policies import SMALL, random_policy
from safetensors.torch import load_file, save_file

from doppler.errors import CheckpointError, DopplerError
from doppler.policy.checkpoint import load_policy, read_header, save_policy
from doppler.policy.network import DualPolicy


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_policy(random_policy(3), tmp_path / "policy.safetensors", {"cases": ["a", 1]})


def rewrite(path: Path, *, tensors: dict[str, torch.Tensor] | None = None, **changes: Any) -> None:
    """Write the file again with another header, or other weights."""
    header = {**read_header(path), **changes}
    weights = load_file(path) if tensors is None else tensors
    save_file(weights, path, {"doppler": json.dumps(header)})


@pytest.mark.parametrize("features", ["full", "paper"])
def test_round_trip_is_exact(tmp_path: Path, features: str) -> None:
    policy = random_policy(1, features)
    path = save_policy(policy, tmp_path / "deep" / "policy.safetensors")
    loaded = load_policy(str(path))
    assert loaded.sizes == policy.sizes
    assert loaded.features == policy.features
    assert not loaded.training
    state, wanted = loaded.state_dict(), policy.state_dict()
    assert state.keys() == wanted.keys()
    for name in state:
        assert torch.equal(state[name], wanted[name])
    assert save_policy(loaded, tmp_path / "again").read_bytes() == path.read_bytes()


def test_the_header_keeps_what_it_is_told(saved: Path) -> None:
    header = read_header(saved)
    assert header["info"] == {"cases": ["a", 1]}
    assert header["sizes"] == {"embedding": 16, "layers": 2, "hidden": 8, "code": 4}
    assert header["feature_set"] == "full"


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"nothing: no such policy file; give the path of a policy, or"
    ):
        load_policy(tmp_path / "nothing")


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is a directory, not a policy file; give"):
        load_policy(tmp_path)


@pytest.mark.parametrize("content", [b"", b"x", b"not a policy at all", b"\x80\x04\x95" * 40])
def test_other_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="file: corrupt, or not a policy file"):
        load_policy(path)


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.99])
def test_truncated(saved: Path, share: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match="corrupt, or not a policy file"):
        load_policy(saved)


@pytest.mark.parametrize(
    "metadata",
    [None, {"format": "pt"}, {"doppler": "{"}, {"doppler": "[]"}, {"doppler": '{"format": 1}'}],
)
def test_foreign_safetensors(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    path = tmp_path / "foreign"
    save_file({"weight": torch.zeros(2)}, path, metadata)
    with pytest.raises(CheckpointError, match="a safetensors file, but not a policy of Doppler"):
        load_policy(path)


def test_other_version(saved: Path) -> None:
    rewrite(saved, version=99)
    with pytest.raises(CheckpointError, match="policy version 99, this Doppler reads 1"):
        load_policy(saved)


@pytest.mark.parametrize("key", ["node_features", "device_features"])
@pytest.mark.parametrize("value", [None, "compute", ["compute"], 3])
def test_other_features(saved: Path, key: str, value: Any) -> None:
    rewrite(saved, **{key: value})
    with pytest.raises(
        CheckpointError, match=f"another set of {key.replace('_', ' ')} .*; train it again"
    ):
        load_policy(saved)


@pytest.mark.parametrize("value", ["papier", None, 3, ["full"], {}])
def test_unknown_feature_set(saved: Path, value: Any) -> None:
    rewrite(saved, feature_set=value)
    with pytest.raises(CheckpointError, match=r"unknown feature set .* known are full, paper"):
        load_policy(saved)


@pytest.mark.parametrize(
    "sizes",
    [
        None,
        [16, 2, 8, 4],
        {},
        {"embedding": 16},
        {"embedding": 16, "layers": 2, "hidden": 8, "code": 4, "more": 1},
        {"embedding": "16", "layers": 2, "hidden": 8, "code": 4},
        {"embedding": 16.0, "layers": 2, "hidden": 8, "code": 4},
        {"embedding": True, "layers": 2, "hidden": 8, "code": 4},
        {"embedding": 0, "layers": 2, "hidden": 8, "code": 4},
        {"embedding": -16, "layers": 2, "hidden": 8, "code": 4},
        {"embedding": 10**15, "layers": 2, "hidden": 8, "code": 4},
    ],
)
def test_impossible_sizes(saved: Path, sizes: Any) -> None:
    rewrite(saved, sizes=sizes)
    with pytest.raises(CheckpointError, match="its header must give whole numbers from 1 to"):
        load_policy(saved)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"embedding": 4096, "layers": 2, "hidden": 4096, "code": 4}, r"not float32 \[4, 4096\]"),
        ({"embedding": 16, "layers": 3, "hidden": 8, "code": 4}, "missing, not float32"),
        ({"embedding": 16, "layers": 1, "hidden": 8, "code": 4}, "not missing"),
    ],
)
def test_sizes_of_other_weights(saved: Path, sizes: Any, message: str) -> None:
    rewrite(saved, sizes=sizes)
    with pytest.raises(CheckpointError, match=f"its weights do not fit its header .*{message}"):
        load_policy(saved)


@pytest.mark.parametrize("bad", ["missing", "more", "shape", "half", "whole numbers"])
def test_wrong_weights(saved: Path, bad: str) -> None:
    tensors = load_file(saved)
    if bad == "missing":
        del tensors["second.weight"]
    elif bad == "more":
        tensors["third.weight"] = torch.zeros(3)
    elif bad == "shape":
        tensors["second.weight"] = tensors["second.weight"].T.contiguous()
    else:
        dtype = torch.float16 if bad == "half" else torch.int64
        tensors["second.weight"] = tensors["second.weight"].to(dtype)
    rewrite(saved, tensors=tensors)
    with pytest.raises(
        CheckpointError, match=r"its weights do not fit its header \((second|third)\.weight is "
    ):
        load_policy(saved)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers(saved: Path, value: float) -> None:
    tensors = load_file(saved)
    tensors["direct.weight"][0, 0] = value
    rewrite(saved, tensors=tensors)
    with pytest.raises(CheckpointError, match="holds weights that are not finite numbers"):
        load_policy(saved)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
KEYS = (
    "format",
    "version",
    "sizes",
    "feature_set",
    "node_features",
    "device_features",
)


def loaded_or_told(path: Path) -> tuple[DualPolicy | None, str]:
    """Load a policy, or return the one line that says why not."""
    try:
        return load_policy(path), ""
    except CheckpointError as error:
        message = str(error)
    assert "\n" not in message
    return None, message


@settings(max_examples=150)
@given(
    key=st.sampled_from((*KEYS, "embedding", "layers", "hidden", "code")),
    value=json_values,
    drop=st.booleans(),
)
def test_headers_of_any_kind(tmp_path_factory: Any, key: str, value: Any, drop: bool) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "policy"
    save_policy(random_policy(3), path)
    header = read_header(path)
    place = header["sizes"] if key not in KEYS else header
    if drop:
        del place[key]
    else:
        place[key] = value
    save_file(load_file(path), path, {"doppler": json.dumps(header)})
    policy, message = loaded_or_told(path)
    if policy is None:
        assert message.startswith(f"{path}: ")
    else:
        assert policy.sizes == SMALL


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32 - 1))
def test_damaged_bytes(tmp_path_factory: Any, seed: int) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "policy"
    save_policy(random_policy(3), path)
    content = bytearray(path.read_bytes())
    rng = np.random.default_rng(seed)
    # Mostly in the header, where the structure is.
    for _ in range(rng.integers(1, 4)):
        content[int(rng.integers(0, 4000))] = int(rng.integers(256))
    path.write_bytes(content)
    loaded_or_told(path)


def test_a_failed_write_leaves_the_old_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(DopplerError, match="cannot be written"):
        save_policy(random_policy(4), saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_write_onto_a_directory(tmp_path: Path) -> None:
    with pytest.raises(DopplerError, match="cannot be written"):
        save_policy(random_policy(), tmp_path)
    assert list(tmp_path.iterdir()) == []
