"""Learning to place one problem: the harness in which every learned method is trained."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from doppler.errors import ParamsError
from doppler.placement import Placement
from doppler.policy.rollout import OVERFLOW_WEIGHT
from doppler.problem import Problem
from doppler.simulator import makespan_of, simulate, simulate_many
from doppler.simulator.score import overflow_of
from doppler.torch_threads import one_torch_thread

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]


class Batch(NamedTuple):
    """Episodes that a learner played and learned from.

    Attributes
    ----------
    devices : int32 array, shape [episodes, ops]
    priority : int32 array, shape [episodes, ops], or None
        None: first ready, first run.
    costs : float64 array, shape [episodes]
        Simulated seconds, with a penalty on memory beyond the capacity.
    """

    devices: IntArray
    priority: IntArray | None
    costs: FloatArray


class EpisodeLearner(Protocol):
    """A policy that learns to place one problem."""

    def update(self, seeds: Sequence[int], progress: float) -> Batch:
        """Play one episode per seed, learn from them, and return them.

        Parameters
        ----------
        seeds : sequence of int
            The episodes depend on them and on the weights alone.
        progress : float
            Share of the training that is done, from 0 to 1, for schedules.
        """
        ...

    def greedy(self) -> Placement:
        """Place the problem by the likeliest choices."""
        ...


@dataclass(frozen=True, eq=False)
class EpisodeCurve:
    """What learning gave, batch by batch.

    Attributes
    ----------
    episodes : int64 array, shape [batches]
        Played at the end of each batch.
    seconds : float64 array, shape [batches]
        Since the start.
    mean, best : float64 array, shape [batches]
        Mean cost of the batch, and the least cost so far, seconds.
    """

    episodes: npt.NDArray[np.int64]
    seconds: FloatArray
    mean: FloatArray
    best: FloatArray


@dataclass(frozen=True, eq=False)
class LearnedPlacement:
    """What came of learning to place a problem.

    Attributes
    ----------
    placement : Placement
        The best of all episodes, the greedy one at the end included.
    makespan : float
        Its simulated seconds.
    greedy : float
        Simulated seconds of the greedy episode at the end.
    curve : EpisodeCurve
    """

    placement: Placement
    makespan: float
    greedy: float
    curve: EpisodeCurve


def costs_of(
    problem: Problem, devices: IntArray, priority: IntArray | None = None, threads: int = 1
) -> FloatArray:
    """Judge placements as episodes of the policy are judged.

    O(placements x (V + E)) simulations.

    Parameters
    ----------
    problem : Problem
    devices : int32 array, shape [placements, ops]
    priority : int32 array, shape [placements, ops], optional
        Left out: first ready, first run.
    threads : int

    Returns
    -------
    float64 array, shape [placements]
        Simulated seconds, times one more than ``OVERFLOW_WEIGHT`` x the overflow of memory.
    """
    costs = simulate_many(problem, devices, priority, threads=threads)
    if problem.may_overflow:
        for index, placed in enumerate(devices):
            placement = Placement(placed, None if priority is None else priority[index])
            peak = simulate(problem, placement).peak_memory
            costs[index] *= 1.0 + OVERFLOW_WEIGHT * overflow_of(problem.arrays.capacity, peak)
    return costs


def learn(
    problem: Problem,
    learner: EpisodeLearner,
    *,
    episodes: int | None = None,
    budget: float | None = None,
    batch: int = 16,
    seed: int = 0,
) -> LearnedPlacement:
    """Train on one problem until the episodes are played or the seconds are over.

    At least one batch is played. What an update draws depends on its number alone.

    Parameters
    ----------
    problem : Problem
    learner : EpisodeLearner
    episodes : int, optional
        To play, the last batch being smaller where they do not divide.
    budget : float, optional
        Seconds; no batch begins after them.
    batch : int
        Episodes of each update.
    seed : int

    Raises
    ------
    ParamsError
        If neither episodes nor a budget is given.
    """
    if episodes is None and budget is None:
        raise ParamsError("learn: give episodes, or a budget of seconds")
    began = time.perf_counter()
    done, number = 0, 0
    best, placement = np.inf, None
    rows: list[tuple[int, float, float, float]] = []
    with one_torch_thread():
        while True:
            elapsed = time.perf_counter() - began
            shares = (
                0.0 if episodes is None else done / episodes,
                0.0 if not budget else elapsed / budget,
            )
            count = batch if episodes is None else min(batch, episodes - done)
            if number > 0 and (count <= 0 or (budget is not None and elapsed >= budget)):
                break
            rng = np.random.default_rng([seed, 5, number])
            seeds = rng.integers(2**31, size=max(1, count)).tolist()
            played = learner.update(seeds, min(1.0, max(shares)))
            done, number = done + len(seeds), number + 1
            index = int(played.costs.argmin())
            if played.costs[index] < best or placement is None:
                best = float(played.costs[index])
                rank = None if played.priority is None else played.priority[index]
                placement = Placement(played.devices[index], rank)
            mean = float(played.costs.mean())
            rows.append((done, time.perf_counter() - began, mean, best))
        greedy = learner.greedy()
    assert placement is not None
    runtime = "fifo" if greedy.priority is None else "priority"
    rank = None if greedy.priority is None else greedy.priority[None]
    if costs_of(problem, greedy.devices[None], rank)[0] < best:
        placement = greedy
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return LearnedPlacement(
        placement,
        makespan_of(problem, placement, runtime),
        makespan_of(problem, greedy, runtime),
        EpisodeCurve(*columns),
    )
