"""Episodes: SEL picks the next op, PLC its device, until every op is placed; compiled.

SEL's logits do not change within an episode, so that drawing the next op from the softmax over the
candidates is an exponential race (the memoryless property; see Gumbel-max and Efraimidis and
Spirakis, "Weighted random sampling with a reservoir", 2006): an op that becomes a candidate when
the race's clock shows t holds the ticket t + Exp(1) / exp(logit), and the smallest ticket wins and
sets the clock. Greedy, the highest logit wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.cores import cores
from doppler.kernels import kernel
from doppler.policy.features import DEVICE_FEATURES, STYLED, Scales, device_features, scales
from doppler.policy.hint import Hint, no_hint
from doppler.policy.shortlist import (
    Shortlist,
    device_kinds,
    make_shortlist,
    occupy,
    reset,
    shorten,
)
from doppler.problem import Problem
from doppler.schedule.affinity import sibling_volumes
from doppler.schedule.compiled import lean
from doppler.schedule.free_memory import FreeMemory, choices, clear, make_free_memory, take
from doppler.schedule.partial import Partial, empty, gather, make_partial, place
from doppler.schedule.ranks import rank_of
from doppler.simulator.kernel import Workspace, heap_pop, heap_push, make_workspace, run
from doppler.simulator.score import Score, score_of

FloatArray = npt.NDArray[np.float64]
SingleArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

GREEDY, SAMPLE, FOLLOW = 0, 1, 2
# What memory beyond the capacity costs, as makespans per capacity.
OVERFLOW_WEIGHT = 10.0


class Weights(NamedTuple):
    """What the rollout needs of the policies, for one problem.

    Attributes
    ----------
    logits : float64 array, shape [ops]
        SEL's, within +-10.
    node : float32 array, shape [ops, hidden]
        PLC's first layer, the part of the op, bias included.
    code : float32 array, shape [ops, code]
        What an op adds to the sum over the ops of its device.
    first : float32 array, shape [device features, hidden]
    first_code : float32 array, shape [code, hidden]
    second : float32 array, shape [hidden]
    direct : float32 array, shape [device features]
        From the device features straight to the score.
    style : float64 array, shape [device features]
        Mean of the logarithm of the factor on each direct weight.
    """

    logits: FloatArray
    node: SingleArray
    code: SingleArray
    first: SingleArray
    first_code: SingleArray
    second: SingleArray
    direct: SingleArray
    style: FloatArray


class Record(NamedTuple):
    """What happened in a batch of episodes, for the learner; by step.

    Attributes
    ----------
    order : int32 array, shape [episodes, ops]
        The ops as SEL chose them.
    choice : int32 array, shape [episodes, ops]
        The devices that PLC chose.
    allowed : bool array, shape [episodes, ops, devices]
        The devices that PLC could choose from, see :func:`shorten`.
    features : float32 array, shape [episodes, ops, devices, device features]
    style : float64 array, shape [episodes, device features]
        Logarithms of the factors on the direct weights that the episode had.
    """

    order: IntArray
    choice: IntArray
    allowed: BoolArray
    features: SingleArray
    style: FloatArray

    def joined(self, other: Record) -> Record:
        """Return these episodes and others of the same problem."""
        return Record(
            np.concatenate([self.order, other.order]),
            np.concatenate([self.choice, other.choice]),
            np.concatenate([self.allowed, other.allowed]),
            np.concatenate([self.features, other.features]),
            np.concatenate([self.style, other.style]),
        )

    def part(self, episodes: slice) -> Record:
        """Return some of the episodes, without a copy."""
        return Record(
            self.order[episodes],
            self.choice[episodes],
            self.allowed[episodes],
            self.features[episodes],
            self.style[episodes],
        )


class Scratch(NamedTuple):
    """Scratch arrays of one thread.

    Attributes
    ----------
    partial : Partial
    memory : FreeMemory
    work : Workspace
    missing : int32 array, shape [ops]
    keys, heap : float64, int32 array, shape [ops]
        The race: candidates by ticket.
    found : int32 array, shape [devices]
    scores : float64 array, shape [devices]
    load : float64 array, shape [devices]
    codes : float32 array, shape [devices, code]
        Sum of the codes of the ops on each device.
    members : float32 array, shape [devices]
        Number of ops on each device.
    hidden : float32 array, shape [hidden]
    direct : float32 array, shape [device features]
        The direct weights in the style of the episode.
    features : float64 array, shape [devices, device features]
    trial : float64 array, shape [6, devices]
    shortlist : Shortlist
    """

    partial: Partial
    memory: FreeMemory
    work: Workspace
    missing: IntArray
    keys: FloatArray
    heap: IntArray
    found: IntArray
    scores: FloatArray
    load: FloatArray
    codes: SingleArray
    members: SingleArray
    hidden: SingleArray
    direct: SingleArray
    features: FloatArray
    trial: FloatArray
    shortlist: Shortlist


def make_scratch(problem: Problem, kinds: IntArray, hidden: int, code: int) -> Scratch:
    """Allocate the scratch arrays of one thread."""
    arrays = problem.arrays
    n_ops, n_devices = arrays.compute.shape
    edges = problem.graph.n_edges if problem.may_overflow else 0
    return Scratch(
        make_partial(arrays),
        make_free_memory(arrays),
        make_workspace(n_ops, n_devices, edges),
        np.empty(n_ops, np.int32),
        np.empty(n_ops),
        np.empty(n_ops, np.int32),
        np.empty(n_devices, np.int32),
        np.empty(n_devices),
        np.empty(n_devices),
        np.empty((n_devices, code), np.float32),
        np.empty(n_devices, np.float32),
        np.empty(hidden, np.float32),
        np.empty(len(DEVICE_FEATURES), np.float32),
        np.empty((n_devices, len(DEVICE_FEATURES))),
        np.empty((6, n_devices)),
        make_shortlist(kinds),
    )


@kernel(fastmath={"reassoc", "contract", "arcp", "nsz"})
def score_devices(  # type: ignore[no-untyped-def]
    weights, direct, op, found, n_found, features, codes, members, hidden, scores
):
    """Score the candidate devices of an op: a hidden layer with relu, and a direct linear part.

    O(devices x hidden x (device features + code)).

    Parameters
    ----------
    direct : float32 array, shape [device features]
        The direct weights in the style of the episode.
    found : int32 array, shape [devices]
        The first ``n_found`` are the candidates.
    features : float64 array, shape [devices, device features]
    codes : float32 array, shape [devices, code]
        Sum of the codes of the ops on each device.
    members : float32 array, shape [devices]
        Number of ops on each device.
    hidden : float32 array, shape [hidden]
        Scratch.
    scores : float64 array, shape [devices]
        Filled, in the order of ``found``.
    """
    node, first, first_code = weights.node, weights.first, weights.first_code
    second = weights.second
    size = len(hidden)
    for candidate in range(n_found):
        device = found[candidate]
        share = np.float32(1.0) / (np.float32(1.0) + members[device])
        score = np.float32(0.0)
        for unit in range(size):
            hidden[unit] = node[op, unit]
        for feature in range(features.shape[1]):
            value = np.float32(features[device, feature])
            score += value * direct[feature]
            for unit in range(size):
                hidden[unit] += value * first[feature, unit]
        for index in range(codes.shape[1]):
            value = codes[device, index] * share
            for unit in range(size):
                hidden[unit] += value * first_code[index, unit]
        for unit in range(size):
            score += max(hidden[unit], np.float32(0.0)) * second[unit]
        scores[candidate] = score


@lean
def _ticket(logit, clock, mode):  # type: ignore[no-untyped-def]
    if mode == SAMPLE:
        return clock + np.random.exponential() * np.exp(-logit)
    return -logit


@lean
def _with_choice(found, n_found, device):  # type: ignore[no-untyped-def]
    """Put a device on the list that was taken without the list."""
    for index in range(n_found):
        if found[index] == device:
            return n_found
    found[n_found] = device
    return n_found + 1


@lean
def episode(  # type: ignore[no-untyped-def]
    arrays,
    scale,
    hint,
    weights,
    mode,
    spread,
    seed,
    scratch,
    order,
    choice,
    allowed,
    features,
    style,
):
    """Place every op once.

    O((V + E) log V + V x devices x hidden x features).

    Invariant: the candidates are the ops whose producers are all placed.

    Parameters
    ----------
    arrays : Arrays
    scale : Scales
    hint : Hint
    weights : Weights
    mode : int
        ``GREEDY``; ``SAMPLE``; or ``FOLLOW``: take ``order`` and ``choice`` as they are, to record
        what the policies would have seen.
    spread : float
        Of the style, as a multiple of ``STYLED``; 0: the mean style.
    seed : int
    scratch : Scratch
    order, choice : int32 array, shape [ops]
        By step: the op, its device.
    allowed : bool array, shape [ops, devices] or [0, 0]
        Recorded by step, unless empty.
    features : float32 array, shape [ops, devices, device features] or [0, 0, 0]
        Recorded by step, unless empty.
    style : float64 array, shape [device features]
        Filled.
    """
    np.random.seed(seed)
    direct = scratch.direct
    for feature in range(len(style)):
        style[feature] = weights.style[feature]
        if spread > 0.0 and STYLED[feature] > 0.0:
            style[feature] += spread * STYLED[feature] * np.random.standard_normal()
        direct[feature] = weights.direct[feature] * np.exp(style[feature])
    n_ops = len(order)
    partial, memory = scratch.partial, scratch.memory
    missing, keys, heap = scratch.missing, scratch.keys, scratch.heap
    found, scores, load, seen = scratch.found, scratch.scores, scratch.load, scratch.features
    codes, members = scratch.codes, scratch.members
    logits, code = weights.logits, weights.code
    succ_ptr, succ = arrays.succ_ptr, arrays.succ
    pred_ptr, compute = arrays.pred_ptr, arrays.compute
    shortlist, by_free, hinted = scratch.shortlist, scratch.shortlist.by_free, hint.devices
    placed, inputs, device_free = partial.devices, partial.inputs, partial.device_free
    volume_on, count_on = scratch.trial[0], scratch.trial[1]
    recorded = len(features) > 0
    reset(shortlist)
    empty(partial)
    clear(memory)
    load[:] = 0.0
    codes[:] = 0.0
    members[:] = 0.0
    size = np.int64(0)
    for op in range(n_ops):
        missing[op] = pred_ptr[op + 1] - pred_ptr[op]
        if missing[op] == 0 and mode != FOLLOW:
            heap_push(keys, heap, 0, size, _ticket(logits[op], 0.0, mode), np.int32(op))
            size += 1
    for step in range(n_ops):
        clock = 0.0
        if mode == FOLLOW:
            op = order[step]
        else:
            op = heap[0]
            clock = keys[0]
            heap_pop(keys, heap, 0, size)
            size -= 1
            order[step] = op
        n_inputs = gather(arrays, partial, op)
        n_found = choices(memory, op, found)
        sibling_volumes(arrays, placed, op, volume_on, count_on)
        preferred = hinted[op] if len(hinted) > 0 else np.int32(-1)
        n_found = shorten(shortlist, preferred, placed, inputs, n_inputs, count_on, found, n_found)
        if mode == FOLLOW:
            n_found = _with_choice(found, n_found, choice[step])
        device_features(
            arrays,
            scale,
            hint,
            partial,
            load,
            device_free[by_free[len(by_free) - 1]],
            found,
            n_found,
            n_inputs,
            op,
            scratch.trial,
            seen,
        )
        if recorded:
            for candidate in range(n_found):
                device = found[candidate]
                allowed[step, device] = True
                for feature in range(seen.shape[1]):
                    features[step, device, feature] = seen[device, feature]
        if mode == FOLLOW:
            device = choice[step]
        else:
            score_devices(
                weights, direct, op, found, n_found, seen, codes, members, scratch.hidden, scores
            )
            best = -np.inf
            device = found[0]
            for candidate in range(n_found):
                score = scores[candidate]
                if mode == SAMPLE:
                    # Gumbel-max: the softmax over the scores.
                    score -= np.log(np.random.exponential())
                if score > best:
                    best = score
                    device = found[candidate]
            choice[step] = device
        place(arrays, partial, n_inputs, op, device)
        take(memory, op, device)
        occupy(shortlist, device_free, device)
        load[device] += compute[op, device]
        members[device] += np.float32(1.0)
        for index in range(codes.shape[1]):
            codes[device, index] += code[op, index]
        if mode == FOLLOW:
            continue
        for edge in range(succ_ptr[op], succ_ptr[op + 1]):
            consumer = succ[edge]
            missing[consumer] -= 1
            if missing[consumer] == 0:
                heap_push(keys, heap, 0, size, _ticket(logits[consumer], clock, mode), consumer)
                size += 1


@kernel
def _episodes(  # type: ignore[no-untyped-def]
    arrays,
    scale,
    hint,
    weights,
    mode,
    spread,
    seeds,
    limited,
    by_priority,
    jitter,
    scratch,
    record,
    makespans,
    overflow,
    noisy,
):
    n_ops = arrays.compute.shape[0]
    devices = np.empty(n_ops, np.int32)
    priority = np.empty(n_ops if by_priority else 0, np.int32)
    for index in range(len(seeds)):
        episode(
            arrays,
            scale,
            hint,
            weights,
            mode,
            spread,
            seeds[index],
            scratch,
            record.order[index],
            record.choice[index],
            record.allowed[index],
            record.features[index],
            record.style[index],
        )
        for step in range(n_ops):
            op = record.order[index, step]
            devices[op] = record.choice[index, step]
            if by_priority:
                priority[op] = step
        score = score_of(arrays, devices, priority, limited, scratch.work)
        makespans[index] = score.makespan
        overflow[index] = score.overflow
        for draw in range(noisy.shape[1]):
            noisy[index, draw] = run(
                arrays, devices, priority, jitter, np.int64(draw), np.bool_(False), scratch.work
            )[0]


@dataclass(frozen=True, eq=False)
class Episodes:
    """A batch of episodes of one problem.

    Attributes
    ----------
    record : Record
    makespans : float64 array, shape [episodes]
        Simulated seconds.
    overflow : float64 array, shape [episodes]
        Memory beyond the capacity, as a share of it, summed over the devices.
    noisy : float64 array, shape [episodes, draws]
        Simulated seconds under jitter; a draw has the same seed in every episode.
    """

    record: Record
    makespans: FloatArray
    overflow: FloatArray
    noisy: FloatArray

    @property
    def costs(self) -> FloatArray:
        """What an episode is to minimize, shape [episodes].

        Its mean seconds under jitter, or those without where it was not drawn, and a penalty on
        memory beyond the capacity.
        """
        seconds = self.noisy.mean(axis=1) if self.noisy.shape[1] else self.makespans
        costs: FloatArray = seconds * (1.0 + OVERFLOW_WEIGHT * self.overflow)
        return costs

    def score(self, index: int) -> Score:
        """Score of one episode."""
        return Score(float(self.makespans[index]), float(self.overflow[index]))

    def devices(self, index: int) -> IntArray:
        """Device of each op in one episode, shape [ops]."""
        devices = np.empty(self.record.order.shape[1], np.int32)
        devices[self.record.order[index]] = self.record.choice[index]
        return devices

    def priority(self, index: int) -> IntArray:
        """Rank of each op in SEL's order in one episode, shape [ops]."""
        return rank_of(self.record.order[index])


