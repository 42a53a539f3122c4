"""Generated cases: seeded, of the sizes asked for, of all kinds, and never one that is held out."""

from __future__ import annotations

from pathlib import Path

import pytest

from doppler.cases import cases
from doppler.errors import DopplerError
from doppler.graph.fingerprint import fingerprint
from doppler.params import load_params
from doppler.training.generated import generate

ROOT = Path(__file__).parents[2]


def test_a_number_is_a_case() -> None:
    for number in range(6):
        problem = generate(3, number, (300, 900))
        assert 300 <= problem.n_ops <= 900
        assert problem.fingerprint == generate(3, number, (300, 900)).fingerprint
    assert generate(3, 0, (300, 900)).fingerprint != generate(4, 0, (300, 900)).fingerprint
    assert generate(3, 0, (300, 900)).fingerprint != generate(3, 6, (300, 900)).fingerprint


def test_clusters_of_many_shapes_and_all_workloads() -> None:
    drawn = [generate(0, number, (300, 900)) for number in range(36)]
    assert len({problem.graph.name for problem in drawn}) == 6
    nodes = {int(problem.nodes.max()) + 1 for problem in drawn}
    assert {1, 2, 4} <= nodes
    assert len({problem.n_devices for problem in drawn}) > 4


def test_no_generated_graph_is_held_out() -> None:
    params = load_params(ROOT / "params.yaml")
    large = cases(params.evaluate.zero_shot_large)
    held_out = {fingerprint(params.graphs[name].build()) for name in {case.graph for case in large}}
    drawn = params.generated
    assert len(held_out) == 5
    # Those are larger than any that is drawn to train on.
    assert all(params.graphs[case.graph].build().n_ops > drawn.ops[1] for case in large)


def test_sizes_that_no_graph_has() -> None:
    with pytest.raises(DopplerError, match="no generated llama_layer has 1 to 2 ops"):
        generate(0, 0, (1, 2))
