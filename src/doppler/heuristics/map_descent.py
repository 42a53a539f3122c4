"""Coordinate descent over symmetric maps, compiled.

Invariant: ``devices`` is what the choices of the kinds made of it, ``cost[m]`` what meta-op ``m``
costs under it by the model of :func:`meta_cost`, and ``total`` the sum of the costs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.kernels import kernel
from doppler.problem import Problem
from doppler.simulator.kernel import run

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

# Choices besides the maps: each op goes where its largest, its first or its last producer is.
FOLLOW = -1
FOLLOW_FIRST = -2
FOLLOW_LAST = -3
# Kinds up to which they may follow: a move takes with it all that follow, a whole graph if need be.
MOST_FOLLOWING = 128


class MapProblem(NamedTuple):
    """What the kernels read of a problem and its structure.

    Attributes
    ----------
    compute : float64 array, shape [ops, devices]
        Seconds; finite also where an op cannot run.
    volume : float64 array, shape [ops]
    latency, factor : float64 array, shape [devices, devices]
    resource : int32 array, shape [devices, devices]
        What a transfer occupies: its channel or, where it has none, the sender.
    n_resources : int
    succ_ptr, succ : int32 array
    leader : int32 array, shape [ops, 3]
        Largest, first and last producer of each op, or -1.
    meta_ptr, meta_ops : int32 array, shape [metas + 1], [ops]
        Ops of each meta-op.
    kind_of : int32 array, shape [metas]
    kind_ptr, kind_metas : int32 array, shape [kinds + 1], [metas]
        Meta-ops of each kind.
    fed_ptr, fed : int32 array
        Kinds that each kind feeds.
    source_ptr, source : int32 array
        Meta-ops that feed each meta-op.
    effort : int64 array, shape [kinds]
        Ops and edges that are looked at, at most, to weigh a choice of a kind that none follows.
    ways : int
        Choices besides the maps.
    allowed : float64 array, shape [ops, devices]
        As ``compute``, infinite where an op cannot run.
    first_of_group : int32 array, shape [ops]
        The first op of the op's colocation group; itself where it has none.
    restricted : bool
        Whether :func:`repair` may have anything to do.
    """

    compute: FloatArray
    volume: FloatArray
    latency: FloatArray
    factor: FloatArray
    resource: IntArray
    n_resources: int
    succ_ptr: IntArray
    succ: IntArray
    leader: IntArray
    meta_ptr: IntArray
    meta_ops: IntArray
    kind_of: IntArray
    kind_ptr: IntArray
    kind_metas: IntArray
    fed_ptr: IntArray
    fed: IntArray
    source_ptr: IntArray
    source: IntArray
    effort: npt.NDArray[np.int64]
    ways: int
    allowed: FloatArray
    first_of_group: IntArray
    restricted: bool


class MapState(NamedTuple):
    """A symmetric placement and scratch memory.

    Attributes
    ----------
    devices : int32 array, shape [ops]
    choice : int32 array, shape [kinds]
        Row of the table of maps, or one of the ``FOLLOW`` codes.
    cost : float64 array, shape [metas]
    total : float64 array, shape [1]
        Seconds.
    old_devices, old_choice, old_cost
        What the last trial replaced.
    moved, dirty, touched : int32 array, shape [kinds], [metas], [metas]
        Kinds that the last trial moved, their meta-ops, and the meta-ops whose cost that changed.
    counts : int64 array, shape [3]
        How many of each.
    is_moved, is_touched : bool array, shape [kinds], [metas]
    repaired : int32 array, shape [ops]
        The placement that is simulated.
    load, traffic : float64 array, shape [devices], [resources]
    stamp : int64 array, shape [devices + 1]
        Last output sent to each device; the last entry counts outputs.
    """

    devices: IntArray
    choice: IntArray
    cost: FloatArray
    total: FloatArray
    old_devices: IntArray
    old_choice: IntArray
    old_cost: FloatArray
    moved: IntArray
    dirty: IntArray
    touched: IntArray
    counts: npt.NDArray[np.int64]
    is_moved: npt.NDArray[np.bool_]
    is_touched: npt.NDArray[np.bool_]
    repaired: IntArray
    load: FloatArray
    traffic: FloatArray
    stamp: npt.NDArray[np.int64]


def make_map_problem(problem: Problem, meta: IntArray, kind: IntArray) -> MapProblem:
    """Collect what the kernels read. O(V log V + E)."""
    arrays, n_devices, graph = problem.arrays, problem.n_devices, problem.graph
    can = np.isfinite(arrays.compute)
    # An op that a map puts where it cannot run ends up elsewhere.
    longest = np.where(can, arrays.compute, 0.0).max(axis=1)
    compute = np.where(can, arrays.compute, longest[:, None])
    compute.setflags(write=False)
    sender = np.repeat(np.arange(n_devices), n_devices).reshape(n_devices, n_devices)
    resource = np.where(arrays.channel >= 0, arrays.channel, arrays.n_channels + sender)
    n_metas, n_kinds = int(meta.max()) + 1, int(kind.max()) + 1
    kind_of = np.empty(n_metas, np.int32)
    kind_of[meta] = kind
    meta_ptr, meta_ops = _lists(meta, np.arange(meta.size), n_metas)
    kind_ptr, kind_metas = _lists(kind_of, np.arange(n_metas), n_kinds)
    fed_ptr, fed = _lists(kind[graph.src], kind[graph.dst], n_kinds)
    source_ptr, source = _lists(meta[graph.dst], meta[graph.src], n_metas)
    size = np.bincount(meta) + np.bincount(meta[graph.src], minlength=n_metas)
    around = size + np.bincount(
        np.repeat(np.arange(n_metas), np.diff(source_ptr)), size[source], n_metas
    )
    first_of_group = np.arange(graph.n_ops, dtype=np.int32)
    grouped = np.flatnonzero(arrays.group >= 0)
    first = np.full(arrays.n_groups, graph.n_ops, np.int32)
    np.minimum.at(first, arrays.group[grouped], grouped.astype(np.int32))
    first_of_group[grouped] = first[arrays.group[grouped]]
    return MapProblem(
        compute=compute,
        volume=arrays.volume,
        latency=arrays.latency,
        factor=arrays.factor,
        resource=resource.astype(np.int32),
        n_resources=arrays.n_channels + n_devices,
        succ_ptr=arrays.succ_ptr,
        succ=arrays.succ,
        leader=_leaders(arrays.pred_ptr, arrays.pred, arrays.volume),
        meta_ptr=meta_ptr,
        meta_ops=meta_ops,
        kind_of=kind_of,
        kind_ptr=kind_ptr,
        kind_metas=kind_metas,
        fed_ptr=fed_ptr,
        fed=fed,
        source_ptr=source_ptr,
        source=source,
        effort=np.bincount(kind_of, around, n_kinds).astype(np.int64),
        ways=-FOLLOW_LAST if n_kinds <= MOST_FOLLOWING else 0,
        allowed=arrays.compute,
        first_of_group=first_of_group,
        restricted=bool(arrays.n_groups or not can.all()),
    )


def _lists(
    owner: npt.NDArray[np.integer], member: npt.NDArray[np.integer], n_owners: int
) -> tuple[IntArray, IntArray]:
    """CSR of the distinct members of each owner, ascending."""
    size = int(member.max(initial=0)) + 1
    # With counts numpy sorts, which is faster here than its hashing.
    pairs = np.unique(owner.astype(np.int64) * size + member, return_counts=True)[0]
    owners, members = np.divmod(pairs, size)
    pointers = np.append(0, np.cumsum(np.bincount(owners, minlength=n_owners)))
    return pointers.astype(np.int32), members.astype(np.int32)


def make_map_state(plan: MapProblem) -> MapState:
    """Allocate a state; :func:`begin` fills it."""
    n_ops, n_devices = plan.compute.shape
    n_metas, n_kinds = plan.kind_of.size, plan.kind_ptr.size - 1
    return MapState(
        devices=np.zeros(n_ops, np.int32),
        choice=np.zeros(n_kinds, np.int32),
        cost=np.zeros(n_metas),
        total=np.zeros(1),
        old_devices=np.zeros(n_ops, np.int32),
        old_choice=np.zeros(1, np.int32),
        old_cost=np.zeros(n_metas),
        moved=np.zeros(n_kinds, np.int32),
        dirty=np.zeros(n_metas, np.int32),
        touched=np.zeros(n_metas, np.int32),
        counts=np.zeros(3, np.int64),
        is_moved=np.zeros(n_kinds, np.bool_),
        is_touched=np.zeros(n_metas, np.bool_),
        repaired=np.zeros(n_ops, np.int32),
        load=np.zeros(n_devices),
        traffic=np.zeros(plan.n_resources),
        stamp=np.zeros(n_devices + 1, np.int64),
    )


@kernel
def _leaders(pred_ptr, pred, volume):  # type: ignore[no-untyped-def]
    leader = np.full((len(volume), 3), -1, np.int32)
    for op in range(len(volume)):
        for edge in range(pred_ptr[op], pred_ptr[op + 1]):
            producer = pred[edge]
            largest = leader[op, 0]
            if largest < 0 or volume[producer] > volume[largest]:
                leader[op, 0] = producer
            if edge == pred_ptr[op]:
                leader[op, 1] = producer
            leader[op, 2] = producer
    return leader


@kernel
def _meta_cost(plan, state, meta, weight):  # type: ignore[no-untyped-def]
    """Seconds of a meta-op if it ran alone: the largest load, and ``weight`` times the most
    seconds that one channel is busy with its outputs.
    """  # noqa: D205
    compute, volume, latency, factor = plan.compute, plan.volume, plan.latency, plan.factor
    resource, succ_ptr, succ, meta_ops = plan.resource, plan.succ_ptr, plan.succ, plan.meta_ops
    devices, load, traffic, stamp = state.devices, state.load, state.traffic, state.stamp
    n_devices = len(load)
    load[:] = 0.0
    traffic[:] = 0.0
    count = stamp[n_devices]
    for index in range(plan.meta_ptr[meta], plan.meta_ptr[meta + 1]):
        op = meta_ops[index]
        home = devices[op]
        load[home] += compute[op, home]
        count += 1
        for edge in range(succ_ptr[op], succ_ptr[op + 1]):
            target = devices[succ[edge]]
            if target != home and stamp[target] != count:
                stamp[target] = count
                seconds = latency[home, target] + volume[op] * factor[home, target]
                traffic[resource[home, target]] += seconds
    stamp[n_devices] = count
    return load.max() + weight * traffic.max()


@kernel
def _assign(plan, table, state, meta, choice):  # type: ignore[no-untyped-def]
    devices, meta_ops, leader = state.devices, plan.meta_ops, plan.leader
    for index in range(plan.meta_ptr[meta], plan.meta_ptr[meta + 1]):
        op = meta_ops[index]
        state.old_devices[op] = devices[op]
        if choice >= 0:
            devices[op] = table[choice, op]
        else:
            producer = leader[op, -1 - choice]
            if producer >= 0:
                devices[op] = devices[producer]


@kernel
def begin(plan, table, state, choices, weight):  # type: ignore[no-untyped-def]
    """Make the placement of given choices, shape [kinds]."""
    state.choice[:] = choices
    for meta in range(len(plan.kind_of)):
        # What has no producer to follow starts from the first map.
        if choices[plan.kind_of[meta]] < 0:
            _assign(plan, table, state, np.int64(meta), np.int32(0))
        _assign(plan, table, state, np.int64(meta), choices[plan.kind_of[meta]])
    weigh(plan, state, weight)


@kernel
def weigh(plan, state, weight):  # type: ignore[no-untyped-def]
    """Compute all costs anew."""
    state.total[0] = 0.0
    for meta in range(len(plan.kind_of)):
        state.cost[meta] = _meta_cost(plan, state, np.int64(meta), weight)
        state.total[0] += state.cost[meta]


@kernel
def _try(plan, table, state, kind, choice, weight):  # type: ignore[no-untyped-def]
    """Give a kind another choice, let those that follow it follow; return the change in cost."""
    moved, dirty, touched, counts = state.moved, state.dirty, state.touched, state.counts
    is_moved, is_touched = state.is_moved, state.is_touched
    for index in range(counts[0]):
        is_moved[moved[index]] = False
    for index in range(counts[2]):
        is_touched[touched[index]] = False
    state.old_choice[0] = state.choice[kind]
    state.choice[kind] = choice
    moved[0] = kind
    is_moved[kind] = True
    n_moved, n_dirty, n_touched = 1, 0, 0
    at = 0
    while at < n_moved:
        one = moved[at]
        at += 1
        for index in range(plan.fed_ptr[one], plan.fed_ptr[one + 1]):
            other = plan.fed[index]
            if state.choice[other] < 0 and not is_moved[other]:
                is_moved[other] = True
                moved[n_moved] = other
                n_moved += 1
    for at in range(n_moved):
        for index in range(plan.kind_ptr[moved[at]], plan.kind_ptr[moved[at] + 1]):
            dirty[n_dirty] = plan.kind_metas[index]
            n_dirty += 1
    if n_moved > 1:
        # Meta-ops are numbered in topological order: what follows comes later.
        dirty[:n_dirty].sort()
    for at in range(n_dirty):
        meta = dirty[at]
        _assign(plan, table, state, np.int64(meta), state.choice[plan.kind_of[meta]])
        if not is_touched[meta]:
            is_touched[meta] = True
            touched[n_touched] = meta
            n_touched += 1
        for index in range(plan.source_ptr[meta], plan.source_ptr[meta + 1]):
            source = plan.source[index]
            if not is_touched[source]:
                is_touched[source] = True
                touched[n_touched] = source
                n_touched += 1
    counts[0], counts[1], counts[2] = n_moved, n_dirty, n_touched
    change = 0.0
    for at in range(n_touched):
        meta = touched[at]
        state.old_cost[meta] = state.cost[meta]
        state.cost[meta] = _meta_cost(plan, state, np.int64(meta), weight)
        change += state.cost[meta] - state.old_cost[meta]
    state.total[0] += change
    return change


@kernel
def _undo(plan, state, kind, change):  # type: ignore[no-untyped-def]
    state.choice[kind] = state.old_choice[0]
    state.total[0] -= change
    for at in range(state.counts[2]):
        state.cost[state.touched[at]] = state.old_cost[state.touched[at]]
    for at in range(state.counts[1]):
        meta = state.dirty[at]
        for index in range(plan.meta_ptr[meta], plan.meta_ptr[meta + 1]):
            op = plan.meta_ops[index]
            state.devices[op] = state.old_devices[op]


@kernel
def _is_different(plan, state):  # type: ignore[no-untyped-def]
    """Whether the last trial moved any op."""
    for at in range(state.counts[1]):
        meta = state.dirty[at]
        for index in range(plan.meta_ptr[meta], plan.meta_ptr[meta + 1]):
            op = plan.meta_ops[index]
            if state.devices[op] != state.old_devices[op]:
                return True
    return False


@kernel
def repair(plan, devices, repaired):  # type: ignore[no-untyped-def]
    """Move ops that cannot run where they are to the next device that can; keep groups together."""
    if not plan.restricted:
        repaired[:] = devices
        return
    allowed, n_devices = plan.allowed, plan.allowed.shape[1]
    for op in range(len(devices)):
        first = plan.first_of_group[op]
        if first < op:
            repaired[op] = repaired[first]
            continue
        device = devices[op]
        while allowed[op, device] == np.inf:
            device = np.int32((device + 1) % n_devices)
        repaired[op] = device


@kernel
def simulated(arrays, plan, state, priority, work):  # type: ignore[no-untyped-def]
    """Seconds of the state's placement, repaired; it is left in ``state.repaired``."""
    repair(plan, state.devices, state.repaired)
    makespan, _ = run(arrays, state.repaired, priority, 0.0, np.int64(0), np.bool_(False), work)
    return makespan


