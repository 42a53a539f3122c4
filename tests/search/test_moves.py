"""Moves: what they change is noted, whole groups go, and each does what it says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from random_problems import problems, random_graph, random_placement

from doppler import Cluster, Graph, Placement, Problem, workloads
from doppler.graph.structure import structure
from doppler.search.moves import (
    REGION,
    Landscape,
    Log,
    landscape,
    make_log,
    move_op,
    move_rank,
    move_region,
    move_slice,
    move_walk,
    swap_slices,
    swap_window,
    target_of,
    undo,
)

quick = settings(max_examples=60)


@njit
def seed_kernels(seed):
    """Kernels draw from a generator of their own."""
    np.random.seed(seed)


class Board:
    """A placement and what moves need."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem = problem
        placement = random_placement(problem, seed)
        self.devices: np.ndarray = placement.devices.copy()
        self.by_rank = np.argsort(placement.priority).astype(np.int32)
        self.land: Landscape = landscape(problem)
        self.log: Log = make_log(problem.n_ops)

    def play(self, name: str, op: int, target: int, size: int = 20) -> int:
        arrays, land, devices, log = self.problem.arrays, self.land, self.devices, self.log
        plays: dict[str, Callable[[], int]] = {
            "op": lambda: move_op(arrays, land, devices, op, target, log, 0),
            "walk": lambda: move_walk(arrays, land, devices, op, target, log, 0),
            "region": lambda: move_region(
                arrays, land, devices, op, target, min(size, self.problem.n_ops), log, 0
            ),
            "slice": lambda: move_slice(arrays, land, devices, op, target, log, 0),
            "slices": lambda: swap_slices(arrays, land, devices, op, log, 0),
            "window": lambda: swap_window(
                arrays, land, devices, self.by_rank, op, int(self.rank[op]), log, 0
            ),
        }
        return int(plays[name]())

    @property
    def rank(self) -> np.ndarray:
        rank = np.empty(self.problem.n_ops, np.int64)
        rank[self.by_rank] = np.arange(self.problem.n_ops)
        return rank


KERNELS = ("op", "walk", "region", "slice", "slices", "window")
every = pytest.mark.parametrize("name", KERNELS)


def tiled(cluster: str = "a100_2x4") -> Problem:
    return Problem(workloads.chainmm(8, 8, 8, 8, 8, tiles=2), Cluster.load(cluster))


def connected(problem: Problem, ops: set[int]) -> bool:
    edges = zip(problem.graph.src.tolist(), problem.graph.dst.tolist(), strict=True)
    inner = [{u, v} for u, v in edges if u in ops and v in ops]
    reached = {next(iter(ops))}
    while more := {op for pair in inner if pair & reached for op in pair} - reached:
        reached |= more
    return reached == ops


