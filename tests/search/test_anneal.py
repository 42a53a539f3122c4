"""Annealing: honest costs, exact undoing, memory, and the end."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import mixed_cluster, problems, random_graph, random_placement

from doppler import Cluster, Device, Graph, Placement, Problem, simulate, workloads
from doppler.cluster.link import fully_connected
from doppler.errors import ParamsError, UnknownNameError
from doppler.heuristics.base import Deadline
from doppler.heuristics.critical_path import critical_path_schedule
from doppler.schedule.ranks import rank_of, ranks
from doppler.schedule.urgency import urgent_first
from doppler.search.anneal import (
    FIRST_READY,
    LARGE_MOVES,
    MOVES,
    PLAIN,
    RANKED,
    SMALL_MOVES,
    URGENT,
    Annealer,
    Chain,
    check_shares,
    longest_makespan,
    objective,
)
from doppler.search.draws import Draws, draw
from doppler.simulator.kernel import make_workspace, run_drawn

quick = settings(max_examples=40)
both = pytest.mark.parametrize("runtime", ["priority", "fifo"])
ORDERS = (FIRST_READY, RANKED, URGENT)
# Every kind of move alone, and all of them together.
KINDS: dict[str, Mapping[str, float]] = {name: {name: 1.0} for name in MOVES}
KINDS |= {"plain": PLAIN, "small": SMALL_MOVES, "large": LARGE_MOVES}
every_kind = pytest.mark.parametrize("kind", KINDS)


def start_of(problem: Problem, seed: int = 0) -> Placement:
    order, devices, _ = critical_path_schedule(problem, seed)
    return Placement(devices, rank_of(order))


def annealer_of(
    problem: Problem, order: int = RANKED, jitter: float = 0.0, kind: str = "small"
) -> Annealer:
    annealer = Annealer(problem, 1, shares=KINDS[kind], jitter=jitter)
    annealer.order = order
    return annealer


def queue_of(problem: Problem, order: int, devices: np.ndarray, priority: np.ndarray) -> np.ndarray:
    """What free devices choose by."""
    if order == FIRST_READY:
        return np.empty(0, np.int32)
    return priority if order == RANKED else urgent_first(problem, devices)


def runs_of(
    problem: Problem, devices: np.ndarray, queue: np.ndarray, draws: Draws
) -> list[tuple[float, np.ndarray, np.ndarray]]:
    """Makespan, starts and ends of every run."""
    work = make_workspace(problem.n_ops, problem.n_devices, 0)
    found = []
    for each in zip(*draws, strict=True):
        makespan = run_drawn(problem.arrays, devices, queue, *each, np.inf, work)
        found.append((makespan, work.start.copy(), work.end.copy()))
    return found


def plain_objective(
    problem: Problem, devices: np.ndarray, queue: np.ndarray, draws: Draws, penalty: float
) -> float:
    """Mean makespan; what overflows costs more than anything that fits."""
    result = simulate(problem, Placement(devices, queue if queue.size else None))
    over = np.maximum(result.peak_memory - problem.arrays.capacity, 0.0)
    if (over > 0).any():
        share = sum((over[over > 0] / problem.arrays.capacity[over > 0]).tolist())
        return result.makespan + penalty * (1.0 + share)
    runs = runs_of(problem, devices, queue, draws)
    return sum(makespan for makespan, _, _ in runs) / len(runs)


def check(annealer: Annealer, chain: Chain, renewed: bool = False) -> None:
    """Hold everything that a chain has put down against the plain truth.

    On renewed draws the best so far may be no better than the present state.
    """
    problem, order, state = annealer.problem, annealer.order, chain.state
    n_ops = problem.n_ops
    Placement(state.devices, state.priority).validate(problem)
    Placement(state.best_devices, state.best_priority).validate(problem)
    assert np.array_equal(state.priority[state.by_rank], np.arange(n_ops))
    assert sorted(state.best_priority.tolist()) == list(range(n_ops))
    queue = queue_of(problem, order, state.devices, state.priority)
    best_queue = queue_of(problem, order, state.best_devices, state.best_priority)
    draws, penalty = chain.draws, annealer._penalty
    assert state.cost[0] == plain_objective(problem, state.devices, queue, draws, penalty)
    best = plain_objective(problem, state.best_devices, best_queue, draws, penalty)
    assert state.best[0] == best
    assert renewed or state.best[0] <= state.cost[0]
    assert chain.best == state.best[0]
    assert (state.taken <= state.tried).all()
    assert (state.gained >= 0).all()
    if state.known[0] > 0:
        runs = runs_of(problem, state.devices, queue, chain.draws)
        runs += runs_of(problem, state.devices, queue, draw(problem, 0.0, 1, 0))
        assert any(
            np.array_equal(state.start, start) and np.array_equal(state.end, end)
            for _, start, end in runs
        )
    if state.known[0] == 2:
        assert (np.diff(state.start[chain.scratch.order]) >= 0).all()


@every_kind
@quick
@given(
    problem=problems(),
    seed=st.integers(0, 2**31 - 4),
    hot=st.booleans(),
    order=st.sampled_from(ORDERS),
    jitter=st.sampled_from([0.0, 0.3]),
)
def test_the_books_are_exact(
    kind: str, problem: Problem, seed: int, hot: bool, order: int, jitter: float
) -> None:
    """After any number of accepted and undone moves the state costs what is written."""
    annealer = annealer_of(problem, order, jitter, kind)
    chain = annealer.chain(start_of(problem), "start")
    check(annealer, chain)
    ranked = chain.state.priority.copy()
    first = chain.best
    for turn in range(3):
        annealer.advance(chain, seed + turn, 100, max(first, 1e-9) * (1e3 if hot else 1e-9))
        check(annealer, chain)
    assert chain.evaluations == chain.state.tried.sum()
    assert chain.evaluations <= 300
    assert chain.best <= first
    assert chain.state.gained.sum() == pytest.approx(first - chain.best, abs=1e-9 * first)
    if order != RANKED:
        assert np.array_equal(chain.state.priority, ranked)
        assert chain.state.tried[MOVES.index("rank")] == 0
    for name, tried in zip(MOVES, chain.state.tried, strict=True):
        assert tried == 0 or KINDS[kind].get(name, 0) > 0


def tiled() -> Problem:
    """Tiles, several meta-ops of a kind, two nodes."""
    return Problem(workloads.chainmm(8, 8, 8, 8, 8, tiles=2), Cluster.load("a100_2x4"))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("jitter", [0.0, 0.1])
@every_kind
def test_the_books_are_exact_where_there_is_structure(kind: str, order: int, jitter: float) -> None:
    problem = tiled()
    annealer = annealer_of(problem, order, jitter, kind)
    chain = annealer.chain(random_placement(problem, 0))
    for turn, temperature in enumerate((1e9, 1e-9, 1e-5)):
        annealer.advance(chain, turn, 1000, temperature)
        check(annealer, chain)
    possible = [name for name in KINDS[kind] if order == RANKED or name != "rank"]
    for name in possible:
        # All are tried and taken, where everything is accepted.
        assert chain.state.taken[MOVES.index(name)] > 0, name


@every_kind
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_what_is_not_taken_is_undone(kind: str, order: int, jitter: float) -> None:
    colocation = np.where(np.arange(30) % 4 == 0, np.arange(30) % 3, -1)
    pinned = np.where(np.arange(30) % 7 == 1, 1, -1)
    graph = random_graph(np.random.default_rng(0), 30, colocation=colocation, pinned=pinned)
    annealer = annealer_of(Problem(graph, Cluster.uniform(3)), order, jitter, kind)
    chain = annealer.chain(start_of(annealer.problem))
    annealer.advance(chain, 1, 500, 1e9)
    check(annealer, chain)
    state = chain.state
    names = ("devices", "priority", "by_rank", "best_devices", "best_priority", "best", "taken")
    before = {name: getattr(state, name).copy() for name in names}
    cost = state.cost[0]
    # From a cost that nothing can match, every move is refused.
    state.cost[0] = -1.0
    annealer.advance(chain, 2, 3000, 1e-12)
    assert state.cost[0] == -1.0
    for name, value in before.items():
        assert np.array_equal(getattr(state, name), value), name
    state.cost[0] = cost
    check(annealer, chain)


def test_one_group_of_all_ops_moves_as_one() -> None:
    graph = random_graph(np.random.default_rng(0), 40, colocation=[5] * 40)
    problem = Problem(graph, mixed_cluster(np.random.default_rng(1), 4))
    annealer = annealer_of(problem)
    chain = annealer.chain(start_of(problem))
    seen = set()
    for turn in range(20):
        annealer.advance(chain, turn, 20, 1e9)
        check(annealer, chain)
        assert len(set(chain.state.devices.tolist())) == 1
        seen.add(int(chain.state.devices[0]))
    assert seen == {0, 1, 2, 3}


def test_a_clique_of_groups_moves_in_regions() -> None:
    # Regions of large groups note many changes in one move.
    n_ops = 60
    src, dst = zip(*[(u, v) for v in range(n_ops) for u in range(max(0, v - 6), v)], strict=True)
    graph = Graph.build(
        n_ops, src, dst, flops=[1e12] * n_ops, colocation=[op % 6 for op in range(n_ops)]
    )
    for kind in ("plain", "small", "region", "exchange", "slice", "slices", "window"):
        annealer = annealer_of(Problem(graph, Cluster.uniform(5)), kind=kind)
        chain = annealer.chain(start_of(annealer.problem))
        for turn in range(10):
            annealer.advance(chain, turn, 500, 1e9)
            check(annealer, chain)


@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_the_same_seed_makes_the_same_moves(jitter: float) -> None:
    annealer = annealer_of(tiled(), URGENT if jitter else RANKED, jitter, "large")
    start = random_placement(annealer.problem, 3)
    chains = [annealer.chain(start) for _ in range(3)]
    for chain, seed in zip(chains, (5, 5, 6), strict=True):
        annealer.advance(chain, seed, 300, 1e-5)
    one, same, other = (chain.state for chain in chains)
    assert np.array_equal(one.devices, same.devices)
    assert np.array_equal(one.priority, same.priority)
    assert one.cost[0] == same.cost[0]
    assert not np.array_equal(one.devices, other.devices)


@quick
@given(problem=problems(), seed=st.integers(0, 1000), share=st.floats(0.1, 3.0))
def test_a_limit_spares_work_and_changes_no_judgment(
    problem: Problem, seed: int, share: float
) -> None:
    placement = random_placement(problem, seed)
    work = make_workspace(problem.n_ops, problem.n_devices, problem.graph.n_edges)
    for jitter in (0.0, 0.2):
        draws = draw(problem, jitter, 4, seed)

        def cost(limit: float, draws: Draws = draws) -> float:
            return objective(
                problem.arrays,
                placement.devices.copy(),
                placement.priority.copy(),
                draws,
                problem.may_overflow,
                longest_makespan(problem),
                limit,
                work,
            )

        whole = plain_objective(
            problem,
            placement.devices.copy(),
            placement.priority.copy(),
            draws,
            longest_makespan(problem),
        )
        assert cost(np.inf) == whole
        limit = share * whole
        if whole <= limit * (1 - 1e-9):
            assert cost(limit) == whole
        elif whole > limit * (1 + 1e-9):
            assert cost(limit) > limit


@quick
@given(problem=problems(), seed=st.integers(0, 1000))
def test_no_makespan_exceeds_the_longest(problem: Problem, seed: int) -> None:
    placement = random_placement(problem, seed)
    longest = longest_makespan(problem)
    for runtime in ("priority", "fifo"):
        assert simulate(problem, placement, runtime=runtime).makespan <= longest * (1 + 1e-12)


@both
@quick
@given(problem=problems(), seed=st.integers(0, 100))
def test_refined_placements(runtime: str, problem: Problem, seed: int) -> None:
    starts = [(start_of(problem, number), f"start {number}") for number in range(3)]
    annealer = Annealer(problem, threads=2, runtime=runtime, shares=SMALL_MOVES)
    found = annealer.refine(starts, Deadline(0.01), seed)
    assert annealer.evaluations >= 0
    assert len(found) == 2
    assert found[0].objective <= found[1].objective
    by_label = {label: start for start, label in starts}
    for each in found:
        each.placement.validate(problem)
        result = simulate(problem, each.placement, runtime=runtime)
        begun = simulate(problem, by_label[each.label], runtime=runtime)
        if (result.peak_memory <= problem.arrays.capacity).all():
            assert each.objective == result.makespan
        else:
            assert each.objective > longest_makespan(problem)
            assert (begun.peak_memory > problem.arrays.capacity).any()
        if (begun.peak_memory <= problem.arrays.capacity).all():
            assert each.objective <= begun.makespan
    for start, _ in starts:
        begun = simulate(problem, start, runtime=runtime)
        if (begun.peak_memory <= problem.arrays.capacity).all():
            assert found[0].objective <= begun.makespan


@both
@settings(quick, max_examples=20)
@given(problem=problems(), seed=st.integers(0, 100))
def test_refined_placements_under_jitter(runtime: str, problem: Problem, seed: int) -> None:
    starts = [(start_of(problem, number), f"start {number}") for number in range(3)]
    annealer = Annealer(problem, 2, runtime, SMALL_MOVES, jitter=0.2)
    found = annealer.refine(starts, Deadline(0.03), seed)
    assert [each.objective for each in found] == sorted(each.objective for each in found)
    for each in found:
        placement = each.placement
        placement.validate(problem)
        assert each.label in {label for _, label in starts}
        if runtime == "priority":
            assert np.array_equal(placement.priority, urgent_first(problem, placement.devices))
        result = simulate(problem, placement, runtime=runtime)
        fits = bool((result.peak_memory <= problem.arrays.capacity).all())
        assert fits == (each.objective < annealer._penalty)


@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_renewed_draws_leave_the_books_exact(jitter: float) -> None:
    problem = tiled()
    annealer = Annealer(problem, 1, shares=SMALL_MOVES, jitter=jitter)
    chain = annealer.chain(random_placement(problem, 0))
    rng = np.random.default_rng(0)
    for quiet in (True, False, False, True, False):
        draws = chain.draws
        # Until the draws have been renewed at least once.
        for _ in range(300):
            annealer._slice(chain, rng, 1e-3, quiet, Deadline(60.0))
            if chain.draws is not draws or jitter == 0.0:
                break
        check(annealer, chain, renewed=jitter > 0.0)
    assert chain.evaluations > 0
    assert (chain.draws.op.size > 0) == (jitter > 0)


def test_a_start_without_priorities_keeps_its_order() -> None:
    problem = Problem(random_graph(np.random.default_rng(0), 30), Cluster.uniform(3))
    start = Placement(start_of(problem).devices)
    fifo = simulate(problem, start)
    assert ranks(problem, start)[fifo.trace.op].tolist() == list(range(30))
    annealer = Annealer(problem)
    found = annealer.refine([(start, "start")], Deadline(0.0), 0)[0]
    assert annealer.evaluations == 0
    assert found.objective == simulate(problem, found.placement).makespan


@both
def test_without_time_the_best_start_is_the_answer(runtime: str) -> None:
    problem = tiled()
    starts = [(random_placement(problem, seed), str(seed)) for seed in range(7)]
    makespans = [simulate(problem, start, runtime=runtime).makespan for start, _ in starts]
    found = Annealer(problem, 1, runtime).refine(starts, Deadline(0.0), 0)
    assert [each.objective for each in found] == [min(makespans)]
    assert found[0].label == str(int(np.argmin(makespans)))


@pytest.mark.parametrize("threads", [1, 3])
def test_it_stops_at_the_lower_bound(threads: int) -> None:
    # Eight equal ops on four devices: the first good placement is as good as any.
    problem = Problem(Graph.from_arrays([], [], [1.0] * 8, [0.0] * 8), Cluster.uniform(4))
    worst = Placement([0] * 8, range(8)), "worst"
    found = Annealer(problem, threads).refine([worst] * 2, Deadline(600.0), 0)[0]
    assert found.objective == 2.0 == problem.lower_bound
    assert np.bincount(found.placement.devices).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_what_fits_is_better_than_what_is_fast(jitter: float) -> None:
    # The fast device cannot hold both; the other is a billion times slower.
    devices = (Device("fast", memory=3e9), Device("slow", memory=9e9, slowdown=1e9))
    cluster = Cluster("two", devices, fully_connected(2))
    graph = Graph.from_arrays([], [], [1.0] * 2, [0.0] * 2, param_bytes=[2e9] * 2)
    problem = Problem(graph, cluster)
    start = Placement([0, 0], [0, 1]), "start"
    found = Annealer(problem, 1, jitter=jitter).refine([start], Deadline(0.05), 0)[0]
    assert found.objective == 1e9 if jitter == 0.0 else found.objective > 5e8
    assert sorted(found.placement.devices.tolist()) == [0, 1]


@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_it_finds_its_way_out_of_an_overflow(jitter: float) -> None:
    # Bins that fill exactly: 5 + 1, 4 + 2, 3 + 3.
    sizes = [3e9, 3e9, 1e9, 2e9, 4e9, 5e9]
    graph = Graph.from_arrays([], [], [1.0] * 6, [0.0] * 6, param_bytes=sizes)
    problem = Problem(graph, Cluster.uniform(3, memory=6e9))
    worst = Placement([0] * 6, range(6)), "worst"
    found = Annealer(problem, jitter=jitter).refine([worst], Deadline(2.0), 0)[0]
    assert (simulate(problem, found.placement).peak_memory <= 6e9).all()


def test_shares_are_of_known_moves_and_sum_to_1() -> None:
    shares = check_shares({"op": 1, "window": 3})
    assert dict(zip(MOVES, shares.tolist(), strict=True)) == {
        name: {"op": 0.25, "window": 0.75}.get(name, 0.0) for name in MOVES
    }
    for known in (PLAIN, SMALL_MOVES, LARGE_MOVES):
        assert set(known) <= set(MOVES)
        assert check_shares(known).sum() == pytest.approx(1.0)
    assert check_shares({"op": 1e308, "rank": 1e308}).sum() == pytest.approx(1.0)
    problem = Problem(Graph.from_arrays([], [], [1.0], [0.0]), Cluster.uniform(1))
    with pytest.raises(UnknownNameError, match="unknown move 'regoin': did you mean 'region'"):
        Annealer(problem, shares={"regoin": 1.0})
    for share in (-1.0, np.nan, np.inf):
        with pytest.raises(ParamsError, match="the share of move 'op' is"):
            Annealer(problem, shares={"op": share})
    for nothing in ({}, {"op": 0.0}):
        with pytest.raises(ParamsError, match="no move has a share above 0"):
            Annealer(problem, shares=nothing)
