"""What runs together as one op: nothing twice, nothing out of order, nothing much later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler.capture.costs import flops, traffic
from doppler.capture.fusion import Group, Views, fuse
from doppler.capture.program import Call, Input, Output, Program, Ref, Source, TensorMeta, whole

Each = tuple[str, tuple[int, ...], TensorMeta]
Calls = list[Each]
WIDE, NARROW = TensorMeta((1024, 4096), "float32"), TensorMeta((8, 8), "float32")


def build(calls: Sequence[Each], outputs: tuple[int, ...] = ()) -> Program:
    """A program of one input; a call reads other calls by their numbers, or the input by -1."""
    source = Source("input", WIDE)
    block = Input("x", whole(WIDE.shape), WIDE)
    made = []
    read: set[int] = set()
    for number, (op, reads, meta) in enumerate(calls):
        read.update(reads)
        refs = tuple(Ref(1 + each) for each in reads)
        args = (refs,) if op == "aten.cat.default" else refs
        made.append(Call(op, args, {}, (meta,), False, f"call{number}"))
    last = outputs or tuple(number for number in range(len(calls)) if number not in read)
    returned = tuple(
        Output(
            f"output{at}",
            calls[number][2],
            ((Ref(1 + number), whole(calls[number][2].shape)),),
        )
        for at, number in enumerate(last)
    )
    return Program("built", {"x": source}, (block,), tuple(made), returned)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    calls: Calls = []
    for number in range(draw(st.integers(1, 24))):
        op = draw(
            st.sampled_from(
                ("aten.linear.default", "aten.relu.default", "aten.cat.default", "view")
            )
        )
        if op == "view" and number:
            of = draw(st.integers(max(0, number - 6), number - 1))
            calls.append(("aten.transpose.int", (of,), calls[of][2]))
            continue
        op = "aten.relu.default" if op == "view" else op
        count = {"aten.relu.default": 1, "aten.linear.default": 2}.get(op, 3)
        reads = draw(st.lists(st.integers(max(-1, number - 6), number - 1), min_size=1, max_size=3))
        reads = [*reads, *reads, *reads][: max(1, min(count, 3))]
        calls.append((op, tuple(reads), draw(st.sampled_from((WIDE, NARROW)))))
    return build(
        calls, tuple(draw(st.sets(st.integers(0, len(calls) - 1), min_size=0, max_size=2)))
    )


def seconds(program: Program) -> list[float]:
    """What fusion takes a call to last."""
    return [
        flops(call, program) / 1e13 + sum(traffic(call, program)) / 1e12 for call in program.calls
    ]


def producers(program: Program, views: Views) -> list[set[int]]:
    bases = [{views.base(ref).value - 1 for ref in call.refs()} for call in program.calls]
    return [{each for each in found if each >= 0} for found in bases]


def ends(of: Mapping[int, int], program: Program) -> tuple[dict[int, float], dict[int, int]]:
    """When each group would end on enough devices that pass tensors in no time; and its depth."""
    durations, reads = seconds(program), producers(program, Views(program))
    lasts: dict[int, float] = {}
    needs: dict[int, set[int]] = {}
    for call, group in of.items():
        lasts[group] = lasts.get(group, 0.0) + durations[call]
        needs.setdefault(group, set()).update(of[each] for each in reads[call])
    end: dict[int, float] = {}
    depth: dict[int, int] = {}
    for group in sorted(lasts):
        before = needs[group] - {group}
        end[group] = lasts[group] + max((end[each] for each in before), default=0.0)
        depth[group] = 1 + max((depth[each] for each in before), default=0)
    return end, depth


@settings(max_examples=200, deadline=None)
@given(programs(), st.sampled_from((0.0, 0.002, 0.05, 1.0)))
def test_groups_are_whole_ordered_and_end_hardly_later(program: Program, least: float) -> None:
    views = Views(program)
    groups = fuse(program, views, least=least)
    calls = [call for group in groups for call in group.calls]
    assert sorted(calls) == [n for n, is_view in enumerate(views.is_view) if not is_view]
    of = {call: group.last for group in groups for call in group.calls}
    reads = producers(program, views)
    done: set[int] = set()
    for group in groups:
        # What a group reads of others is the result of a group that ran before, whole.
        outside = {each for call in group.calls for each in reads[call]} - set(group.calls)
        assert all(of[each] == each for each in outside)
        assert outside <= done
        done.add(group.last)
    returned = {views.base(ref).value - 1 for out in program.outputs for ref, _ in out.pieces}
    assert all(of[each] == each for each in returned if each >= 0)
    if least == 0:
        assert all(len(group.calls) == 1 for group in groups)
    alone, _ = ends({call: call for call in of}, program)
    fused, depth = ends(of, program)
    cheap = least * sum(seconds(program))
    for last, end in fused.items():
        assert end <= alone[last] + depth[last] * cheap + 1e-12


def groups_of(program: Program, least: float = 0.002) -> list[tuple[int, ...]]:
    return [group.calls for group in fuse(program, Views(program), least=least)]


def test_a_chain_of_maps_joins_the_product_that_it_follows() -> None:
    chain: Calls = [("aten.linear.default", (-1, -1), WIDE), ("aten.relu.default", (0,), WIDE)]
    assert groups_of(build(chain)) == [(0, 1)]
    again = [*chain, ("aten.linear.default", (1, 1), WIDE)]
    # The map goes to the later product; two products of one size stay apart.
    assert groups_of(build(again)) == [(0,), (1, 2)]


def test_views_are_in_no_group() -> None:
    program = build(
        [
            ("aten.linear.default", (-1, -1), WIDE),
            ("aten.transpose.int", (0,), WIDE),
            ("aten.relu.default", (1,), WIDE),
        ]
    )
    views = Views(program)
    assert views.is_view == [False, True, False]
    assert views.base(Ref(2)) == Ref(1)
    assert views.chain(Ref(2)) == [1]
    assert fuse(program, views) == [Group((0, 2))]


def test_branches_stay_apart_but_for_what_is_cheap() -> None:
    calls: Calls = [
        ("aten.linear.default", (-1, -1), WIDE),
        ("aten.relu.default", (0,), WIDE),
        ("aten.linear.default", (-1, -1), WIDE),
        ("aten.relu.default", (2,), WIDE),
        ("aten.cat.default", (1, 3), WIDE),
    ]
    assert groups_of(build(calls), 0.0001) == [(0, 1), (2, 3), (4,)]
    # What is to be moved grows if the map, which makes less than it reads, goes to the reader.
    assert groups_of(build([*calls[:1], *calls[2:3], *_narrow()]), 0.9)[:2] == [(0, 2), (1, 3)]
    small = [(op, reads, NARROW) for op, reads, _ in calls]
    assert len(groups_of(build(small), 1.0)) == 1


def _narrow() -> Calls:
    maps: Calls = [("aten.relu.default", (at,), NARROW) for at in (0, 1)]
    return [*maps, ("aten.cat.default", (2, 3), NARROW)]


def test_what_is_returned_or_read_by_several_ends_its_group() -> None:
    calls: Calls = [("aten.relu.default", (-1,), WIDE), ("aten.relu.default", (0,), WIDE)]
    assert groups_of(build(calls)) == [(0, 1)]
    assert groups_of(build(calls, (0, 1))) == [(0,), (1,)]
    both = [*calls, ("aten.sigmoid.default", (0,), WIDE)]
    assert groups_of(build(both)) == [(0,), (1,), (2,)]


def test_many_parallel_maps_do_not_add_up_in_one_op() -> None:
    count = 32
    calls: Calls = [("aten.relu.default", (-1,), WIDE) for _ in range(count)]
    calls.append(("aten.cat.default", tuple(range(count)), WIDE))
    program = build(calls)
    longest = max(len(group) for group in groups_of(program, 0.1))
    assert 1 < longest <= 1 + 0.1 * 2 * count + 1


@pytest.mark.parametrize("least", [0.002, 0.5])
def test_fusion_of_thousands_of_calls_takes_no_time_to_speak_of(least: float) -> None:
    calls: Calls = [("aten.relu.default", (number - 1,), WIDE) for number in range(4000)]
    assert groups_of(build(calls), least) == [tuple(range(4000))]
