from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler.errors import GraphError, UnknownNameError
from doppler.graph.workloads.tiling import resolve_tiles, tile_bounds

SIZES = {"rows": 8, "columns": 3, "depth": 5}
DEFAULTS = {"rows": 2, "columns": 4}


@pytest.mark.parametrize(
    ("tiles", "counts"),
    [
        (None, {"rows": 2, "columns": 3, "depth": 1}),
        (1, {"rows": 1, "columns": 1, "depth": 1}),
        (4, {"rows": 4, "columns": 3, "depth": 1}),
        ({"depth": 5, "rows": 3}, {"rows": 3, "columns": 3, "depth": 5}),
        ({}, {"rows": 2, "columns": 3, "depth": 1}),
    ],
)
def test_every_dimension_gets_a_count(tiles: object, counts: dict[str, int]) -> None:
    assert resolve_tiles("w", SIZES, DEFAULTS, tiles) == counts  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tiles", "error", "message"),
    [
        (0, GraphError, "w: tiles is 0, must be a whole number >= 1"),
        ("2", GraphError, "w: tiles is '2', must be a whole number >= 1"),
        (True, GraphError, "w: tiles is True, must be"),
        ({"rows": 2.0}, GraphError, "w: tiles of rows is 2.0, must be"),
        ({"rows": 9}, GraphError, "w: dimension 'rows' of size 8 cannot be split into 9 tiles"),
        ({"row": 2}, UnknownNameError, "unknown dimension of w 'row': did you mean 'rows'?"),
    ],
)
def test_tiles_that_do_not_suit_are_named(
    tiles: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        resolve_tiles("w", SIZES, DEFAULTS, tiles)  # type: ignore[arg-type]
    assert message in str(caught.value)


@given(st.integers(1, 1000), st.data())
def test_tiles_cover_a_dimension_evenly(size: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, size))
    bounds = tile_bounds(size, count)
    extents = {high - low for low, high in pairwise(bounds)}
    assert (bounds[0], bounds[-1], len(bounds)) == (0, size, count + 1)
    assert min(extents) >= 1
    assert max(extents) - min(extents) <= 1
