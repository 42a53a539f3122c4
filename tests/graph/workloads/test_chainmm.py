from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from op_by_op import run

from doppler.graph.workloads import chainmm

SIZES = {"m": 5, "k": 7, "n": 6, "p": 8, "q": 3}


def reference(t: dict[str, torch.Tensor]) -> torch.Tensor:
    return t["A"] @ t["B"] + t["C"] @ (t["D"] @ t["E"])


@pytest.mark.parametrize("tiles", [None, 1, 2, 3, {"k": 7, "n": 4}])
def test_the_shards_together_compute_the_chain(tiles: Any) -> None:
    tensors, result = run(chainmm(**SIZES, tiles=tiles))
    torch.testing.assert_close(result, reference(tensors))


@given(st.fixed_dictionaries({name: st.integers(1, size) for name, size in SIZES.items()}))
@settings(max_examples=25)
def test_every_tiling_computes_the_chain(tiles: dict[str, int]) -> None:
    tensors, result = run(chainmm(**SIZES, tiles=tiles))
    torch.testing.assert_close(result, reference(tensors))


def test_the_default_has_as_many_ops_as_the_papers_chain() -> None:
    graph = chainmm()
    assert graph.n_ops == 84
    assert {kind: graph.kinds.count(kind) for kind in set(graph.kinds)} == {
        "einsum": 48,
        "add": 32,
        "elementwise": 4,
    }
    einsums = sum(f for f, kind in zip(graph.flops, graph.kinds, strict=True) if kind == "einsum")
    assert einsums == 3 * 2 * 20_000**3
