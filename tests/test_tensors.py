"""Files of tensors with a header."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from doppler.errors import CheckpointError
from doppler.tensors import read_tensors, write_tensors

HEADER = {"format": "test", "version": 2, "names": ["é", "b"]}
TENSORS = {
    "a": np.arange(6.0).reshape(2, 3).T,
    "step": np.array(3.0, np.float32),
    "none": np.zeros((0, 4), np.int32),
    "yes": np.array([True, False]),
}


def test_what_is_written_comes_back_and_may_be_changed(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "x", TENSORS, HEADER)
    header, tensors = read_tensors(path, "thing", "test", 2, fix="make it")
    assert header == HEADER
    assert tensors.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        assert (tensors[name].dtype, tensors[name].shape) == (array.dtype, array.shape)
        assert (tensors[name] == array).all()
    tensors["a"][0, 0] = 9.0


def test_a_file_is_the_same_whoever_writes_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save

    path = write_tensors(tmp_path / "x", TENSORS, HEADER)
    as_torch = {name: torch.from_numpy(array).contiguous() for name, array in TENSORS.items()}
    assert path.read_bytes() == save(as_torch, {"doppler": json.dumps(HEADER)})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "corrupt, or not a thing file"),
        (b"\x00" * 100, "corrupt, or not a thing file"),
        (struct.pack("<Q", 2**60) + b"{}", "corrupt, or not a thing file"),
        (struct.pack("<Q", 2) + b"[]", "corrupt, or not a thing file"),
        (safetensors.numpy.save(TENSORS), "a safetensors file, but not a thing of Doppler"),
        (
            safetensors.numpy.save(TENSORS, {"doppler": "[" * 100_000}),
            "a safetensors file, but not a thing of Doppler",
        ),
        (
            safetensors.numpy.save(TENSORS, {"doppler": json.dumps({**HEADER, "version": 3})}),
            "thing version 3, this Doppler reads 2",
        ),
    ],
)
def test_what_is_not_of_the_format_is_one_line_with_the_fix(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_tensors(path, "thing", "test", 2, fix="make it anew")
    assert str(caught.value) == f"{path}: {words}; make it anew"
