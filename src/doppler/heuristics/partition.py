"""Partitions of the whole graph, band after band, by a hypergraph partitioner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from doppler.errors import MemoryLimitError
from doppler.heuristics.bands import band_net, cut_bands, make_vertices, settle
from doppler.heuristics.base import Deadline, Solution
from doppler.heuristics.heft import upward_order
from doppler.heuristics.incumbent import FITTING_ATTEMPTS, make_incumbent, offer
from doppler.heuristics.kahypar import Library, available
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.schedule.ranks import rank_of
from doppler.schedule.room import Room, clear, make_room
from doppler.simulator import Score, describe_overflow
from doppler.simulator.kernel import make_workspace

__all__ = ["Candidate", "Partitioner", "available", "candidates", "partition"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

BANDS = (4, 1, 2, 8, 12)
IMBALANCES = (0.05, 0.03, 0.1)
# Graphs of more ops get the first two of the bands only without a budget, and no hint at all.
MANY_OPS = 30_000
TOO_MANY_OPS = 200_000


@dataclass(frozen=True, eq=False)
class Candidate:
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
        self._distance = device_distances(problem)
        self._room = make_room(problem.arrays)
        self._local = np.full(len(self._vertices.work), -1, np.int32)
        self._seen = np.zeros(problem.n_ops, np.bool_)
        self.priority = rank_of(upward_order(problem))

    def cut(
        self,
        bands: int,
        imbalance: float,
        seed: int,
        mapping: bool = False,
        room: Room | None = None,
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
            Whether hyperedges cost the links that they need, instead of the number of devices.
        room : Room, optional
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
        room = room or self._room
        clear(room)
        band = cut_bands(self._vertices, bands)
        order = np.argsort(self._vertices.position)
        home = np.full(len(work), -1, np.int32)
        for index in range(bands):
            chosen = order[band[order] == index].astype(np.int32)
            if not chosen.size:
                continue
            if n_devices > 1:
                vertices, pin_ptr, pins, ops = band_net(
                    arrays, of_op, member_ptr, member, chosen, home, self._local, self._seen
                )
                weight = np.zeros(n_devices + len(vertices))
                weight[n_devices : n_devices + len(chosen)] = work[chosen]
                fixed = np.full(len(weight), -1, np.int32)
                fixed[:n_devices] = np.arange(n_devices)
                wanted = self._library.split(
                    pin_ptr,
                    pins,
                    self._transfer[ops],
                    weight,
                    fixed,
                    self._share,
                    imbalance,
                    seed,
                    self._distance if mapping else None,
                )[n_devices : n_devices + len(chosen)]
            else:
                wanted = np.zeros(len(chosen), np.int32)
            settle(arrays, of_op, member_ptr, member, chosen, wanted, room, home)
        return Placement(home[of_op], self.priority)


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


def device_distances(problem: Problem) -> FloatArray:
    """Mean seconds to move an output between two devices, times the devices that share the link."""
    arrays = problem.arrays
    users = np.ones((problem.n_devices, problem.n_devices))
    for channel in range(arrays.n_channels):
        uses = arrays.channel == channel
        users[uses] = np.count_nonzero(uses.any(axis=1))
    mean = arrays.volume.mean() if len(arrays.volume) else 0.0
    distances: FloatArray = (arrays.latency + mean * arrays.factor) * users
    return distances


def candidates(
    problem: Problem, *, budget: float = 0.0, seed: int = 0, bands: Sequence[int] = BANDS
) -> list[Candidate]:
    """Make partitions until the budget ends, of each kind at least one, and return the best.

    A kind is a number of bands and an objective. Without a budget each number of bands is tried
    once; of a graph of more than 30,000 ops only the first two, of more than 200,000 none: the
    list is empty. With a budget the kinds are tried in turn, every other attempt being of the best
    kind so far, with other seeds and imbalances. The same number of attempts gives the same list.

    Parameters
    ----------
    problem : Problem
    budget : float
        Seconds; overrun by one attempt at most, and by the first of each number of bands.
    seed : int
    bands : sequence of int
        Numbers of bands, the most promising first.

    Returns
    -------
    list of Candidate
        The best of each kind that fits in memory, best first by simulated makespan without noise.

    Raises
    ------
    MissingPackageError
        If Mt-KaHyPar is not installed.
    """
    if problem.n_ops > TOO_MANY_OPS and budget <= 0:
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
        self.best: dict[tuple[int, bool], Candidate] = {}
        self.nearest = Score(np.inf, np.inf)
        self.peak = np.zeros(problem.n_devices)
        self._partitioner = Partitioner(problem)
        self._room = make_room(problem.arrays)
        recorded = problem.graph.n_edges if problem.may_overflow else 0
        self._work = make_workspace(problem.n_ops, problem.n_devices, recorded)

    def go(self) -> None:
        """Make attempts until the budget ends; a few more if none fits."""
        for kind, imbalance in self._plan():
            self._attempt(kind, imbalance)
        for kind, imbalance in self._more():
            waiting = not self.best and self.attempts < len(self.bands) + FITTING_ATTEMPTS
            if self.deadline.left <= 0 and not waiting:
                break
            self._attempt(kind, imbalance)

    def _plan(self) -> Iterator[tuple[tuple[int, bool], float]]:
        if self.problem.n_devices == 1:
            yield (1, False), IMBALANCES[0]
            return
        few = 2 if self.problem.n_ops > MANY_OPS else len(self.bands)
        if self.problem.n_ops > TOO_MANY_OPS:
            few = 1
        for count in self.bands[:few]:
            yield (count, False), IMBALANCES[0]

    def _more(self) -> Iterator[tuple[tuple[int, bool], float]]:
        if self.problem.n_devices == 1:
            return
        turn = 0
        while True:
            for mapping in (True, False):
                for count in self.bands:
                    turn += 1
                    yield (count, mapping), IMBALANCES[turn % len(IMBALANCES)]
                    if self.best:
                        kind = min(self.best, key=lambda one: self.best[one].makespan)
                        yield kind, IMBALANCES[turn // 2 % len(IMBALANCES)]

    def _attempt(self, kind: tuple[int, bool], imbalance: float) -> None:
        problem, index = self.problem, self.attempts
        self.attempts += 1
        placement = self._partitioner.cut(
            kind[0], imbalance, self.seed + index, kind[1], self._room
        )
        incumbent = make_incumbent(problem.n_ops, problem.n_devices)
        offer(
            problem.arrays,
            placement.devices.copy(),
            self._partitioner.priority,
            index,
            problem.may_overflow,
            self._room.usable,
            self._work,
            incumbent,
        )
        if not incumbent.score.fits:
            if incumbent.score < self.nearest:
                self.nearest, self.peak = incumbent.score, incumbent.peak
            return
        known = self.best.get(kind)
        if known is None or incumbent.score.makespan < known.makespan:
            label = f"partition, {kind[0]} band{'s' * (kind[0] > 1)}{', mapped' * kind[1]}"
            self.best[kind] = Candidate(placement, incumbent.score.makespan, label)