@every
@quick
@given(problem=problems(), seed=st.integers(0, 10_000))
def test_what_changes_is_noted_valid_and_undone(name: str, problem: Problem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    board = Board(problem, seed)
    seed_kernels(seed)
    for _ in range(10):
        before = board.devices.copy()
        op, target = int(rng.integers(problem.n_ops)), int(rng.integers(problem.n_devices))
        count = board.play(name, op, target, int(rng.integers(1, 30)))
        assert 0 <= count <= 2 * problem.n_ops
        Placement(board.devices).validate(problem)
        changed = set(np.flatnonzero(board.devices != before).tolist())
        assert changed <= set(board.log.op[:count].tolist())
        after = board.devices.copy()
        undo(board.devices, board.log, count)
        assert np.array_equal(board.devices, before)
        board.devices[:] = after


@every
@pytest.mark.parametrize("cluster", ["p100x4", "a100_2x4"])
def test_every_move_finds_something_to_change(name: str, cluster: str) -> None:
    board = Board(tiled(cluster), 0)
    rng = np.random.default_rng(0)
    seed_kernels(1)
    changed = 0
    for _ in range(100):
        before = board.devices.copy()
        op = int(rng.integers(board.problem.n_ops))
        count = board.play(name, op, int(rng.integers(board.problem.n_devices)))
        changed += not np.array_equal(before, board.devices)
        undo(board.devices, board.log, count)
        assert np.array_equal(board.devices, before)
    assert changed >= 30


def test_an_op_stays_where_it_is_or_where_the_target_cannot_run_it() -> None:
    graph = random_graph(np.random.default_rng(0), 6, pinned=[1, -1, -1, -1, -1, -1])
    board = Board(Problem(graph, Cluster.uniform(3)), 0)
    before = board.devices.copy()
    assert board.play("op", 0, 2) == 0
    assert board.play("op", 1, int(before[1])) == 0
    assert np.array_equal(board.devices, before)
    other = (int(before[1]) + 1) % 3
    assert board.play("op", 1, other) == 1
    assert board.devices[1] == other
    assert np.array_equal(np.delete(board.devices, 1), np.delete(before, 1))


def test_a_group_goes_whole_or_not_at_all() -> None:
    colocation = [4, -1, 4, -1, 4, -1]
    board = Board(
        Problem(
            random_graph(np.random.default_rng(0), 6, colocation=colocation), Cluster.uniform(3)
        ),
        0,
    )
    home = int(board.devices[0])
    target = (home + 1) % 3
    # No room for three more entries.
    full = 2 * 6 - 2
    arrays, land = board.problem.arrays, board.land
    assert move_op(arrays, land, board.devices, 2, target, board.log, full) == full
    assert board.devices[[0, 2, 4]].tolist() == [home] * 3
    assert move_op(arrays, land, board.devices, 2, target, board.log, 0) == 3
    assert board.devices[[0, 2, 4]].tolist() == [target] * 3
    assert sorted(board.log.op[:3].tolist()) == [0, 2, 4]


@pytest.mark.parametrize("name", ["walk", "region"])
def test_walks_and_regions_are_connected_and_of_one_device(name: str) -> None:
    problem = Problem(random_graph(np.random.default_rng(3), 80), Cluster.uniform(2))
    rng = np.random.default_rng(0)
    sizes = set()
    for turn in range(100):
        board = Board(problem, turn)
        seed_kernels(turn)
        before = board.devices.copy()
        op = int(rng.integers(80))
        target = 1 - int(before[op])
        size = int(rng.integers(1, 20))
        board.play(name, op, target, size)
        moved = set(np.flatnonzero(board.devices != before).tolist())
        assert op in moved
        assert len(moved) <= (REGION if name == "walk" else size)
        assert (before[list(moved)] == before[op]).all()
        assert connected(problem, moved)
        sizes.add(len(moved))
    assert len(sizes) > 3


def test_a_region_is_as_large_as_it_may_be() -> None:
    # A chain of thirty, and ten more ops by themselves.
    ops = np.arange(29)
    problem = Problem(Graph.from_arrays(ops, ops + 1, [1.0] * 40, [1.0] * 40), Cluster.uniform(2))
    board = Board(problem, 0)
    board.devices[:] = 0
    for size, most in ((1, 1), (5, 5), (30, 30), (40, 30)):
        count = board.play("region", 7, 1, size)
        assert count == most
        assert np.count_nonzero(board.devices) == most
        undo(board.devices, board.log, count)
        assert not board.devices.any()


def test_a_slice_goes_to_one_device() -> None:
    problem = tiled()
    shape = structure(problem.graph)
    rng = np.random.default_rng(0)
    alone = 0
    for turn in range(200):
        board = Board(problem, turn)
        seed_kernels(turn)
        before = board.devices.copy()
        op, target = int(rng.integers(problem.n_ops)), int(rng.integers(problem.n_devices))
        board.play("slice", op, target)
        moved = np.flatnonzero(board.devices != before)
        assert (board.devices[moved] == target).all()
        if (
            moved.size
            and len(set(shape.kind[moved])) == 1
            and shape.kind[moved[0]] == shape.kind[op]
        ):
            # Of the op's own meta-op or kind, and with a coordinate in common.
            alone += 1
            tiles = shape.tiles[moved] == shape.tiles[op]
            assert (tiles & (shape.tiles[op] >= 0)).any(axis=0).any()
    assert alone > 20


def test_slices_change_places() -> None:
    problem = tiled()
    shape = structure(problem.graph)
    rng = np.random.default_rng(0)
    changed = 0
    for turn in range(200):
        board = Board(problem, turn)
        seed_kernels(turn)
        before = board.devices.copy()
        op = int(rng.integers(problem.n_ops))
        board.play("slices", op, 0)
        moved = np.flatnonzero(board.devices != before)
        changed += moved.size > 0
        # Within one kind, and every device has as many as before.
        assert set(shape.kind[moved]) <= {shape.kind[op]}
        assert np.array_equal(
            np.bincount(before, minlength=8), np.bincount(board.devices, minlength=8)
        )
    assert changed > 50


def test_in_a_window_two_devices_or_two_nodes_change_their_work() -> None:
    problem = tiled()
    nodes = problem.nodes
    assert nodes.tolist() == [0] * 4 + [1] * 4
    rng = np.random.default_rng(0)
    by_node = 0
    for turn in range(200):
        board = Board(problem, turn)
        seed_kernels(turn)
        before = board.devices.copy()
        board.play("window", int(rng.integers(problem.n_ops)), 0)
        moved = np.flatnonzero(board.devices != before)
        pairs = {frozenset((int(before[op]), int(board.devices[op]))) for op in moved}
        if len(pairs) > 1:
            by_node += 1
            # The position within the node stays.
            assert all(max(pair) - min(pair) == 4 for pair in pairs)
        if moved.size:
            # All of a stretch that are on one of the two go, at least of one kind.
            kinds = set(structure(problem.graph).kind[moved].tolist())
            rank = board.rank
            within = range(int(rank[moved].min()), int(rank[moved].max()) + 1)
            involved = set().union(*pairs)
            for step in within:
                each = int(board.by_rank[step])
                if int(before[each]) in involved and len(kinds) > 1:
                    assert board.devices[each] != before[each]
    assert by_node > 20


@given(n_ops=st.integers(1, 12), data=st.data())
@settings(max_examples=100)
def test_an_op_changes_its_rank(n_ops: int, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(n_ops)))
    source = data.draw(st.integers(0, n_ops - 1))
    target = data.draw(st.integers(0, n_ops - 1))
    by_rank = np.array(order, np.int32)
    priority = np.argsort(by_rank).astype(np.int32)
    move_rank(priority, by_rank, source, target)
    expected = list(order)
    expected.insert(target, expected.pop(source))
    assert by_rank.tolist() == expected
    assert np.array_equal(priority[by_rank], np.arange(n_ops))
    move_rank(priority, by_rank, target, source)
    assert by_rank.tolist() == list(order)


