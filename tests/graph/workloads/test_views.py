from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from doppler.graph.workloads.program import View
from doppler.graph.workloads.views import covering

Sizes = tuple[int, ...]


@st.composite
def views(draw: st.DrawFn) -> View:
    groups = []
    for _ in range(draw(st.integers(1, 3))):
        several = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
        one = (math.prod(several),)
        groups.append(draw(st.sampled_from([(one, several), (several, one), (one, one)])))
    return View("source", tuple(groups))


def slices(ranges: tuple[tuple[int, int], ...]) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in ranges)


@given(views(), st.data())
def test_the_covering_block_holds_the_block_of_the_view(view: View, data: st.DataObject) -> None:
    before: Sizes = sum((group[0] for group in view.groups), ())
    after: Sizes = sum((group[1] for group in view.groups), ())
    whole = np.arange(math.prod(before))
    block = []
    for size in after:
        low = data.draw(st.integers(0, size - 1))
        block.append((low, data.draw(st.integers(low + 1, size))))
    cover = covering(view, block)
    found = whole.reshape(before)[slices(cover.ranges)].reshape(cover.shape)
    wanted = whole.reshape(after)[slices(tuple(block))]
    np.testing.assert_array_equal(found[slices(cover.slices)], wanted)
    assert cover.exact == (found.size == wanted.size)


def test_one_head_is_read_from_its_own_features() -> None:
    view = View("q", (((64,), (4, 16)),))
    cover = covering(view, [(2, 3), (4, 8)])
    assert cover.ranges == ((36, 40),)
    assert cover.exact


def test_features_across_heads_are_cut_from_whole_heads() -> None:
    view = View("mixed", (((4, 16), (64,)),))
    cover = covering(view, [(8, 24)])
    assert cover.ranges == ((0, 2), (0, 16))
    assert cover.slices == ((8, 24),)
