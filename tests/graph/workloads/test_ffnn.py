from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from op_by_op import run

from doppler.graph.execution import assemble, make_tensors, run_sequential
from doppler.graph.workloads import ffnn

SIZES = {"batch": 5, "inputs": 4, "hidden": 7, "outputs": 6}


def reference(t: dict[str, torch.Tensor]) -> torch.Tensor:
    hidden = torch.nn.functional.relu(t["X"] @ t["W1"] + t["b1"])
    return torch.softmax(hidden @ t["W2"] + t["b2"], dim=1)


@pytest.mark.parametrize("tiles", [None, 1, 2, {"outputs": 1}, {"outputs": 6, "batch": 1}])
def test_the_shards_together_compute_the_network(tiles: Any) -> None:
    tensors, result = run(ffnn(**SIZES, tiles=tiles))
    torch.testing.assert_close(result, reference(tensors))


@given(st.fixed_dictionaries({name: st.integers(1, size) for name, size in SIZES.items()}))
@settings(max_examples=25)
def test_every_tiling_computes_the_network(tiles: dict[str, int]) -> None:
    tensors, result = run(ffnn(**SIZES, tiles=tiles))
    torch.testing.assert_close(result, reference(tensors))


def test_a_split_softmax_does_not_overflow() -> None:
    graph = ffnn(**SIZES, tiles={"outputs": 3})
    tensors = make_tensors(graph)
    tensors["b2"] = torch.linspace(-2e4, 2e4, SIZES["outputs"])
    (result,) = assemble(graph, run_sequential(graph, tensors)).values()
    torch.testing.assert_close(result, reference(tensors))


def test_a_whole_softmax_is_one_op_and_a_split_one_is_four_steps() -> None:
    whole = set(ffnn(tiles={"outputs": 1}).meta_ops)
    split = set(ffnn(tiles={"outputs": 2}).meta_ops)
    assert {name for name in whole if name.startswith("probabilities")} == {"probabilities"}
    assert {name for name in split if name.startswith("probabilities")} == {
        "probabilities",
        "probabilities.max",
        "probabilities.max.peak1",
        "probabilities.exp",
        "probabilities.sum",
        "probabilities.sum.total1",
    }


def test_the_default_has_about_as_many_ops_as_the_papers_network() -> None:
    assert ffnn().n_ops == 184
