"""Enumerative assignment: the expert optimizer of the DOPPLER paper."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.heuristics.attempts import answer_once
from doppler.heuristics.base import Solution
from doppler.heuristics.heft import upward_order
from doppler.kernels import kernel
from doppler.problem import Problem
from doppler.schedule.free_memory import FreeMemory, choices, clear, leave, take

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

# Shards whose assignments are enumerated; more go by greedy choice and exchanges alone.
MOST_ENUMERATED = 16
# Choices that an enumeration may look at: for one stage, and over all stages.
STEPS_PER_STAGE = 200_000
STEPS_IN_ALL = 20_000_000
# With how many of the shards that follow it a shard is exchanged on trial, and how often over.
EXCHANGES = 64
PASSES = 3
# Costs that differ by less than this share of them differ by rounding.
EQUAL = 1e-12


class Stage(NamedTuple):
    """Shards that are assigned together.

    Attributes
    ----------
    ops : int32 array, shape [shards]
    reads_ptr : int32 array, shape [shards + 1]
    reads : int32 array, shape [reads]
        Inputs of shard ``i``: ``reads[reads_ptr[i] : reads_ptr[i + 1]]``.
    price : float64 array, shape [inputs, devices]
        Seconds to move each input to each device, 0 where it is.
    uses : int32 array, shape [inputs, devices]
        How many of the shards assigned so far read the input there.
    """

    ops: IntArray
    reads_ptr: IntArray
    reads: IntArray
    price: FloatArray
    uses: IntArray


class Quota(NamedTuple):
    """How full the devices are.

    Attributes
    ----------
    taken : int32 array, shape [devices]
        Shards of the meta-op on each device.
    most : int32 array, shape [1]
        The most shards of the meta-op that a device may have.
    load : float64 array, shape [devices]
        Seconds of all ops on each device.
    """

    taken: IntArray
    most: IntArray
    load: FloatArray


def meta_op_stages(problem: Problem) -> tuple[IntArray, IntArray, IntArray]:
    """Split the graph into sets of shards that are assigned together, in topological order.

    A stage is the shards of one meta-op at one depth, so that no edge joins two of them. A graph
    whose ops are not sharded (each is a meta-op of its own) has none to speak of; ops of the same
    kind, cost and depth count as shards there.

    Returns
    -------
    pointers : int32 array, shape [stages + 1]
    members : int32 array, shape [ops]
        The ops of stage ``s`` are ``members[pointers[s] : pointers[s + 1]]``, by shard index.
    meta_op : int32 array, shape [stages]
        Number of the meta-op that each stage belongs to.
    """
    graph = problem.graph
    names = np.unique(np.array(graph.meta_ops), return_inverse=True)[1]
    if names.max(initial=0) + 1 == graph.n_ops:
        kinds = np.unique(np.array(graph.kinds), return_inverse=True)[1]
        alike = np.stack([graph.depth, kinds, _ranks(problem.mean_compute)])
        names = np.unique(alike, axis=1, return_inverse=True)[1].ravel()
    members = np.lexsort((np.arange(graph.n_ops), graph.shards, names, graph.depth))
    changes = np.flatnonzero((np.diff(graph.depth[members]) != 0) | (np.diff(names[members]) != 0))
    pointers = np.concatenate([[0], changes + 1, [graph.n_ops]]).astype(np.int32)
    return pointers, members.astype(np.int32), names[members[pointers[:-1]]].astype(np.int32)


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Give equal costs the same number, whatever their rounding."""
    grain = max(float(values.max()), 1e-300) * 1e-9
    ranks: npt.NDArray[np.int64] = np.unique(np.round(values / grain), return_inverse=True)[1]
    return ranks


@kernel
def _add(stage, shard, device):  # type: ignore[no-untyped-def]
    """Let a shard read on a device; return the seconds of the transfers which that needs."""
    seconds = 0.0
    for read in range(stage.reads_ptr[shard], stage.reads_ptr[shard + 1]):
        slot = stage.reads[read]
        if stage.uses[slot, device] == 0:
            seconds += stage.price[slot, device]
        stage.uses[slot, device] += 1
    return seconds


@kernel
def _remove(stage, shard, device):  # type: ignore[no-untyped-def]
    """Undo :func:`_add`; return the seconds of the transfers that are not needed any more."""
    seconds = 0.0
    for read in range(stage.reads_ptr[shard], stage.reads_ptr[shard + 1]):
        slot = stage.reads[read]
        stage.uses[slot, device] -= 1
        if stage.uses[slot, device] == 0:
            seconds += stage.price[slot, device]
    return seconds


