"""Files of torch tensors: what is written is read, and what is no such file says so."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from doppler.errors import CheckpointError, DopplerError
from doppler.torch_tensors import load_torch_tensors, save_torch_tensors


def test_tensors_of_any_dtype_and_layout_come_back_equal(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    dtypes = (torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool, torch.int64)
    tensors = {str(dtype): base.to(dtype) for dtype in dtypes}
    tensors |= {"view": base.t(), "part": base[1:, ::2], "scalar": torch.tensor(3.0), "": base[:0]}
    tensors |= {"again": base, "expanded": base[:1].expand(4, 6)}
    tensors["parameter"] = torch.nn.Parameter(base)
    path = save_torch_tensors(tmp_path / "new" / "file", tensors)
    found = load_torch_tensors(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor.detach())
    found["again"].add_(1)
    assert torch.equal(found["view"].t(), base)
    assert load_torch_tensors(save_torch_tensors(path, {})) == {}


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\xff" * 40, pickle.dumps([1]), b"\x02" + bytes(7) + b"{}junk"]
)
def test_what_is_no_file_of_tensors_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"file: corrupt, or not a safetensors") as caught:
        load_torch_tensors(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_cut_missing_or_a_directory_is_refused(tmp_path: Path) -> None:
    path = save_torch_tensors(tmp_path / "file", {"a": torch.ones(100)})
    path.write_bytes(path.read_bytes()[:-1])
    for where, message in (
        (path, "corrupt"),
        (tmp_path / "other", "no such file of tensors"),
        (tmp_path, "is a directory"),
    ):
        with pytest.raises(CheckpointError, match=message):
            load_torch_tensors(where)
    with pytest.raises(DopplerError, match="cannot be written"):
        save_torch_tensors(tmp_path, {})
