"""From a model to a graph: options, names, and many kinds of layers run as the model runs them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from running import assert_as_eager
from torch import Tensor, nn

from doppler import Cluster, Problem
from doppler.capture import capture
from doppler.capture.capture import Captures, check_shard
from doppler.errors import CaptureError, ParamsError, UnknownNameError


class Of(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


X = draw(4, 8)
SEQUENCE = draw(2, 5, 8)
IMAGES = draw(2, 3, 8, 8)

LAYERS: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
    "perceptron": (nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), (X,)),
    "lstm": (nn.LSTM(8, 4, 2), (SEQUENCE,)),
    "gru": (nn.GRU(8, 4, bidirectional=True), (SEQUENCE,)),
    "attention": (nn.MultiheadAttention(8, 2, batch_first=True), (SEQUENCE,) * 3),
    "encoder": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (SEQUENCE,)),
    "decoder": (nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), (SEQUENCE, SEQUENCE)),
    "convolutions": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 2, 3)),
        (IMAGES,),
    ),
    "norms": (nn.Sequential(nn.InstanceNorm2d(3), nn.GroupNorm(3, 3)), (IMAGES,)),
    "bag": (nn.EmbeddingBag(10, 4, mode="sum"), (torch.arange(4), torch.tensor([0, 2]))),
    "weight norm": (nn.utils.parametrizations.weight_norm(nn.Linear(8, 4)), (X,)),
    "pools": (Of(lambda x: F.adaptive_avg_pool2d(F.max_pool2d(x, 2), 1)), (IMAGES,)),
    "interpolation": (Of(lambda x: F.interpolate(x, scale_factor=2.0)), (IMAGES,)),
    "sorts": (Of(lambda x: (x.sort(1)[0], x.argmax(1), x.cumsum(0), x.flip(0))), (X,)),
    "complex": (Of(lambda x: torch.fft.rfft(x).abs()), (X,)),
    "einsum": (Of(lambda x: torch.einsum("ij,kj->ik", x, x)), (X,)),
    "unbind": (Of(lambda x: [row * 2 for row in x.unbind()] + list(x.split(3, 1))), (X,)),
    "scatter": (Of(lambda x: torch.zeros(9, 8).index_add(0, torch.arange(4), x)), (X,)),
    "zero elements": (Of(lambda x: x[:0] + 1), (X,)),
    "a number": (Of(lambda x, scale: x * scale), (X, torch.tensor(2.0))),
    "numpy": (Of(lambda x: torch.from_numpy(x.numpy() + x.numpy().sum())), (X,)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_compute_what_they_compute_in_eager(name: str) -> None:
    model, args = LAYERS[name]
    assert_as_eager(model.eval(), args)


def test_the_graph_is_named_after_the_model_and_its_modules() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 8))
    graph = capture(model, (X,)).graph
    assert graph.name == "Sequential"
    assert {*graph.names} <= {"0.linear", "1.linear"}
    assert capture(model, (X,), name="mine").graph.name == "mine"


def test_fusion_makes_fewer_ops_of_the_same_work() -> None:
    model = LAYERS["encoder"][0].eval()
    captures = Captures(model, (SEQUENCE,))
    sizes = [captures.graph(fusion=fusion).graph.n_ops for fusion in (0.0, 0.002, 0.1)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


def test_a_model_is_traced_once_for_each_size_of_the_batch(monkeypatch) -> None:
    module = sys.modules["doppler.capture.capture"]
    traced: list[int] = []
    export = module.export

    def counted(*args: Any, **named: Any) -> Any:
        traced.append(1)
        return export(*args, **named)

    monkeypatch.setattr(module, "export", counted)
    captures = Captures(LAYERS["perceptron"][0], (X,))
    for shard in (None, {"batch": 2}, {"batch": 2, "tensor": 2}, {"tensor": 2}, {"batch": 1}):
        captures.graph(shard)
    assert len(traced) == 2


def test_shards_are_tiles_of_one_meta_op() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    graph = capture(model, (X,), shard={"batch": 2}, fusion=0.0).graph
    tiles = map(tuple, graph.tiles)
    assert sorted(zip(graph.meta_ops, graph.shards, tiles, strict=True)) == [
        ("0.linear", 0, (0,)),
        ("0.linear", 1, (1,)),
        ("1.linear", 0, (0,)),
        ("1.linear", 1, (1,)),
    ]


def test_a_model_too_large_for_this_machine_has_costs_on_every_cluster() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(20_000, 20_000) for _ in range(16)])
        graph = capture(model, (torch.empty(64, 20_000),)).graph
    assert graph.param_bytes.sum() > 16 * 4 * 20_000**2
    assert Problem(graph, Cluster.load("a100x4")).lower_bound > 0


@pytest.mark.parametrize(
    ("shard", "error", "message"),
    [
        (3, CaptureError, "shard is 3, must be a mapping"),
        ({"batch": 0}, CaptureError, "shard: batch is 0, must be a whole number from 1"),
        ({"batch": True}, CaptureError, "must be a whole number"),
        ({"batches": 2}, UnknownNameError, "did you mean 'batch'?"),
    ],
)
def test_shards_that_are_none_are_refused(shard, error, message) -> None:
    with pytest.raises(error) as found:
        check_shard(shard)
    assert message in str(found.value)


def test_options_are_checked() -> None:
    with pytest.raises(ParamsError, match="fusion is 2"):
        capture(nn.Linear(8, 4), (X,), fusion=2)
    with pytest.raises(UnknownNameError, match="reduction"):
        capture(nn.Linear(8, 4), (X,), training=True, reduction="max")
    with pytest.raises(CaptureError, match="loss is for a training step"):
        capture(nn.Linear(8, 4), (X,), loss=torch.sum)
