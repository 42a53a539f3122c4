from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from op_by_op import run
from torch.nn.functional import rms_norm, silu

from doppler.errors import GraphError
from doppler.graph.workloads import moe_layer

SIZES = {"sequence": 7, "hidden": 6, "experts": 4, "top_k": 2, "intermediate": 5}
DIMENSIONS = {
    "sequence": 7,
    "hidden": 6,
    "experts": 4,
    "choices": 4,
    "capacity": 4,
    "intermediate": 5,
}


def reference(t: dict[str, torch.Tensor]) -> torch.Tensor:
    """Token by token, expert by expert, without slots."""
    h = rms_norm(t["x"], t["x"].shape[1:], t["norm_weight"], 1e-5)
    odds = torch.softmax(h @ t["Wrouter"], dim=1)
    rows = []
    for token in range(len(h)):
        experts = t["dispatch"][:, :, token].any(dim=1).nonzero().flatten().tolist()
        row = t["x"][token].clone()
        for e in experts:
            hidden = silu(h[token] @ t["Wgate"][e]) * (h[token] @ t["Wup"][e])
            row += odds[token, e] / odds[token, experts].sum() * (hidden @ t["Wdown"][e])
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize(
    "tiles", [None, 1, 2, 3, {"choices": 2, "capacity": 2}, {"hidden": 1, "intermediate": 5}]
)
@pytest.mark.parametrize("factor", [0.3, 1.0, 2.0])
def test_the_shards_together_compute_the_layer(tiles: Any, factor: float) -> None:
    tensors, result = run(moe_layer(**SIZES, capacity_factor=factor, tiles=tiles))
    torch.testing.assert_close(result, reference(tensors))


@given(st.fixed_dictionaries({n: st.integers(1, s) for n, s in DIMENSIONS.items()}))
@settings(max_examples=15)
def test_every_tiling_computes_the_layer(tiles: dict[str, int]) -> None:
    tensors, result = run(moe_layer(**SIZES, tiles=tiles), seed=1)
    torch.testing.assert_close(result, reference(tensors))


def test_a_token_without_a_slot_passes_unchanged() -> None:
    tensors, result = run(moe_layer(**SIZES, capacity_factor=0.1))
    dropped = tensors["dispatch"].sum((0, 1)) == 0
    assert dropped.any()
    torch.testing.assert_close(result[dropped], tensors["x"][dropped])


def test_the_graph_does_not_depend_on_the_routing() -> None:
    graph = moe_layer(**SIZES)
    first, second = run(graph, seed=0)[0]["dispatch"], run(graph, seed=1)[0]["dispatch"]
    assert not torch.equal(first, second)
    for dispatch in (first, second):
        assert set(dispatch.unique().tolist()) == {0.0, 1.0}
        assert dispatch.sum(2).max() == 1, "a slot holds one token"
        assert dispatch.sum(1).max() == 1, "a token is sent to an expert once"
        assert dispatch.sum((0, 1)).max() == 2


def test_the_default_is_mixtral_in_a_couple_of_hundred_ops() -> None:
    graph = moe_layer()
    assert 70 <= graph.n_ops <= 250
    assert graph.tensors["Wgate"].shape == (8, 4096, 14_336)
    assert graph.tensors["dispatch"].shape == (8, 1024, 4096)
    experts = sum(
        flops
        for flops, name in zip(graph.flops, graph.meta_ops, strict=True)
        if name in ("gate", "up", "down")
    )
    assert experts == 3 * 2 * (4096 * 2) * 4096 * 14_336
    assert np.diff(graph.predecessors[0]).max() <= 4


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"top_k": 9}, "moe_layer: top_k 9 is larger than the number of experts 8"),
        ({"capacity_factor": 0.0}, "moe_layer: capacity_factor is 0.0, must be a number > 0"),
        ({"capacity_factor": float("nan")}, "capacity_factor is nan"),
        ({"experts": 0}, "moe_layer: experts is 0, must be a whole number >= 1"),
    ],
)
def test_a_wrong_size_is_named(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        moe_layer(**sizes)
