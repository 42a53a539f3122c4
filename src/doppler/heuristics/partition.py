"""Partitions of the whole graph, band after band, by a hypergraph partitioner.

About 0.2 to 1 s of one core for a partition of 15,000 ops over 16 devices, twice as fast on two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.errors import MemoryLimitError
from doppler.heuristics.bands import band_net, cut_bands, make_vertices, relabel, settle
from doppler.heuristics.base import Deadline, Solution
from doppler.heuristics.heft import upward_order
from doppler.heuristics.incumbent import FITTING_ATTEMPTS, make_incumbent, offer
from doppler.heuristics.kahypar import Library, available
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.schedule.free_memory import FreeMemory, clear, make_free_memory
from doppler.schedule.ranks import rank_of
from doppler.simulator import Score, describe_overflow
from doppler.simulator.kernel import make_workspace

__all__ = ["Partitioner", "ScoredPartition", "available", "candidates", "partition"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

# Numbers of bands that are always tried, the most promising first: deep graphs need many.
BANDS = (4, 1, 8, 20)
# With a budget these follow, and the neighbors of the best.
MORE_BANDS = (12, 10, 24, 6, 16, 2, 48, 3, 32)
IMBALANCES = (0.03, 0.05, 0.02, 0.1)
# Of so many of the best kinds the least tried gets every third attempt.
RUNNERS_UP = 5
# Up to so many ops the first, second, ... of the numbers of bands is tried whatever the budget.
MOST_OPS = (100_000, 60_000, 30_000, 12_000)
# Larger graphs get candidates where the budget is so many seconds an op: it takes about half.
SECONDS_PER_OP = 5e-5

Kind = tuple[int, bool]


@dataclass(frozen=True, eq=False)
class ScoredPartition:
    """A partition and how long it takes.

    Attributes
    ----------
    placement : Placement
        Fits in memory.
    makespan : float
        Simulated seconds without noise.
    label : str
        How it came about, for people.
    """

    placement: Placement
    makespan: float
    label: str


class Partitioner:
    """Cuts one problem into bands and splits each over the devices.

    Ops are cut into bands of equal work by t-level, so that all devices have work at all times.
    Band after band is split with Mt-KaHyPar: hyperedges are an output and its consumers, weighted
    by its mean transfer time; what earlier bands hold is fixed, and later consumers of the band
    count as vertices without weight, which tie together the producers that should meet. A
    device's share of the work is proportional to its speed.

    Parameters
    ----------
    problem : Problem
    threads : int, optional
        By default one per core; the placements do not depend on it.

    Raises
    ------
    MissingPackageError
        If Mt-KaHyPar is not installed.
    """

    def __init__(self, problem: Problem, threads: int | None = None) -> None:
        self.problem = problem
        self._library = Library(threads)
        self._vertices = make_vertices(problem)
        self._transfer = problem.mean_transfer
        self._share = device_shares(problem)
        self._nodes = problem.nodes
        self._memory = make_free_memory(problem.arrays)
        self._local = np.full(len(self._vertices.work), -1, np.int32)
        self._seen = np.zeros(problem.n_ops, np.bool_)
        self.priority = rank_of(upward_order(problem))

    def cut(
        self,
        bands: int,
        imbalance: float,
        seed: int,
        mapping: bool = False,
        memory: FreeMemory | None = None,
    ) -> Placement:
        """Make one partition. About O(V + E) and the partitioner's time, at most ``bands`` calls.

        Parameters
        ----------
        bands : int
            At least 1.
        imbalance : float
            By how much of its share of a band's work a device may exceed it; 0.03 to 0.1.
        seed : int
            Equal seeds give equal placements.
        mapping : bool
            Whether to split over the nodes first and then each node's part over its devices, as the
            links out of a node are few. On one node it changes nothing.
        memory : FreeMemory, optional
            What the devices can hold; by default their capacity.

        Returns
        -------
        Placement
            Every op on a device that can run it, groups together; parameters fit where that is
            possible. With the b-level as priority.
        """
        arrays = self.problem.arrays
        of_op, work, _, member_ptr, member = self._vertices
        n_devices = self.problem.n_devices
        memory = memory or self._memory
        clear(memory)
        band = cut_bands(self._vertices, bands)
        order = np.argsort(self._vertices.position)
        home = np.full(len(work), -1, np.int32)
        for index in range(bands):
            chosen = order[band[order] == index].astype(np.int32)
            if not chosen.size:
                continue
            vertices, pin_ptr, pins, ops = band_net(
                arrays, of_op, member_ptr, member, chosen, home, self._local, self._seen
            )
            weight = np.zeros(n_devices + len(vertices))
            weight[n_devices : n_devices + len(chosen)] = work[chosen]
            net = _Net(pin_ptr, pins, self._transfer[ops], weight)
            split = self._by_node if mapping else self._at_once
            wanted = split(net, imbalance, seed)[n_devices : n_devices + len(chosen)]
            settle(arrays, of_op, member_ptr, member, chosen, wanted, memory, home)
        return Placement(home[of_op], self.priority)

    def _at_once(self, net: _Net, imbalance: float, seed: int) -> IntArray:
        """Device of each vertex, all devices being alike."""
        return self._split(net, self._share, imbalance, seed)

    def _by_node(self, net: _Net, imbalance: float, seed: int) -> IntArray:
        """Device of each vertex: the vertices over the nodes, then those of each over its own."""
        nodes, n_devices = self._nodes, self.problem.n_devices
        n_nodes, count = int(nodes.max()) + 1, len(net.weight) - n_devices
        # All devices of a node are one fixed vertex.
        label = np.concatenate([nodes, np.arange(n_nodes, n_nodes + count)]).astype(np.int32)
        share = np.bincount(nodes, self._share).astype(np.float64)
        node = self._split(net.renamed(label, n_nodes), share, imbalance, seed)
        node = np.concatenate([nodes, node[n_nodes:]])
        devices = np.empty(len(node), np.int32)
        for index in range(n_nodes):
            inside = node == index
            own = np.flatnonzero(nodes == index).astype(np.int32)
            label = np.where(inside, np.cumsum(inside) - 1, -1).astype(np.int32)
            part = self._split(net.renamed(label, own.size), self._share[own], imbalance, seed)
            devices[inside] = own[part]
        return devices

    def _split(self, net: _Net, share: FloatArray, imbalance: float, seed: int) -> IntArray:
        fixed = np.full(len(net.weight), -1, np.int32)
        fixed[: share.size] = np.arange(share.size)
        return self._library.split(
            net.pin_ptr, net.pins, net.cost, net.weight, fixed, share, imbalance, seed
        )


class _Net(NamedTuple):
    """A hypergraph with its weights; the first vertices stand for the blocks."""

    pin_ptr: IntArray
    pins: IntArray
    cost: FloatArray
    weight: FloatArray

    def renamed(self, label: IntArray, n_blocks: int) -> _Net:
        """Give vertices other numbers, those of the blocks first; -1: left out."""
        count = int(label.max()) + 1
        pin_ptr, pins, nets = relabel(self.pin_ptr, self.pins, label, count)
        weight = np.zeros(count)
        weight[label[label >= 0]] = self.weight[label >= 0]
        weight[:n_blocks] = 0.0
        return _Net(pin_ptr, pins, self.cost[nets], weight)


def device_shares(problem: Problem) -> FloatArray:
    """Part of the work that each device should get, by its mean speed on the ops it can run."""
    compute = problem.arrays.compute
    can = np.isfinite(compute)
    shares = np.empty(problem.n_devices)
    for device in range(problem.n_devices):
        runs = can[:, device]
        took = compute[runs, device].sum()
        needed = problem.mean_compute[runs].sum()
        shares[device] = needed / took if took > 0 else 1.0
    shares /= shares.max()
    shares[shares < 1e-6] = 1e-6
    return shares


def candidates(
    problem: Problem, *, budget: float = 0.0, seed: int = 0, bands: Sequence[int] = BANDS
) -> list[ScoredPartition]:
    """Make partitions until the budget ends, of each kind at least one, and return the best.

    A kind is a number of bands, split at once or node by node. Whatever the budget, each number of
    bands is tried once: all of them up to 12,000 ops, the first three up to 30,000, two up to
    60,000, one up to 100,000; beyond, the list is empty unless the budget is 50 microseconds an op.
    Then further kinds follow, first those near the best, and more seeds and imbalances of the good
    ones. The same number of attempts gives the same list.

    Parameters
    ----------
    problem : Problem
    budget : float
        Seconds; overrun by one attempt at most, or by those that are made whatever it is.
    seed : int
    bands : sequence of int
        Numbers of bands, the most promising first.

    Returns
    -------
    list of ScoredPartition
        The best of each kind that fits in memory, best first by simulated makespan without noise.

    Raises
    ------
    MissingPackageError
        If Mt-KaHyPar is not installed.
    """
    if problem.n_ops > MOST_OPS[0] and budget < SECONDS_PER_OP * problem.n_ops:
        return []
    trial = _Trial(problem, budget, seed, bands)
    trial.go()
    return sorted(trial.best.values(), key=lambda one: one.makespan)


def partition(problem: Problem, *, budget: float = 0.0, seed: int = 0) -> Solution:
    """Split the graph band after band with Mt-KaHyPar, and keep the best of many partitions.

    See :class:`Partitioner` and :func:`candidates`; here graphs of any size get an answer.

    Raises
    ------
    MemoryLimitError
        If no partition fits in memory.
    MissingPackageError
        If Mt-KaHyPar is not installed.
    """
    trial = _Trial(problem, budget, seed, BANDS)
    trial.go()
    if not trial.best:
        overflow = describe_overflow(problem, trial.peak)
        raise MemoryLimitError(f"{problem.graph.name}: partition: {overflow}")
    best = min(trial.best.values(), key=lambda one: one.makespan)
    origin = best.label + (f", best of {trial.attempts}" if trial.attempts > 1 else "")
    return Solution(best.placement, best.makespan, trial.attempts, trial.deadline.elapsed, origin)


class _Trial:
    """Attempts one after another, each offered to the best of its kind."""

    def __init__(self, problem: Problem, budget: float, seed: int, bands: Sequence[int]) -> None:
        self.deadline = Deadline(budget)
        self.problem = problem
        self.seed = seed
        self.bands = tuple(bands)
        self.attempts = 0
        self.best: dict[Kind, ScoredPartition] = {}
        self.tried: Counter[Kind] = Counter()
        self._several = bool(problem.nodes.any())
        self.nearest = Score(np.inf, np.inf)
        self.peak = np.zeros(problem.n_devices)
        self._partitioner = Partitioner(problem)
        self._memory = make_free_memory(problem.arrays)
        recorded = problem.graph.n_edges if problem.may_overflow else 0
        self._work = make_workspace(problem.n_ops, problem.n_devices, recorded)

    def go(self) -> None:
        """Make attempts until the budget ends; a few more if none fits."""
        for kind in self._plan():
            self._attempt(kind)
        for kind in self._more():
            waiting = not self.best and self.attempts < len(self.bands) + FITTING_ATTEMPTS
            if self.deadline.left <= 0 and not waiting:
                break
            self._attempt(kind)

    def _plan(self) -> list[Kind]:
        """Kinds of which each gets one attempt, whatever the budget."""
        if self.problem.n_devices == 1:
            return [(1, False)]
        few = len(self.bands)
        for index, most in enumerate(MOST_OPS):
            if self.problem.n_ops > most:
                few = max(index, 1)
                break
        # Node by node is better on average, but for a whole graph, where it constrains most.
        return [(count, self._several and count > 1) for count in self.bands[:few]]

    def _more(self) -> Iterator[Kind]:
        """Kinds for the rest of the time: two new ones, the best and a good one in turn."""
        if self.problem.n_devices == 1:
            return
        counts = [*self.bands, *(count for count in MORE_BANDS if count not in self.bands)]
        ways = (True, False) if self._several else (False,)
        known = [(count, way) for way in ways for count in counts]
        while True:
            for new in (self._near_best(), known):
                fresh = next((kind for kind in new if kind not in self.tried), None)
                if fresh is not None:
                    yield fresh
            leading = sorted(self.best, key=lambda kind: self.best[kind].makespan)[:RUNNERS_UP]
            if leading:
                yield leading[0]
                yield min(leading, key=lambda kind: self.tried[kind])
            elif fresh is None:
                yield min(self.tried, key=lambda kind: self.tried[kind])

    def _near_best(self) -> list[Kind]:
        """Kinds with somewhat more and somewhat fewer bands than the best."""
        if not self.best:
            return []
        count, way = min(self.best, key=lambda kind: self.best[kind].makespan)
        most = len(self._partitioner.priority)
        near = (count * 5 // 4 + 1, count * 4 // 5, count + 1, count - 1)
        return [(other, way) for other in near if 1 <= other <= most]

    def _attempt(self, kind: Kind) -> None:
        problem, index = self.problem, self.attempts
        imbalance = IMBALANCES[self.tried[kind] % len(IMBALANCES)]
        self.attempts += 1
        self.tried[kind] += 1
        placement = self._partitioner.cut(
            kind[0], imbalance, self.seed * 1_000_003 + index, kind[1], self._memory
        )
        incumbent = make_incumbent(problem.n_ops, problem.n_devices)
        offer(
            problem.arrays,
            placement.devices.copy(),
            self._partitioner.priority,
            index,
            problem.may_overflow,
            self._memory.usable,
            self._work,
            incumbent,
        )
        if not incumbent.score.fits:
            if incumbent.score < self.nearest:
                self.nearest, self.peak = incumbent.score, incumbent.peak
            return
        known = self.best.get(kind)
        if known is None or incumbent.score.makespan < known.makespan:
            label = f"partition, {kind[0]} band{'s' * (kind[0] > 1)}{', node by node' * kind[1]}"
            self.best[kind] = ScoredPartition(placement, incumbent.score.makespan, label)