@kernel
def _options(memory, stage, quota, shard, found):  # type: ignore[no-untyped-def]
    """Write the devices that may take a shard into ``found``; return how many.

    Those below the stage's quota, or, where only others may take it, those.
    """
    count = choices(memory, stage.ops[shard], found)
    below = 0
    for index in range(count):
        if quota.taken[found[index]] < quota.most[0]:
            below += 1
    if below == 0:
        return count
    kept = 0
    for index in range(count):
        if quota.taken[found[index]] < quota.most[0]:
            found[kept] = found[index]
            kept += 1
    return kept


@kernel
def _better(cost, tallest, best_cost, best_tallest):  # type: ignore[no-untyped-def]
    """Whether communication is cheaper, or equal and the largest load smaller."""
    if cost < best_cost * (1.0 - EQUAL):
        return True
    return cost <= best_cost * (1.0 + EQUAL) and tallest < best_tallest * (1.0 - EQUAL)


@kernel
def _greedy(memory, stage, quota, choice):  # type: ignore[no-untyped-def]
    """Give each shard in turn the device with the cheapest transfers, of equals the least loaded.

    Returns
    -------
    cost : float
        Seconds of communication.
    tallest : float
        Largest load among the devices used, seconds.
    """
    found = np.empty(memory.compute.shape[1], np.int32)
    total = 0.0
    tallest = 0.0
    for shard in range(len(stage.ops)):
        op = stage.ops[shard]
        least = np.inf
        least_load = np.inf
        for index in range(_options(memory, stage, quota, shard, found)):
            device = found[index]
            cost = _add(stage, shard, device)
            _remove(stage, shard, device)
            load = quota.load[device] + memory.compute[op, device]
            if index == 0 or _better(cost, load, least, least_load):
                least, least_load = cost, load
                choice[shard] = device
        device = choice[shard]
        total += _add(stage, shard, device)
        quota.taken[device] += 1
        quota.load[device] = least_load
        tallest = max(tallest, least_load)
        take(memory, op, device)
    return total, tallest


@kernel
def _settle(memory, stage, quota, choice):  # type: ignore[no-untyped-def]
    """Put every shard on its device."""
    for shard in range(len(stage.ops)):
        device = choice[shard]
        _add(stage, shard, device)
        quota.taken[device] += 1
        quota.load[device] += memory.compute[stage.ops[shard], device]
        take(memory, stage.ops[shard], device)


@kernel
def _enumerate(memory, stage, quota, choice, best_cost, best_tallest, most_steps):  # type: ignore[no-untyped-def]
    """Search all assignments, depth first, leaving out what cannot beat the best.

    Both parts of the objective only grow as shards are added, so a partial assignment that is not
    better than the best already is not continued. ``choice`` holds the best; memory, stage and
    quota are left as they were.

    Returns
    -------
    bool
        Whether the search was completed within ``most_steps``.
    """
    count = len(stage.ops)
    n_devices = memory.compute.shape[1]
    options = np.empty((count, n_devices), np.int32)
    n_options = np.zeros(count, np.int32)
    tried = np.zeros(count, np.int32)
    current = np.zeros(count, np.int32)
    cost = np.zeros(count + 1)
    tallest = np.zeros(count + 1)
    load_before = np.zeros(count)
    left_before = np.zeros(count)
    working_before = np.zeros(count)
    opens_home = np.zeros(count, np.bool_)
    level = np.int64(0)
    steps = 0
    n_options[0] = _options(memory, stage, quota, level, options[0])
    while True:
        if level < count and tried[level] < n_options[level] and steps < most_steps:
            steps += 1
            device = options[level, tried[level]]
            tried[level] += 1
            op = stage.ops[level]
            cost[level + 1] = cost[level] + _add(stage, level, device)
            load = quota.load[device] + memory.compute[op, device]
            tallest[level + 1] = max(tallest[level], load)
            if not _better(cost[level + 1], tallest[level + 1], best_cost, best_tallest):
                _remove(stage, level, device)
                continue
            current[level] = device
            group = memory.group[op]
            opens_home[level] = group >= 0 and memory.home[group] < 0
            load_before[level] = quota.load[device]
            left_before[level] = memory.left[device]
            working_before[level] = memory.working[device]
            quota.taken[device] += 1
            quota.load[device] = load
            take(memory, op, device)
            level += 1
            if level < count:
                tried[level] = 0
                n_options[level] = _options(memory, stage, quota, level, options[level])
            continue
        if level == count:
            best_cost, best_tallest = cost[count], tallest[count]
            choice[:] = current
        if level == 0:
            return steps < most_steps
        level -= 1
        device = current[level]
        _remove(stage, level, device)
        leave(memory, stage.ops[level], device)
        quota.taken[device] -= 1
        quota.load[device] = load_before[level]
        memory.left[device] = left_before[level]
        memory.working[device] = working_before[level]
        if opens_home[level]:
            memory.home[memory.group[stage.ops[level]]] = -1