def test_targets_are_anywhere_but_mostly_near() -> None:
    problem = tiled()
    devices = np.full(problem.n_ops, 3, np.int32)
    seed_kernels(0)
    targets = [target_of(problem.arrays, devices, op % problem.n_ops) for op in range(4000)]
    count = np.bincount(targets, minlength=8)
    assert count.size == 8
    assert (count > 0).all()
    assert count[3] > 3 * 4000 / 4


@quick
@given(problem=problems())
def test_the_landscape_lists_groups_kinds_and_nodes(problem: Problem) -> None:
    land = landscape(problem)
    group = problem.arrays.group
    for number in range(problem.arrays.n_groups):
        members = land.members[land.members_ptr[number] : land.members_ptr[number + 1]]
        assert members.tolist() == np.flatnonzero(group == number).tolist()
    for label, ptr, ops in (
        (land.meta, land.meta_ptr, land.meta_ops),
        (land.kind, land.kind_ptr, land.kind_ops),
    ):
        assert sorted(ops.tolist()) == list(range(problem.n_ops))
        for number in range(ptr.size - 1):
            listed = ops[ptr[number] : ptr[number + 1]]
            assert sorted(listed.tolist()) == np.flatnonzero(label == number).tolist()
    assert np.array_equal(land.node, problem.nodes)
    for device in range(problem.n_devices):
        assert land.at[land.node[device], land.spot[device]] == device
    assert np.count_nonzero(land.at >= 0) == problem.n_devices
