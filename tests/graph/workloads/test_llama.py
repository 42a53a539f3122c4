from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from op_by_op import run
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from doppler.errors import GraphError, UnknownNameError
from doppler.graph.workloads import llama_block, llama_layer

SIZES: dict[str, Any] = {"sequence": 6, "hidden": 24, "heads": 6, "kv_heads": 3}
DIMENSIONS = {
    "sequence": 6,
    "keys": 6,
    "hidden": 24,
    "query_features": 24,
    "kv_features": 12,
    "kv_heads": 3,
    "group": 2,
    "head_dim": 4,
    "intermediate": 10,
}


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotate features i and i + half as one complex number; x [sequence, heads, features]."""
    half = x.shape[-1] // 2
    angle = torch.outer(
        torch.arange(len(x), dtype=torch.float64),
        10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half),
    )
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
        torch.ones_like(angle), angle
    ).unsqueeze(1)
    return torch.cat((turned.real, turned.imag), dim=-1)


def attention(
    t: dict[str, torch.Tensor], x: torch.Tensor, layer: int, heads: int, kv: int, causal: bool
) -> torch.Tensor:
    def weight(name: str) -> torch.Tensor:
        return t[f"layer{layer}.{name}"]

    h = rms_norm(x, x.shape[1:], weight("attention_norm_weight"), 1e-5)
    q = rotate((h @ weight("Wq")).unflatten(1, (heads, -1))).transpose(0, 1)
    k = rotate((h @ weight("Wk")).unflatten(1, (kv, -1))).transpose(0, 1)
    v = (h @ weight("Wv")).unflatten(1, (kv, -1)).transpose(0, 1)
    out = scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    return x + out.transpose(0, 1).flatten(1) @ weight("Wo")


def layer(
    t: dict[str, torch.Tensor], x: torch.Tensor, number: int, heads: int, kv: int, causal: bool
) -> torch.Tensor:
    def weight(name: str) -> torch.Tensor:
        return t[f"layer{number}.{name}"]

    x = attention(t, x, number, heads, kv, causal)
    h = rms_norm(x, x.shape[1:], weight("mlp_norm_weight"), 1e-5)
    return x + (silu(h @ weight("Wgate")) * (h @ weight("Wup"))) @ weight("Wdown")


TILINGS = [
    None,
    1,
    2,
    3,
    {"keys": 2},
    {"keys": 4, "sequence": 3, "group": 2, "head_dim": 2},
    {"query_features": 5, "kv_features": 7, "kv_heads": 2, "hidden": 1},
]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("tiles", TILINGS)
def test_the_shards_together_compute_the_block(tiles: Any, causal: bool) -> None:
    tensors, result = run(llama_block(**SIZES, causal=causal, tiles=tiles))
    expected = attention(tensors, tensors["x"], 0, 6, 3, causal)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("tiles", TILINGS)
def test_the_shards_together_compute_the_layer(tiles: Any) -> None:
    tensors, result = run(llama_layer(**SIZES, intermediate=10, tiles=tiles))
    torch.testing.assert_close(result, layer(tensors, tensors["x"], 0, 6, 3, True))


@given(st.fixed_dictionaries({n: st.integers(1, min(s, 5)) for n, s in DIMENSIONS.items()}))
@settings(max_examples=15)
def test_every_tiling_computes_the_layer(tiles: dict[str, int]) -> None:
    graph = llama_layer(**SIZES, intermediate=10, tiles=tiles)
    tensors, result = run(graph)
    torch.testing.assert_close(result, layer(tensors, tensors["x"], 0, 6, 3, True))


def test_layers_follow_each_other_with_their_own_parameters() -> None:
    graph = llama_layer(3, sequence=4, hidden=8, heads=2, intermediate=6)
    tensors, result = run(graph)
    x = tensors["x"]
    for number in range(3):
        x = layer(tensors, x, number, 2, 2, True)
    torch.testing.assert_close(result, x)


def test_defaults_are_llama_7b_and_about_as_large_as_the_papers_graphs() -> None:
    block, whole = llama_block(), llama_layer()
    assert (block.n_ops, whole.n_ops) == (170, 224)
    parameters = sum(
        math.prod(spec.shape) for spec in whole.tensors.values() if spec.role == "parameter"
    )
    assert parameters == 4 * 4096**2 + 3 * 4096 * 11_008 + 2 * 4096
    einsums = np.array([kind == "einsum" for kind in whole.kinds])
    attended = 2 * 2 * 4096**3
    assert whole.flops[einsums].sum() == 2 * 4096 * (parameters - 2 * 4096) + attended


def test_heads_tiled_like_the_features_need_no_formation() -> None:
    graph = llama_block(tiles={"keys": 2})
    assert "formation" not in graph.kinds
    assert any("views" in spec.attributes for spec in graph.specs or ())


def test_heads_tiled_otherwise_than_the_features_are_formed() -> None:
    graph = llama_block(tiles={"keys": 2, "query_features": 2})
    formed = {name for name, k in zip(graph.meta_ops, graph.kinds, strict=True) if k == "formation"}
    assert formed == {"layer0.q.view0.form1", "layer0.mixed.view0.form1"}


def test_a_hundred_thousand_ops_keep_few_inputs() -> None:
    def most_inputs(layers: int) -> tuple[int, int]:
        graph = llama_layer(layers, tiles=8)
        return graph.n_ops, int(np.diff(graph.predecessors[0]).max())

    n_ops, most = most_inputs(14)
    assert n_ops >= 100_000
    assert most == most_inputs(1)[1] == 8


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"layers": 0}, "llama_layer: layers is 0, must be a whole number >= 1"),
        ({"hidden": 100, "heads": 7}, "llama_layer: hidden 100 is not divisible by heads 7"),
        ({"heads": 32, "kv_heads": 5}, "llama_layer: heads 32 is not divisible by kv_heads 5"),
        ({"hidden": 96, "heads": 32}, "a head has 3 features .* rotary embeddings need an even"),
        ({"sequence": 2.0}, "llama_layer: sequence is 2.0, must be a whole number >= 1"),
        ({"tiles": {"group": 2}}, "dimension 'group' of size 1 cannot be split into 2 tiles"),
    ],
)
def test_a_wrong_size_is_named(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        llama_layer(**sizes)


def test_an_unknown_dimension_names_the_nearest() -> None:
    with pytest.raises(
        UnknownNameError, match="unknown dimension of llama_layer 'hiden': did you mean 'hidden'"
    ):
        llama_layer(tiles={"hiden": 2})


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"layers": 10**9}, "layers is 1000000000, must be at most 10000"),
        ({"tiles": 4096}, "ops or more, at most 10,000,000; give fewer tiles"),
    ],
)
def test_a_slip_that_would_fill_the_memory_is_refused(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        llama_layer(**sizes)
