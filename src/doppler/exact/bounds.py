"""Lower bounds of the makespan that count communication, for graphs of any size.

All are about times on the fastest device and over the fastest link, and hold for any schedule:

- A *head* is the least time at which an op can start, a *tail* the least time from its end to the
  end of the run. Of the inputs of an op, those made on its own device were made there one after
  another, and the others were sent; the head is the best choice of which (as the bound of
  C. Papadimitriou and M. Yannakakis, "Towards an Architecture-Independent Analysis of Parallel
  Algorithms", SIAM J. Comput. 19(2), 1990, without duplication), and no earlier than what then
  has to be on its device, inputs of inputs among it, can have run there. A tail is the same
  backwards.
- What can start at ``a`` at the earliest and must end ``b`` before the end has to be done in
  between, by all devices (E. Fernandez and B. Bussell, "Bounds on the Number of Processors and
  Time for Multiprocessor Optimal Schedules", IEEE Trans. Computers C-22(8), 1973).
- A makespan is refuted by what it would force (P. Brucker and P. Jurisch's immediate selection, for
  devices that are chosen): an input that would come too late from elsewhere shares the op's
  device, groups of ops that share a device run one after another, and groups that are too much
  for one device are apart, so that the transfer counts, which moves heads and tails.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.checks import check_type
from doppler.kernels import kernel
from doppler.problem import Problem

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

# The makespan to refute grows by these shares of the bound known, until it is not refuted; then
# the last interval is halved so often.
_FIRST_STEP, _HALVINGS = 1e-3, 8
# Deductions after which a makespan is left alone, and the most by which a bound is raised, in
# doublings of the first step.
_ROUNDS, _DOUBLINGS = 6, 14
_SPLIT_STEPS = 200
# Halvings by which a head is raised, and ops before it that are looked at for that.
_DEEPER, _LOOKED_AT = 6, 16
# Of the sums of times, relative.
_ROUNDING = 1e-9

# Whether producer and consumer of an edge share a device.
_EITHER, _SHARED, _APART = np.int8(0), np.int8(1), np.int8(2)


class _Least(NamedTuple):
    """The least times of a problem, and its edges.

    Attributes
    ----------
    compute : float64 array, shape [ops]
        Time of each op on its fastest device, seconds.
    share : float64 array, shape [ops]
        Time that an op takes of all devices together.
    moved : float64 array, shape [ops]
        Least time to another device, seconds; infinite if there is none.
    order, succ_ptr, succ, pred_ptr, pred : int32 array
    succ_edge : int32 array, shape [edges]
        Place among ``pred`` of each entry of ``succ``.
    kind : int8 array, shape [edges]
        What is known of each entry of ``pred`` from the start.
    """

    compute: FloatArray
    share: FloatArray
    moved: FloatArray
    order: IntArray
    succ_ptr: IntArray
    succ: IntArray
    pred_ptr: IntArray
    pred: IntArray
    succ_edge: IntArray
    kind: npt.NDArray[np.int8]


def lower_bound(problem: Problem) -> float:
    """Give seconds that no placement can beat, at least :attr:`Problem.lower_bound`.

    O((V + E) log V) for each of some twenty makespans that are tried to refute, and some thousands
    of steps at most for each op.
    """
    check_type(problem, Problem, "problem")
    known = problem.lower_bound
    if known <= 0.0 or problem.n_devices == 1:
        return known
    least = _least(problem)
    heads, tails = np.empty(problem.n_ops), np.empty(problem.n_ops)
    bound = max(known, float(_static(least, heads, tails)))
    # A bound that is the makespan itself must not exceed it by rounding.
    return max(known, float(_refute(least, heads, tails, bound)) * (1 - _ROUNDING))


def _least(problem: Problem) -> _Least:
    arrays = problem.arrays
    off = ~np.eye(problem.n_devices, dtype=bool)
    latency, factor = arrays.latency[off], arrays.factor[off]
    # The least of lines in the volume; few links differ.
    lines = np.unique(np.stack([latency, factor], axis=1), axis=0)
    moved = np.full(problem.n_ops, np.inf)
    for start, slope in lines:
        moved = np.minimum(moved, start + slope * arrays.volume)
    compute = np.ascontiguousarray(problem.least_compute)
    succ_edge = np.empty(arrays.succ.size, np.int32)
    kind = np.zeros(arrays.pred.size, np.int8)
    _match(arrays, succ_edge, kind)
    return _Least(
        compute,
        (arrays.compute * _split_weights(arrays.compute)).min(axis=1),
        moved,
        arrays.order,
        arrays.succ_ptr,
        arrays.succ,
        arrays.pred_ptr,
        arrays.pred,
        succ_edge,
        kind,
    )


def _split_weights(compute: FloatArray) -> FloatArray:
    """Weights of the devices that sum to 1, by which the work bounds the makespan well.

    In ``t`` seconds at most ``t`` seconds of the weighted work ``min_d y_d compute[v, d]`` are
    done, by linear programming duality (see :attr:`Problem.lower_bound`). O(V x devices) for each
    of some steps of multiplicative weights; equal devices keep equal weights.
    """
    count = compute.shape[1]
    able = np.isfinite(compute)
    seconds = np.where(able, compute, 0.0)
    mean = seconds.sum(axis=0) / np.maximum(able.sum(axis=0), 1)
    # A device that can run no op gets next to no weight.
    weights = np.where(mean > 0.0, 1.0 / np.maximum(mean, 1e-300), 0.0)
    weights = np.maximum(weights, 1e-12 * max(float(weights.max()), 1e-300))
    weights /= weights.sum()
    best, chosen = -1.0, weights
    for step in range(_SPLIT_STEPS if (compute != compute[:, :1]).any() else 1):
        weighted = compute * weights
        home = weighted.argmin(axis=1)
        bound = float(weighted.min(axis=1).sum())
        if bound > best:
            best, chosen = bound, weights
        load = np.bincount(home, compute[np.arange(len(home)), home], count)
        if load.max() <= 0.0:
            break
        weights = weights * np.exp(0.5 / (1.0 + step) * (load / load.max() - 1.0))
        weights = weights / weights.sum()
    return chosen


@kernel
def _match(arrays, succ_edge, kind):  # type: ignore[no-untyped-def]
    """Find each edge among the inputs of its consumer, and whether the two can share a device."""
    n_ops, n_devices = arrays.compute.shape
    filled = np.zeros(n_ops, np.int32)
    for producer in range(n_ops):
        for edge in range(arrays.succ_ptr[producer], arrays.succ_ptr[producer + 1]):
            consumer = arrays.succ[edge]
            # Inputs are listed in the order of their producers, as this loop goes through them.
            place = arrays.pred_ptr[consumer] + filled[consumer]
            filled[consumer] += 1
            succ_edge[edge] = place
            together = False
            for device in range(n_devices):
                if (
                    arrays.compute[producer, device] < np.inf
                    and arrays.compute[consumer, device] < np.inf
                ):
                    together = True
                    break
            kind[place] = _EITHER if together else _APART


@kernel
def _heads(least, kind, tails, known, deeper, head):  # type: ignore[no-untyped-def]
    """Fill in the least time at which each op can start; ``tails``: do the same backwards.

    Backwards, the ops that share a device with their producer run after it one by one, in the
    order of their tails, so that both directions are one computation.

    Parameters
    ----------
    least : _Least
    kind : int8 array, shape [edges]
        What is known of each edge.
    tails : bool
    known : float64 array, shape [ops]
        What is known from before.
    deeper : bool
        Whether the inputs of the inputs are looked at, too, and theirs.
    head : float64 array, shape [ops]
    """
    n_ops = len(head)
    pointers = least.succ_ptr if tails else least.pred_ptr
    others = least.succ if tails else least.pred
    widest = 1
    for op in range(n_ops):
        widest = max(widest, pointers[op + 1] - pointers[op])
    away = np.empty(widest)
    found, latest = np.empty(_LOOKED_AT, np.int32), np.empty(_LOOKED_AT)
    most = least.compute.sum()
    for step in range(n_ops):
        op = least.order[n_ops - 1 - step] if tails else least.order[step]
        first = pointers[op]
        count = pointers[op + 1] - first
        head[op] = 0.0
        if count == 0:
            continue
        for place in range(count):
            other = others[first + place]
            edge = least.succ_edge[first + place] if tails else first + place
            moved = least.moved[op] if tails else least.moved[other]
            away[place] = head[other] + least.compute[other] + moved
            if kind[edge] == _SHARED:
                away[place] = np.inf
        by_away = np.argsort(-away[:count])
        rank = np.empty(count, np.int32)
        for place in range(count):
            rank[by_away[place]] = place
        release = np.empty(count)
        for place in range(count):
            release[place] = head[others[first + place]]
        by_release = np.argsort(release)
        # The more inputs are local, the later the last local one ends, and the earlier arrives the
        # last of the others: the best number is where the two cross.
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            local = 0.0
            for index in by_release:
                if rank[index] < middle:
                    edge = least.succ_edge[first + index] if tails else first + index
                    local = max(local, release[index]) + least.compute[others[first + index]]
                    if kind[edge] == _APART:
                        local = np.inf
            if local >= away[by_away[middle]]:
                high = middle
            else:
                low = middle + 1
        best = np.inf
        for number in range(max(0, low - 1), min(count, low + 1) + 1):
            if number > count:
                break
            local = 0.0
            for index in by_release:
                if rank[index] < number:
                    edge = least.succ_edge[first + index] if tails else first + index
                    local = max(local, release[index]) + least.compute[others[first + index]]
                    if kind[edge] == _APART:
                        local = np.inf
            if number < count:
                local = max(local, away[by_away[number]])
            best = min(best, local)
        head[op] = best = max(best, known[op])
        if not deeper:
            continue
        moved = 0.0
        for place in range(count):
            other = others[first + place]
            moved = max(moved, least.moved[op] if tails else least.moved[other])
        # Beyond, no input has to be local.
        low, high = best, best + min(moved, most)
        for _ in range(_DEEPER if high > low else 0):
            middle = 0.5 * (low + high)
            if _too_soon(least, kind, tails, head, op, middle, found, latest):
                low = middle
            else:
                high = middle
        head[op] = low


@kernel
def _too_soon(least, kind, tails, head, op, begins, found, latest):  # type: ignore[no-untyped-def]
    """Whether an op cannot start by then, as what would have to be on its device does not fit.

    An input that comes later from elsewhere is made on the op's device, and begins early enough;
    so are those of its own inputs that would come too late for that, and so on, as many as there
    is room for in ``found`` (a part of them is enough to refute).

    Parameters
    ----------
    found : int32 array, shape [ops that are looked at]
        Scratch: the op, and what is on its device before it.
    latest : float64 array, shape [ops that are looked at]
        Scratch: when each begins at the latest.
    """
    pointers = least.succ_ptr if tails else least.pred_ptr
    others = least.succ if tails else least.pred
    found[0] = op
    latest[0] = begins
    count = 1
    done = 0
    limit = begins * (1.0 + 1e-12)
    # Those found later may lower the latest start of what was found before: that only means that
    # fewer are found.
    while done < count:
        consumer, until = found[done], latest[done]
        done += 1
        for place in range(pointers[consumer], pointers[consumer + 1]):
            other = others[place]
            edge = least.succ_edge[place] if tails else place
            moved = least.moved[consumer] if tails else least.moved[other]
            ends = head[other] + least.compute[other]
            if ends > until + (limit - begins):
                return True
            if kind[edge] != _SHARED and ends + moved <= until + (limit - begins):
                continue
            if kind[edge] == _APART:
                return True
            at = 1
            while at < count and found[at] != other:
                at += 1
            if at == count:
                if count == len(found):
                    continue
                found[at] = other
                latest[at] = until - least.compute[other]
                count += 1
            else:
                latest[at] = min(latest[at], until - least.compute[other])
    # One after another: what begins at ``a`` at the earliest and ends by ``b`` fits in between.
    for first in range(1, count):
        released = head[found[first]]
        for last in range(1, count):
            due = latest[last] + least.compute[found[last]]
            if due < released:
                continue
            work = 0.0
            for at in range(1, count):
                if head[found[at]] >= released and (latest[at] + least.compute[found[at]] <= due):
                    work += least.compute[found[at]]
            if released + work > due + (limit - begins):
                return True
    return False


@kernel
def _sweep(head, tail, work, ops):  # type: ignore[no-untyped-def]
    """Return the largest ``a + b +`` work of the ops with ``head >= a`` and ``tail >= b``.

    O(n log n): ops come in the order of falling heads, and a segment tree holds for each ``b``
    what the tail and the work so far add up to.

    Parameters
    ----------
    head, tail, work : float64 array, shape [all ops]
    ops : int32 array, shape [n]
        Those that count.
    """
    count = len(ops)
    by_head = np.argsort(-head[ops])
    own_tail = tail[ops]
    by_tail = np.argsort(own_tail)
    place = np.empty(count, np.int64)
    for index in range(count):
        place[by_tail[index]] = index
    width = 1
    while width < count:
        width *= 2
    most = np.full(2 * width, -np.inf)
    added = np.zeros(2 * width)
    best = 0.0
    for index in by_head:
        op = ops[index]
        # All tails up to the op's own: a prefix, whose last leaf is climbed from. A tail counts
        # once its own op does: with no work in between, the time from head to tail is not taken.
        node = width + place[index]
        added[node] += work[op]
        most[node] = own_tail[index] + added[node]
        while node > 1:
            if node & 1:
                most[node - 1] += work[op]
                added[node - 1] += work[op]
            node //= 2
            most[node] = max(most[2 * node], most[2 * node + 1]) + added[node]
        best = max(best, head[op] + most[1])
    return best


@kernel
def _static(least, head, tail):  # type: ignore[no-untyped-def]
    """Fill in heads and tails; bound by them and the work between, with no makespan to refute."""
    n_ops = len(least.compute)
    none = np.zeros(n_ops)
    _heads(least, least.kind, False, none, True, head)
    _heads(least, least.kind, True, none, True, tail)
    best = 0.0
    for op in range(n_ops):
        best = max(best, head[op] + least.compute[op] + tail[op])
    return max(best, _sweep(head, tail, least.share, np.arange(n_ops).astype(np.int32)))


@kernel
def _root(parent, op):  # type: ignore[no-untyped-def]
    while parent[op] != op:
        parent[op] = parent[parent[op]]
        op = parent[op]
    return op


@kernel
def _impossible(least, heads, tails, makespan):  # type: ignore[no-untyped-def]
    """Whether no schedule is that short; False: unknown."""
    n_ops = len(least.compute)
    kind = least.kind.copy()
    head, tail = np.empty(n_ops), np.empty(n_ops)
    everything = np.arange(n_ops).astype(np.int32)
    parent = everything.copy()
    limit = makespan * (1.0 + 1e-12)
    for _ in range(_ROUNDS):
        _heads(least, kind, False, heads, False, head)
        _heads(least, kind, True, tails, False, tail)
        for op in range(n_ops):
            if not head[op] + least.compute[op] + tail[op] <= limit:
                return True
        if _sweep(head, tail, least.share, everything) > limit:
            return True
        changed = False
        for op in range(n_ops):
            for edge in range(least.pred_ptr[op], least.pred_ptr[op + 1]):
                other = least.pred[edge]
                through = head[other] + least.compute[other] + least.moved[other]
                if through + least.compute[op] + tail[op] > limit:
                    if kind[edge] == _APART:
                        return True
                    parent[_root(parent, other)] = _root(parent, op)
        # Groups that share a device, one after another, each of its ops between head and tail.
        group = np.empty(n_ops, np.int32)
        size = np.zeros(n_ops + 1, np.int32)
        work, first, last = np.zeros(n_ops), np.full(n_ops, np.inf), np.full(n_ops, np.inf)
        for op in range(n_ops):
            root = _root(parent, op)
            group[op] = root
            size[root + 1] += 1
            work[root] += least.compute[op]
            first[root] = min(first[root], head[op])
            last[root] = min(last[root], tail[op])
        for op in range(n_ops):
            size[op + 1] += size[op]
        members = np.empty(n_ops, np.int32)
        filled = size.copy()
        for op in range(n_ops):
            members[filled[group[op]]] = op
            filled[group[op]] += 1
        for root in range(n_ops):
            if size[root + 1] - size[root] > 1:
                own = members[size[root] : size[root + 1]]
                if _sweep(head, tail, least.compute, own) > limit:
                    return True
        for op in range(n_ops):
            for edge in range(least.pred_ptr[op], least.pred_ptr[op + 1]):
                if kind[edge] == _SHARED:
                    continue
                mine, other = group[op], group[least.pred[edge]]
                if mine == other:
                    if kind[edge] == _APART:
                        return True
                    kind[edge] = _SHARED
                    changed = True
                elif kind[edge] == _EITHER:
                    begins = min(first[mine], first[other])
                    ends = min(last[mine], last[other])
                    if begins + work[mine] + work[other] + ends > limit:
                        kind[edge] = _APART
                        changed = True
        if not changed:
            return False
    return False


@kernel
def _refute(least, heads, tails, bound):  # type: ignore[no-untyped-def]
    """Raise a bound as far as longer makespans are impossible too."""
    step = _FIRST_STEP
    low, high = bound, bound
    for _ in range(_DOUBLINGS):
        high = bound * (1.0 + step)
        if not _impossible(least, heads, tails, high):
            break
        low = high
        step *= 2.0
    if low == high:
        return low
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if _impossible(least, heads, tails, middle):
            low = middle
        else:
            high = middle
    return low