@kernel
def _swap(memory, u, a, v, b):  # type: ignore[no-untyped-def]
    """Put op ``u``, which is on device ``a``, where op ``v`` is, on ``b``, and the other way."""
    leave(memory, u, a)
    leave(memory, v, b)
    take(memory, u, b)
    take(memory, v, a)


@kernel
def _exchange(memory, stage, quota, choice):  # type: ignore[no-untyped-def]
    """Exchange the devices of two shards while that is better, a few passes over near pairs."""
    count = len(stage.ops)
    for _ in range(PASSES):
        improved = False
        for one in range(count):
            for other in range(one + 1, min(one + 1 + EXCHANGES, count)):
                a, b = choice[one], choice[other]
                u, v = stage.ops[one], stage.ops[other]
                if a == b or memory.group[u] >= 0 or memory.group[v] >= 0:
                    continue
                if memory.compute[u, b] == np.inf or memory.compute[v, a] == np.inf:
                    continue
                working_a, working_b = memory.working[a], memory.working[b]
                _swap(memory, u, a, v, b)
                if memory.left[a] < memory.working[a] or memory.left[b] < memory.working[b]:
                    _swap(memory, u, b, v, a)
                    memory.working[a], memory.working[b] = working_a, working_b
                    continue
                before = _remove(stage, one, a) + _remove(stage, other, b)
                after = _add(stage, one, b) + _add(stage, other, a)
                load_a = quota.load[a] + memory.compute[v, a] - memory.compute[u, a]
                load_b = quota.load[b] + memory.compute[u, b] - memory.compute[v, b]
                highest = max(quota.load[a], quota.load[b])
                if _better(after, max(load_a, load_b), before, highest):
                    improved = True
                    choice[one], choice[other] = b, a
                    quota.load[a], quota.load[b] = load_a, load_b
                else:
                    _swap(memory, u, b, v, a)
                    memory.working[a], memory.working[b] = working_a, working_b
                    _remove(stage, one, b)
                    _remove(stage, other, a)
                    _add(stage, one, a)
                    _add(stage, other, b)
        if not improved:
            return


