"""Weights beside a graph: written whole, read into the graph's tensors, refused if they differ."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from doppler.capture.capture import capture
from doppler.capture.weights import load_weights, save_weights
from doppler.errors import CaptureError, CheckpointError


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4, dtype=torch.bfloat16)
        self.head = nn.Linear(4, 6, bias=False, dtype=torch.bfloat16)
        self.head.weight = self.embedding.weight
        self.part: Tensor
        self.rows: Tensor
        self.register_buffer("part", torch.arange(8.0)[2:6].bfloat16(), persistent=False)
        self.register_buffer("rows", torch.arange(10.0)[2:6])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x) * self.part) * torch.tensor([2.0]) + self.rows.sum()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Tied().eval()


def test_tied_tensors_and_parts_of_others_are_written_once(model, tmp_path) -> None:
    captured = capture(model, (torch.tensor([1, 2]),))
    path = save_weights(tmp_path / "new" / "w.safetensors", model, captured.constants)
    held = load_file(path)
    assert {*held} == {"embedding.weight", "part", "rows", *captured.constants}
    assert path.stat().st_size < 1000
    found = load_weights(path, captured.graph)
    assert found.keys() == {n for n, t in captured.graph.tensors.items() if t.role != "input"}
    assert torch.equal(found["embedding.weight"], model.embedding.weight)
    assert found["embedding.weight"].dtype == torch.bfloat16
    assert torch.equal(found["rows"], model.rows)


def test_a_state_dict_serves_where_the_graph_holds_the_rest(tmp_path) -> None:
    model = nn.Linear(3, 2)
    captured = capture(model, (torch.ones(1, 3),))
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    assert load_weights(tmp_path / "w.safetensors", captured.graph).keys() == {"weight", "bias"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.ones(3, 2)}, "'weight' is float32 of shape (3, 2), the graph says"),
        ({"weight": torch.ones(2, 3).half()}, "'weight' is float16 of shape (2, 3), the graph"),
        ({"bias": None}, "lacks the parameter 'bias' of Linear"),
    ],
)
def test_other_weights_are_refused(tmp_path, change, message) -> None:
    model = nn.Linear(3, 2)
    captured = capture(model, (torch.ones(1, 3),))
    tensors = {**model.state_dict(), **change}
    path = tmp_path / "w.safetensors"
    save_file({name: each for name, each in tensors.items() if each is not None}, path)
    with pytest.raises(CaptureError) as error:
        load_weights(path, captured.graph)
    assert message in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("content", [b"", b"\x80\x04pickle", b"\xff" * 64])
def test_what_is_no_file_of_tensors_is_refused(tmp_path, content) -> None:
    captured = capture(nn.Linear(3, 2), (torch.ones(1, 3),))
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="corrupt, or not a safetensors file"):
        load_weights(path, captured.graph)
