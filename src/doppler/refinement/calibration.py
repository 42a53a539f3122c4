"""Fit the simulator to measured runs: a factor for every device and every link."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.cluster import Cluster
from doppler.kernels import kernel
from doppler.placement import Placement
from doppler.problem import Arrays, Problem
from doppler.simulator.kernel import Workspace, make_workspace, run
from doppler.trace import Trace

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

# Explanations that are kept and improved side by side.
EXPLANATIONS = 8
# Scales of the prior (Laplace) of the logarithms: what all devices, or all links, have in common,
# and what is peculiar to one.
COMMON, PECULIAR = 0.5, 0.15
# Residuals are squared up to so many standard deviations, then linear (Huber).
BEND = 2.0
# Relative error of the simulator itself, which no factor mends, and bounds on that of one run.
MODEL_ERROR = 0.02
LEAST_SPREAD, MOST_SPREAD = 0.01, 0.5
# No factor leaves exp(+-LIMIT).
LIMIT = 5.0
# Runs whose traces count, and the least error of a factor that traces gave.
TRACED = 20
TRACE_ERROR = 0.02
# Runs with jitter that an expectation is taken over, and what the jitter may be.
SAMPLES = 6
JITTERS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2)
# Runs of a placement whose deviation says something about the jitter, placements that are asked,
# samples for each, and the least deviation that is told from none.
ENOUGH_RUNS, ASKED, DRAWN, SMALLEST = 5, 6, 24, 0.003
# Rounds of calibration between two looks at the jitter, and changes of the explanations in each.
JITTER_EVERY, CHANGES = 8, 64
# Shortest modeled duration, as a share of the longest, that a trace is compared with.
SHORTEST = 1e-3


class Factors(NamedTuple):
    """By how much a real cluster is slower than the one that was believed.

    Attributes
    ----------
    devices : float64 array, shape [devices]
        What multiplies the time of every op.
    links : float64 array, shape [links]
        What multiplies the time of every transfer, in the order of the cluster's links.
    """

    devices: FloatArray
    links: FloatArray

    def cluster(self, believed: Cluster) -> Cluster:
        """Apply the factors to the rates, overheads and times of devices, and to the links."""
        devices = tuple(
            dataclasses.replace(
                device,
                flops=device.flops / factor,
                memory_bandwidth=device.memory_bandwidth / factor,
                launch_overhead=device.launch_overhead * factor,
                slowdown=device.slowdown * factor,
                measured={name: each * factor for name, each in device.measured.items()},
            )
            for device, factor in zip(believed.devices, self.devices.tolist(), strict=True)
        )
        links = tuple(
            dataclasses.replace(
                link,
                bandwidth=link.bandwidth / factor,
                latency=link.latency * factor,
                hops=link.hops * factor,
            )
            for link, factor in zip(believed.links, self.links.tolist(), strict=True)
        )
        return dataclasses.replace(believed, devices=devices, links=links)

    def problem(self, believed: Problem) -> Problem:
        """Return the same graph on the cluster with the factors applied."""
        return Problem(believed.graph, self.cluster(believed.cluster))


def factors_of(values: FloatArray, n_devices: int) -> Factors:
    """Return the factors that an explanation stands for.

    Parameters
    ----------
    values : float64 array, shape [2 + devices + links]
        Logarithms: what all devices share, what all links share, each device's own, each link's.
    n_devices : int
    """
    own = values[2:]
    return Factors(np.exp(values[0] + own[:n_devices]), np.exp(values[1] + own[n_devices:]))


def trace_factors(problem: Problem, trace: Trace) -> Factors:
    """Compare a trace's durations with the modeled ones: medians, weighted by the modeled time.

    Parameters
    ----------
    problem : Problem
        As believed.
    trace : Trace
        Of a run of its graph on as many devices.

    Returns
    -------
    Factors
        nan where the trace shows none.
    """
    arrays = problem.arrays
    modeled = arrays.compute[trace.op, trace.device]
    devices = _ratios(trace.end - trace.start, modeled, trace.device, problem.n_devices)
    pair = trace.transfer_source, trace.transfer_target
    moving = arrays.latency[pair] + arrays.volume[trace.transfer_op] * arrays.factor[pair]
    links = problem.cluster.links
    number = np.full((problem.n_devices, problem.n_devices), len(links))
    for index, link in enumerate(links):
        number[link.source, link.target] = index
    taken = trace.transfer_end - trace.transfer_start
    return Factors(devices, _ratios(taken, moving, number[pair], len(links)))


def _ratios(
    measured: FloatArray, modeled: FloatArray, group: npt.NDArray[np.integer], count: int
) -> FloatArray:
    """Weighted median of measured over modeled in each group, nan in empty ones."""
    longest = np.zeros(count + 1)
    finite = np.isfinite(modeled)
    np.maximum.at(longest, group[finite], modeled[finite])
    known = finite & (measured > 0) & (modeled > SHORTEST * longest[group]) & (group < count)
    ratio, weight, group = measured[known] / modeled[known], modeled[known], group[known]
    order = np.lexsort((ratio, group))
    ratio, group, reached = ratio[order], group[order], np.cumsum(weight[order])
    found = np.full(count, np.nan)
    first = np.flatnonzero(np.diff(group, prepend=-1))
    if first.size:
        ends = np.append(reached[first[1:] - 1], reached[-1])
        begins = np.append(0.0, ends[:-1])
        found[group[first]] = ratio[np.searchsorted(reached, 0.5 * (begins + ends))]
    return found


class Observations(NamedTuple):
    """Placements that were run.

    Attributes
    ----------
    devices, priority : int32 array, shape [placements, ops]
    ordered : bool array, shape [placements]
        Whether the run-time goes by the priority.
    target : float64 array, shape [placements]
        Median logarithm of the measured seconds.
    spread : float64 array, shape [placements]
        Standard deviation of the logarithm of one run, by the median deviation; nan where the runs
        are too few to tell.
    runs : int64 array, shape [placements]
    """

    devices: IntArray
    priority: IntArray
    ordered: BoolArray
    target: FloatArray
    spread: FloatArray
    runs: npt.NDArray[np.int64]

    def part(self, placements: npt.NDArray[np.integer]) -> Observations:
        """Return some of the placements."""
        return Observations(*(each[placements] for each in self))


def observations(
    placements: Sequence[Placement], logs: Sequence[Sequence[float]], runtime: str = "priority"
) -> Observations:
    """Gather what was measured.

    Parameters
    ----------
    placements : sequence of Placement
        At least one.
    logs : sequence of sequence of float
        Logarithms of the measured seconds of each; of one that was not run, none.
    runtime : {"priority", "fifo"}
    """
    none = np.zeros(placements[0].devices.size, np.int32)
    priority = [none if each.priority is None else each.priority for each in placements]
    return Observations(
        np.stack([each.devices for each in placements]),
        np.stack(priority),
        np.array([runtime == "priority" and each.priority is not None for each in placements]),
        np.array([float(np.median(each)) if len(each) else np.nan for each in logs]),
        np.array([deviation(each) if len(each) >= ENOUGH_RUNS else np.nan for each in logs]),
        np.array([len(each) for each in logs]),
    )


def deviation(values: npt.ArrayLike) -> float:
    """Return the standard deviation by the median absolute one, which outliers do not move."""
    array = np.asarray(values, np.float64)
    return 1.4826 * float(np.median(np.abs(array - np.median(array))))


@kernel
def _samples(arrays, devices, priority, ordered, jitter, work, logs):  # type: ignore[no-untyped-def]
    """Logarithms of simulated seconds, shape [placements, samples]; the seeds are the samples'."""
    for index in range(logs.shape[0]):
        queue = priority[index] if ordered[index] else priority[index][:0]
        for sample in range(logs.shape[1]):
            makespan, _ = run(
                arrays, devices[index], queue, jitter, np.int64(sample), np.bool_(False), work
            )
            logs[index, sample] = np.log(max(makespan, 1e-300))