@kernel
def _assign(arrays, pointers, members, meta_op, memory, devices):  # type: ignore[no-untyped-def]
    """Assign stage after stage; see :func:`enumerative`. Fills ``devices``, shape [ops]."""
    clear(memory)
    volume, latency, factor = arrays.volume, arrays.latency, arrays.factor
    pred_ptr, pred, succ_ptr = arrays.pred_ptr, arrays.pred, arrays.succ_ptr
    n_ops, n_devices = memory.compute.shape
    n_stages = len(meta_op)
    n_copies = np.zeros(n_ops, np.int32)
    copy_device = np.empty(len(pred), np.int32)
    slot_of = np.zeros(n_ops, np.int32)
    seen_in = np.full(n_ops, -1, np.int32)
    inputs = np.empty(n_ops, np.int32)
    size = np.zeros(meta_op.max() + 1, np.int32)
    for number in range(n_stages):
        size[meta_op[number]] += pointers[number + 1] - pointers[number]
    taken = np.zeros((len(size), n_devices), np.int32)
    load = np.zeros(n_devices)
    most_steps = min(STEPS_PER_STAGE, STEPS_IN_ALL // n_stages)

    for number in range(n_stages):
        ops = members[pointers[number] : pointers[number + 1]]
        count = len(ops)
        reads_ptr = np.zeros(count + 1, np.int32)
        for shard in range(count):
            op = ops[shard]
            reads_ptr[shard + 1] = reads_ptr[shard] + pred_ptr[op + 1] - pred_ptr[op]
        reads = np.empty(reads_ptr[count], np.int32)
        n_inputs = 0
        for shard in range(count):
            first = pred_ptr[ops[shard]]
            for read in range(reads_ptr[shard], reads_ptr[shard + 1]):
                producer = pred[first + read - reads_ptr[shard]]
                if seen_in[producer] != number:
                    seen_in[producer] = number
                    slot_of[producer] = n_inputs
                    inputs[n_inputs] = producer
                    n_inputs += 1
                reads[read] = slot_of[producer]
        price = np.empty((n_inputs, n_devices))
        for slot in range(n_inputs):
            producer = inputs[slot]
            source = devices[producer]
            for device in range(n_devices):
                price[slot, device] = (
                    latency[source, device] + volume[producer] * factor[source, device]
                )
            price[slot, source] = 0.0
            first = succ_ptr[producer]
            for copy in range(first, first + n_copies[producer]):
                price[slot, copy_device[copy]] = 0.0
        stage = Stage(ops, reads_ptr, reads, price, np.zeros((n_inputs, n_devices), np.int32))
        meta = meta_op[number]
        most = np.full(1, (size[meta] + n_devices - 1) // n_devices, np.int32)
        quota = Quota(taken[meta], most, load)
        choice = np.empty(count, np.int32)

        complete = count == 1
        if 1 < count <= MOST_ENUMERATED:
            left, working, home = (
                memory.left.copy(),
                memory.working.copy(),
                np.empty(count, np.int32),
            )
            load_before, taken_before = load.copy(), taken[meta].copy()
            for shard in range(count):
                group = memory.group[ops[shard]]
                home[shard] = memory.home[group] if group >= 0 else -1
            cost, tallest = _greedy(memory, stage, quota, choice)
            for shard in range(count):
                leave(memory, ops[shard], choice[shard])
            memory.left[:], memory.working[:] = left, working
            load[:], taken[meta] = load_before, taken_before
            stage.uses[:] = 0
            for shard in range(count):
                if memory.group[ops[shard]] >= 0:
                    memory.home[memory.group[ops[shard]]] = home[shard]
            complete = _enumerate(memory, stage, quota, choice, cost, tallest, most_steps)
            _settle(memory, stage, quota, choice)
        else:
            _greedy(memory, stage, quota, choice)
        if not complete:
            _exchange(memory, stage, quota, choice)

        for shard in range(count):
            devices[ops[shard]] = choice[shard]
        for slot in range(n_inputs):
            producer = inputs[slot]
            for device in range(n_devices):
                if stage.uses[slot, device] > 0 and device != devices[producer]:
                    first = succ_ptr[producer]
                    known = False
                    for copy in range(first, first + n_copies[producer]):
                        known = known or copy_device[copy] == device
                    if not known:
                        copy_device[first + n_copies[producer]] = device
                        n_copies[producer] += 1


def enumerative(problem: Problem, *, budget: float = 0.0, seed: int = 0) -> Solution:
    """Assign the shards of one meta-op after the other where communication is cheapest.

    After the expert optimizer of Yao et al., "DOPPLER: Dual-Policy Learning for Device Assignment
    in Asynchronous Dataflow Graphs", ICLR 2026, which goes through the meta-ops in topological
    order, spreads the shards of each evenly over the devices, and keeps the assignment with the
    cheapest communication. Exactly:

    - The shards of a meta-op at one depth are assigned together (:func:`meta_op_stages`), and the
      stages go by depth. No device gets more than ``ceil(shards / devices)`` of a meta-op's shards,
      unless pins, groups, kinds or memory leave a shard no other.
    - The cost is the seconds of all transfers of inputs that are on another device, each tensor
      once per device, wherever it was sent before. Of equal costs the one with the smallest load,
      in seconds, on the most loaded device that is used.
    - Up to 16 shards: all assignments, by branch and bound from a greedy start, within 200,000
      steps a stage and 20,000,000 in all. Where that ends early, and for more shards: the greedy
      assignment, improved by exchanging the devices of shards that are at most 64 apart, in at
      most 3 passes.

    The priority is the b-level, highest first: the paper's optimizer has none. Deterministic;
    budget and seed are not used.

    Raises
    ------
    MemoryLimitError
        If the placement does not fit in memory.
    """
    pointers, members, meta_op = meta_op_stages(problem)
    order = upward_order(problem)
    priority = np.empty(problem.n_ops, np.int32)
    priority[order] = np.arange(problem.n_ops, dtype=np.int32)

    def construct(memory: FreeMemory) -> tuple[IntArray, IntArray]:
        devices = np.empty(problem.n_ops, np.int32)
        _assign(problem.arrays, pointers, members, meta_op, memory, devices)
        return devices, priority

    return answer_once(problem, construct, budget=budget, origin="enumerative assignment")