@kernel
def _nth(plan, pointers, choices, kind, index):  # type: ignore[no-untyped-def]
    """Return a choice of a kind, in order: the ways to follow, then its maps."""
    ways = plan.ways
    return np.int32(-1 - index) if index < ways else choices[pointers[kind] + index - ways]


@kernel
def _count(plan, pointers, kind, most):  # type: ignore[no-untyped-def]
    return plan.ways + min(most, pointers[kind + 1] - pointers[kind])


@kernel
def improve(plan, table, pointers, choices, state, kind, weight, most):  # type: ignore[no-untyped-def]
    """Give a kind the choice of least cost; return whether that lowers the total.

    ``most`` is how many of its maps are weighed, the simplest.
    """
    best, best_choice = -1e-9 * state.total[0], state.choice[kind]
    for index in range(_count(plan, pointers, kind, most)):
        choice = _nth(plan, pointers, choices, kind, index)
        if choice == state.choice[kind]:
            continue
        change = _try(plan, table, state, kind, choice, weight)
        if change < best:
            best, best_choice = change, choice
        _undo(plan, state, kind, change)
    if best_choice == state.choice[kind]:
        return False
    _try(plan, table, state, kind, best_choice, weight)
    return True


@kernel
def improve_simulated(  # type: ignore[no-untyped-def]
    arrays,
    plan,
    table,
    pointers,
    choices,
    state,
    kind,
    weight,
    most,
    tried,
    priority,
    makespan,
    work,
):
    """Give a kind the best by simulation of the ``tried`` choices that cost least by the model.

    Returns
    -------
    makespan : float
        Of the placement that is left, seconds.
    evaluations : int
    """
    count = _count(plan, pointers, kind, most)
    changes = np.empty(count)
    for index in range(count):
        choice = _nth(plan, pointers, choices, kind, index)
        change = _try(plan, table, state, kind, choice, weight)
        changes[index] = change
        if not _is_different(plan, state):
            changes[index] = np.inf
        _undo(plan, state, kind, change)
    # To follow again, from where the producers are by now, may move ops as well.
    found_better, best_choice, evaluations = False, state.choice[kind], 0
    for index in np.argsort(changes):
        if changes[index] == np.inf or evaluations == tried:
            break
        choice = _nth(plan, pointers, choices, kind, index)
        change = _try(plan, table, state, kind, choice, weight)
        found = simulated(arrays, plan, state, priority, work)
        _undo(plan, state, kind, change)
        evaluations += 1
        if found < makespan * (1.0 - 1e-9):
            found_better, makespan, best_choice = True, found, choice
    if found_better:
        _try(plan, table, state, kind, best_choice, weight)
    return makespan, evaluations