@kernel
def _misfit(arrays, devices, priority, ordered, target, error, bend, limit, work):  # type: ignore[no-untyped-def]
    """Sum Huber's losses of the simulated logarithms; anything above ``limit`` once above it."""
    total = 0.0
    for index in range(len(target)):
        queue = priority[index] if ordered[index] else priority[index][:0]
        makespan, _ = run(arrays, devices[index], queue, 0.0, np.int64(0), np.bool_(False), work)
        off = abs(np.log(makespan) - target[index]) / error[index]
        total += 0.5 * off * off if off < bend else bend * (off - 0.5 * bend)
        if total > limit:
            break
    return total


class _Target(NamedTuple):
    """What explanations are held against.

    Attributes
    ----------
    seen : Observations
    goal, error : float64 array, shape [placements]
        Measured logarithms less what jitter adds, and the standard deviations of these.
    shown, shown_error : float64 array, shape [devices + links]
        Logarithms of the factors that traces show, nan where they show none.
    """

    seen: Observations
    goal: FloatArray
    error: FloatArray
    shown: FloatArray
    shown_error: FloatArray


class Calibrator:
    """Finds explanations of what was measured, each a set of factors.

    The logarithm of a factor is the sum of a part that all devices (or all links) share and a part
    of its own; the priors of both (Laplace) say that most factors are as believed. The likelihood
    is Huber's, of the logarithm of the simulated makespan against the measured one. An explanation
    is improved by random changes that are accepted as in Metropolis et al. (1953): a step of one
    value, a value put back to 0 or drawn anew, or exchanged with another, which asks "was it that
    device instead of this one?". The best explanation is the calibration; how the others differ
    from it shows what the measurements leave open.

    It remembers nothing: explanations are arrays of shape [1 + explanations, values], the best
    first, and the jitter is the standard deviation of the logarithm of a duration from run to run,
    such that simulated makespans vary as measured ones do.

    Parameters
    ----------
    problem : Problem
        As believed.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        links = problem.cluster.links
        self._source = np.array([link.source for link in links], np.int64)
        self._target = np.array([link.target for link in links], np.int64)
        self._links = 2 + problem.n_devices
        self._size = self._links + len(links)
        self._scale = np.full(self._size, PECULIAR)
        self._scale[:2] = COMMON
        self._movable = np.arange(self._size)
        if not links:
            self._movable = np.delete(self._movable, 1)
        self._work: Workspace = make_workspace(problem.n_ops, problem.n_devices, 0)

    def fit(
        self,
        explanations: FloatArray,
        jitter: float,
        seen: Observations,
        traced: Iterable[npt.NDArray[np.floating]],
        rng: np.random.Generator,
    ) -> FloatArray:
        """Improve the explanations by some random changes.

        A placement may take far longer with jitter than without, since a late op can change the
        order of many. By how much is simulated once, by the best explanation, and taken off what
        was measured; explanations are then held against it without jitter, which is quick.

        Parameters
        ----------
        explanations, jitter
        seen : Observations
            All that was measured.
        traced : iterable of float array, shape [devices + links]
            Factors that each of the latest traces shows.
        rng : numpy.random.Generator
        """
        with_jitter = self._simulate(explanations[0], seen, jitter, SAMPLES)
        without = self._simulate(explanations[0], seen, 0.0, 1)
        spread = np.where(np.isfinite(seen.spread), seen.spread, with_jitter.std(axis=1))
        spread = np.clip(spread, LEAST_SPREAD, MOST_SPREAD)
        # How far off the simulated expectation may be, too.
        variance = spread**2 / seen.runs + with_jitter.var(axis=1) / SAMPLES
        target = _Target(
            seen,
            seen.target - with_jitter.mean(axis=1) + without[:, 0],
            np.sqrt(MODEL_ERROR**2 + variance),
            *self._shown(traced),
        )
        found = explanations.copy()
        loss = np.array([self._loss(values, target) for values in found])
        if np.isfinite(target.shown).any():
            self._start_from_traces(found, loss, target)
        for number in range(CHANGES):
            index = 1 + number % EXPLANATIONS
            values = self._changed(found[index], rng)
            limit = loss[index] + rng.exponential()
            new = self._loss(values, target, limit)
            if new <= limit:
                found[index], loss[index] = values, new
                if new < loss[0]:
                    found[0], loss[0] = values, new
        best = int(loss.argmin())
        found[0] = found[best]
        return found

    def jitter(self, best: FloatArray, seen: Observations, before: float) -> float:
        """Choose the jitter that makes makespans vary as they were measured to.

        Parameters
        ----------
        best : float64 array, shape [values]
            An explanation.
        seen : Observations
        before : float
            What it was, kept if no placement ran often enough.
        """
        often = np.flatnonzero(np.isfinite(seen.spread))[-ASKED:]
        if not often.size:
            return before
        misfits = []
        for jitter in JITTERS:
            logs = self._simulate(best, seen.part(often), jitter, DRAWN)
            spread = np.array([deviation(each) for each in logs])
            ratio = (spread + SMALLEST) / (seen.spread[often] + SMALLEST)
            misfits.append(float((seen.runs[often] * np.abs(np.log(ratio))).sum()))
        return JITTERS[int(np.argmin(misfits))]

    def predict(self, explanations: FloatArray, jitter: float, seen: Observations) -> FloatArray:
        """Expect the makespans of placements by each explanation.

        Returns
        -------
        float64 array, shape [placements, 1 + explanations]
            Mean logarithms of seconds, over runs with jitter.
        """
        columns = [
            self._simulate(values, seen, jitter, SAMPLES).mean(axis=1) for values in explanations
        ]
        return np.stack(columns, axis=1)

    def expect(
        self, problem: Problem, placements: Sequence[Placement], runtime: str, jitter: float
    ) -> FloatArray:
        """Mean logarithms of the seconds of placements of a problem, over runs with jitter."""
        seen = observations(placements, [()] * len(placements), runtime)
        mean: FloatArray = self._sample(problem.arrays, seen, jitter, 2 * SAMPLES).mean(axis=1)
        return mean

    def other(self, explanations: FloatArray, rng: np.random.Generator) -> Factors:
        """Draw the factors of a problem to search, which may not be as the best explanation says.

        Half of them are; others lie between it and another explanation, or have one device or link
        other than it says.
        """
        best, kind = explanations[0], rng.random()
        values = best.copy()
        if 0.5 <= kind < 0.85:
            another = explanations[1 + int(rng.integers(EXPLANATIONS))]
            values += float(rng.choice([0.3, 0.6, 1.0])) * (another - best)
        elif kind >= 0.85:
            links = self._links < self._size and rng.random() < 0.5
            begin, end = (self._links, self._size) if links else (2, self._links)
            change = rng.choice([-1.0, 1.0]) * rng.uniform(0.1, 1.5 if links else 0.5)
            values[int(rng.integers(begin, end))] += change
        return factors_of(np.clip(values, -LIMIT, LIMIT), self.problem.n_devices)

    def _simulate(
        self, values: FloatArray, seen: Observations, jitter: float, samples: int
    ) -> FloatArray:
        """Logarithms of simulated seconds, shape [placements, samples]."""
        return self._sample(self._arrays(values), seen, jitter, samples)

    def _sample(
        self, arrays: Arrays, seen: Observations, jitter: float, samples: int
    ) -> FloatArray:
        logs = np.empty((len(seen.runs), samples if jitter else 1))
        _samples(arrays, seen.devices, seen.priority, seen.ordered, jitter, self._work, logs)
        return logs

    def _shown(self, traced: Iterable[npt.NDArray[np.floating]]) -> tuple[FloatArray, FloatArray]:
        shown = np.full(self._size - 2, np.nan)
        error = np.full(self._size - 2, TRACE_ERROR)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.array([np.log(each.astype(np.float64)) for each in traced])
        if not logs.size:
            return shown, error
        finite = np.isfinite(logs)
        for index in np.flatnonzero(finite.any(axis=0)).tolist():
            seen = logs[finite[:, index], index]
            shown[index] = np.clip(np.median(seen), -LIMIT, LIMIT)
            error[index] += deviation(seen) / np.sqrt(len(seen))
        return shown, error

    def _start_from_traces(self, found: FloatArray, loss: FloatArray, target: _Target) -> None:
        """Offer every explanation the factors that the traces show."""
        known = np.isfinite(target.shown)
        for index in range(1, len(found)):
            values = found[index].copy()
            common = np.repeat(values[:2], [self._links - 2, self._size - self._links])
            values[2:][known] = (target.shown - common)[known]
            new = self._loss(values, target)
            if new < loss[index]:
                found[index], loss[index] = values, new

    def _changed(self, values: FloatArray, rng: np.random.Generator) -> FloatArray:
        changed = values.copy()
        which = int(rng.choice(self._movable))
        kind = rng.random()
        if kind < 0.4:
            changed[which] += rng.normal(0.0, rng.choice([0.02, 0.1, 0.4]))
        elif kind < 0.55:
            changed[which] = 0.0
        elif kind < 0.75:
            changed[which] = rng.laplace(0.0, 0.5)
        else:
            begin, end = (self._links, self._size) if which >= self._links else (2, self._links)
            if which < 2 or end - begin < 2:
                # Shared by all, or the peculiarity of the only one.
                other = int(rng.choice(self._movable))
            else:
                other = int(rng.integers(begin, end))
            changed[which], changed[other] = values[other], values[which]
        return np.clip(changed, -LIMIT, LIMIT)

    def _arrays(self, values: FloatArray) -> Arrays:
        devices, links = factors_of(values, self.problem.n_devices)
        arrays = self.problem.arrays
        scale = np.ones_like(arrays.latency)
        scale[self._source, self._target] = links
        compute, latency = arrays.compute * devices, arrays.latency * scale
        factor = arrays.factor * scale
        for array in (compute, latency, factor):
            # As the believed ones are: kernels are compiled for arrays that cannot be written.
            array.setflags(write=False)
        return arrays._replace(compute=compute, latency=latency, factor=factor)

    def _loss(self, values: FloatArray, target: _Target, limit: float = np.inf) -> float:
        """Negative logarithm of the posterior, up to a constant.

        Anything above ``limit`` once that is exceeded.
        """
        loss = float((np.abs(values) / self._scale).sum())
        logs = np.log(np.concatenate(factors_of(values, self.problem.n_devices)))
        off = np.abs(logs - target.shown) / target.shown_error
        loss += float(np.nansum(np.where(off < BEND, 0.5 * off**2, BEND * (off - 0.5 * BEND))))
        seen = target.seen
        if loss > limit:
            return loss
        return loss + float(
            _misfit(
                self._arrays(values),
                seen.devices,
                seen.priority,
                seen.ordered,
                target.goal,
                target.error,
                BEND,
                limit - loss,
                self._work,
            )
        )
