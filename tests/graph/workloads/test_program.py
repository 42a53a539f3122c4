from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from op_by_op import run

from doppler.errors import GraphError
from doppler.graph.workloads import Value, WorkloadProgram, shard

SIZES = {"i": 4, "j": 6, "k": 6, "heads": 2, "width": 3}


def program() -> WorkloadProgram:
    return WorkloadProgram("test", SIZES)


def renamed_wrongly(p: WorkloadProgram) -> None:
    p.input("x", ("i", "j")).rename(k="j")


def read_as_another_size(p: WorkloadProgram) -> None:
    x = p.input("x", ("i", "j"))
    p.einsum("y", (x, x.rename(j="i")), ("i",))


def without_size(p: WorkloadProgram) -> None:
    p.input("x", ("i", "z"))


def renamed_without_size(p: WorkloadProgram) -> None:
    p.reduce("y", "sum", p.input("x", ("i", "j")).rename(i="z"), "j")
    p.einsum("w", (Value("x", ("z", "j")),), ("z",))


def lost_axis(p: WorkloadProgram) -> None:
    p.elementwise("y", "add", (p.input("x", ("i",)), p.input("b", ("i", "j"))))


def invented_axis(p: WorkloadProgram) -> None:
    p.einsum("y", (p.input("x", ("i",)),), ("i", "j"))


def twice(p: WorkloadProgram) -> None:
    p.input("x", ("i",))
    p.input("x", ("j",))


def foreign(p: WorkloadProgram) -> None:
    p.elementwise("y", "relu", (program().input("x", ("i",)),))


def uneven_view(p: WorkloadProgram) -> None:
    p.split(p.input("x", ("i", "j")), "i", ("heads", "width"))


def view_of_a_view(p: WorkloadProgram) -> None:
    p.merge(p.split(p.input("x", ("j",)), "j", ("heads", "width")), ("heads", "width"), "k")


def not_neighbors(p: WorkloadProgram) -> None:
    p.merge(p.input("x", ("heads", "i", "width")), ("heads", "width"), "j")


def result_of_an_input(p: WorkloadProgram) -> None:
    p.result(p.input("x", ("i",)))


def reduced_over_nothing(p: WorkloadProgram) -> None:
    p.softmax("y", p.input("x", ("i",)), "j")


def no_result(p: WorkloadProgram) -> None:
    shard(p, {})


def no_bytes(p: WorkloadProgram) -> None:
    p.result(p.elementwise("y", "relu", (p.input("x", ("i",)),)))
    shard(p, {}, dtype_bytes=0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (renamed_wrongly, "x has no axis 'k', only i, j"),
        (read_as_another_size, "test: y reads axis 'j' (6) of x as 'i' (4)"),
        (without_size, "test: x uses dimension 'z' without a size"),
        (renamed_without_size, "test: y uses dimension 'z' without a size"),
        (lost_axis, "test: y: axis 'j' of b is lost"),
        (invented_axis, "test: y: no input has the axis 'j'"),
        (twice, "test: 'x' is defined twice"),
        (foreign, "test: y: 'x' is not in this program"),
        (uneven_view, "test: cannot view (i) of sizes (4,) in x as (heads, width)"),
        (view_of_a_view, "test: x.view0 is a view already; view its source"),
        (not_neighbors, "test: heads, width are no neighbors in x"),
        (result_of_an_input, "test: result 'x' is not computed by a meta-op"),
        (reduced_over_nothing, "test: y: x has no axis 'j'"),
        (no_result, "test: the program declares no result"),
        (no_bytes, "test: dtype_bytes is 0, must be a whole number >= 1"),
    ],
)
def test_a_wrong_program_is_refused(build: Callable[[WorkloadProgram], None], message: str) -> None:
    with pytest.raises(GraphError) as caught:
        build(program())
    assert message in str(caught.value)


COUNTS = st.fixed_dictionaries({name: st.integers(1, size) for name, size in SIZES.items()})


@given(COUNTS)
@settings(max_examples=40)
def test_views_of_inputs_and_results_compute_the_same_in_every_tiling(
    tiles: dict[str, int],
) -> None:
    p = program()
    x = p.input("x", ("i", "j"))
    split = p.split(x, "j", ("heads", "width"))
    doubled = p.elementwise("doubled", "add", (split, split))
    merged = p.merge(doubled, ("heads", "width"), "k")
    joined = p.elementwise("joined", "add", (merged, x.rename(j="k")))
    square = p.einsum("square", (joined, joined.rename(k="j")), ("k", "j"), scale=0.5)
    p.result(square)
    tensors, result = run(shard(p, tiles))
    expected = (3 * tensors["x"]).T @ (3 * tensors["x"]) / 2
    torch.testing.assert_close(result, expected)


@given(COUNTS)
@settings(max_examples=40)
def test_an_operand_may_have_its_axes_in_another_order(tiles: dict[str, int]) -> None:
    p = program()
    x, y = p.input("x", ("i", "j")), p.input("y", ("k", "i"))
    p.result(p.elementwise("z", "multiply", (x, y.rename(k="j"))))
    tensors, result = run(shard(p, tiles))
    torch.testing.assert_close(result, tensors["x"] * tensors["y"].T)
