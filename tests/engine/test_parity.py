from __future__ import annotations

import math

import pytest
import torch

from doppler import Graph
from doppler.engine import compare_outputs
from doppler.errors import GraphError
from doppler.graph import OpSpec, TensorSpec, Tile

NAMES = ("y", "y", "z")
TILES = (Tile("y", ((0, 2),)), Tile("y", ((2, 4),)), Tile("z", ((0, 2),)))
GRAPH = Graph.build(
    3,
    [],
    [],
    specs=[OpSpec("relu", (Tile("x", ((0, 2),)),), (2,))] * 3,
    tensors={"x": TensorSpec((2,))},
    outputs=dict(enumerate(TILES)),
)


def outputs(*values: list[float]) -> dict[int, torch.Tensor]:
    return {op: torch.tensor(value) for op, value in enumerate(values)}


REFERENCE = outputs([1.0, 2.0], [3.0, 10.0], [0.1, -0.2])


def test_equal_outputs_differ_by_nothing() -> None:
    found = compare_outputs(GRAPH, REFERENCE, REFERENCE)
    assert found.equal
    assert found.difference == 0.0


def test_roundings_are_within_the_tolerance_of_the_whole_result() -> None:
    found = compare_outputs(GRAPH, outputs([1.0005, 2.0], [3.0, 10.0], [0.1, -0.2]), REFERENCE)
    assert found.equal
    assert (found.name, found.tolerance) == ("y", pytest.approx(1e-3))
    assert found.difference == pytest.approx(5e-4, rel=1e-3)


@pytest.mark.parametrize("wrong", [-0.2001, math.inf, math.nan])
def test_another_value_is_found(wrong: float) -> None:
    found = compare_outputs(GRAPH, outputs([1.0, 2.0], [3.0, 10.0], [0.1, wrong]), REFERENCE)
    assert not found.equal
    assert found.name == "z"


def test_equal_infinities_and_nothings_are_equal() -> None:
    odd = outputs([math.inf, math.nan], [-math.inf, 1.0], [0.0, 0.0])
    assert compare_outputs(GRAPH, odd, odd).equal


def test_a_missing_output_is_named() -> None:
    with pytest.raises(GraphError, match="the output of op 2"):
        compare_outputs(GRAPH, outputs([1.0, 2.0], [3.0, 4.0]), REFERENCE)