class Roller:
    """Plays episodes of one problem on every core.

    Parameters
    ----------
    problem : Problem
    threads : int, optional
        By default one per core.
    """

    def __init__(self, problem: Problem, threads: int | None = None) -> None:
        self.problem = problem
        self.threads = threads or cores()
        self.scales: Scales = scales(problem)
        self._kinds = device_kinds(problem)
        self._scratch: dict[tuple[int, int, int], Scratch] = {}

    def play(
        self,
        weights: Weights,
        mode: int,
        seeds: Sequence[int],
        *,
        recorded: bool = False,
        runtime: str = "priority",
        hint: Hint | None = None,
        spread: float = 0.0,
        jitter: float = 0.0,
        draws: int = 0,
    ) -> Episodes:
        """Play one episode per seed and simulate the placements.

        Parameters
        ----------
        weights : Weights
        mode : int
            ``GREEDY`` or ``SAMPLE``.
        seeds : sequence of int
        recorded : bool
            Whether to keep what the learner needs.
        runtime : {"priority", "fifo"}
            Whether the simulated run-time honors SEL's order.
        hint : Hint, optional
            Of this problem, for PLC to follow or to leave; the one that ``weights`` are for.
        spread : float
            How much the style varies between episodes, as a multiple of what it is trained with;
            0: every episode has the mean style.
        jitter : float
            As for :func:`doppler.simulate`.
        draws : int
            Runs of each episode with jitter.
        """
        record = self._record(len(seeds), recorded)
        return self._run(weights, mode, spread, seeds, record, runtime, hint, jitter, draws)

    def follow(
        self,
        weights: Weights,
        order: IntArray,
        choice: IntArray,
        *,
        runtime: str = "priority",
        hint: Hint | None = None,
        jitter: float = 0.0,
        draws: int = 0,
    ) -> Episodes:
        """Record what the policies would see along given episodes, shape [episodes, ops] each.

        The other parameters are those of :meth:`play`.
        """
        record = self._record(len(order), True)
        record.order[:] = order
        record.choice[:] = choice
        seeds = range(len(order))
        return self._run(weights, FOLLOW, 0.0, seeds, record, runtime, hint, jitter, draws)

    def _record(self, count: int, recorded: bool) -> Record:
        n_ops, n_devices = self.problem.n_ops, self.problem.n_devices
        kept = n_ops if recorded else 0
        return Record(
            np.empty((count, n_ops), np.int32),
            np.empty((count, n_ops), np.int32),
            np.zeros((count, kept, n_devices), np.bool_),
            np.zeros((count, kept, n_devices, len(DEVICE_FEATURES)), np.float32),
            np.zeros((count, len(DEVICE_FEATURES))),
        )

    def _run(
        self,
        weights: Weights,
        mode: int,
        spread: float,
        seeds: Sequence[int],
        record: Record,
        runtime: str,
        hint: Hint | None,
        jitter: float,
        draws: int,
    ) -> Episodes:
        count = len(seeds)
        seeded = np.asarray(seeds, np.int64) % 2**32
        makespans = np.full(count, np.nan)
        overflow = np.zeros(count)
        noisy = np.empty((count, draws))
        given = no_hint(self.problem) if hint is None else hint
        workers = max(1, min(self.threads, count))

        def part(index: int) -> None:
            chunk = slice(index * count // workers, (index + 1) * count // workers)
            _episodes(
                self.problem.arrays,
                self.scales,
                given,
                weights,
                mode,
                float(spread),
                seeded[chunk],
                self.problem.may_overflow,
                runtime == "priority",
                float(jitter),
                self._scratch_of(index, weights),
                record.part(chunk),
                makespans[chunk],
                overflow[chunk],
                noisy[chunk],
            )

        if workers == 1:
            part(0)
        else:
            with ThreadPoolExecutor(workers) as pool:
                list(pool.map(part, range(workers)))
        return Episodes(record, makespans, overflow, noisy)

    def _scratch_of(self, index: int, weights: Weights) -> Scratch:
        key = (index, weights.node.shape[1], weights.code.shape[1])
        if key not in self._scratch:
            self._scratch[key] = make_scratch(self.problem, self._kinds, key[1], key[2])
        return self._scratch[key]
