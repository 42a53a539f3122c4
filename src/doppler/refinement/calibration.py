"""Fit the simulator to measured runs: a factor for every device and every link."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Generator, Iterator, Sequence
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
# Measurements between two looks at the jitter.
JITTER_EVERY = 8
# Simulated ops, all placements together, between two pauses: a few milliseconds.
SLICE_OPS = 100_000
# Shortest modelled duration, as a share of the longest, that a trace is compared with.
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


class TraceFactors(NamedTuple):
    """Factors that one trace shows; nan where it shows none.

    Attributes
    ----------
    devices, links
        As for :class:`Factors`.
    """

    devices: FloatArray
    links: FloatArray


def trace_factors(problem: Problem, trace: Trace) -> TraceFactors:
    """Compare a trace's durations with the modelled ones: medians, weighted by the modelled time.

    Parameters
    ----------
    problem : Problem
        As believed.
    trace : Trace
        Of a run of its graph on as many devices.
    """
    arrays = problem.arrays
    modelled = arrays.compute[trace.op, trace.device]
    devices = np.full(problem.n_devices, np.nan)
    for device in range(problem.n_devices):
        here = trace.device == device
        devices[device] = _ratio((trace.end - trace.start)[here], modelled[here])
    pair = trace.transfer_source, trace.transfer_target
    moving = arrays.latency[pair] + arrays.volume[trace.transfer_op] * arrays.factor[pair]
    taken = trace.transfer_end - trace.transfer_start
    links = np.full(len(problem.cluster.links), np.nan)
    for index, link in enumerate(problem.cluster.links):
        here = (pair[0] == link.source) & (pair[1] == link.target)
        links[index] = _ratio(taken[here], moving[here])
    return TraceFactors(devices, links)


def _ratio(measured: FloatArray, modelled: FloatArray) -> float:
    known = np.isfinite(modelled) & (measured > 0)
    known &= modelled > SHORTEST * modelled.max(initial=0.0)
    if not known.any():
        return float("nan")
    ratio, weight = measured[known] / modelled[known], modelled[known]
    order = np.argsort(ratio, kind="stable")
    reached = np.cumsum(weight[order])
    return float(ratio[order][np.searchsorted(reached, 0.5 * reached[-1])])


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

    def part(self, placements: slice) -> Observations:
        """Return some of the placements, without a copy."""
        return Observations(
            self.devices[placements],
            self.priority[placements],
            self.ordered[placements],
            self.target[placements],
            self.spread[placements],
            self.runs[placements],
        )


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


@dataclasses.dataclass
class _Explanation:
    """Logarithms that explain the measurements, and how badly they do."""

    values: FloatArray
    loss: float


class Calibration:
    """A few explanations of what was measured, each a set of factors.

    The logarithm of a factor is the sum of a part that all devices (or all links) share and a part
    of its own; the priors of both (Laplace) say that most factors are as believed. The likelihood
    is Huber's, of the logarithm of the simulated makespan against the measured one. An explanation
    is improved by random changes that are accepted as in Metropolis et al. (1953): a step of one
    value, a value put back to 0 or drawn anew, or exchanged with another, which asks "was it that
    device instead of this one?". The best explanation is the calibration; how the others differ
    from it shows what the measurements leave open.

    Parameters
    ----------
    problem : Problem
        As believed.
    seed : int

    Attributes
    ----------
    jitter : float
        Standard deviation of the logarithm of a duration from run to run, such that simulated
        makespans vary as measured ones do.
    """

    def __init__(self, problem: Problem, seed: int = 0) -> None:
        self.problem = problem
        self._rng = np.random.default_rng([seed, 5])
        n_devices, n_links = problem.n_devices, len(problem.cluster.links)
        self._source = np.array([link.source for link in problem.cluster.links], np.int64)
        self._target = np.array([link.target for link in problem.cluster.links], np.int64)
        # The shared parts of devices and links, then each device's own, then each link's own.
        self._devices = slice(2, 2 + n_devices)
        self._links = slice(2 + n_devices, 2 + n_devices + n_links)
        self._size = 2 + n_devices + n_links
        self._scale = np.full(self._size, PECULIAR)
        self._scale[:2] = COMMON
        self._movable = np.arange(self._size)
        if n_links == 0:
            self._movable = np.delete(self._movable, 1)
        self._observations: Observations | None = None
        self._goal = self._error = np.empty(0)
        self.jitter = 0.0
        self._seen = 0
        self._traced: deque[FloatArray] = deque(maxlen=TRACED)
        self._shown = np.full(n_devices + n_links, np.nan)
        self._shown_error = np.full(n_devices + n_links, TRACE_ERROR)
        self._work: Workspace = make_workspace(problem.n_ops, n_devices, 0)
        self._best = _Explanation(np.zeros(self._size), 0.0)
        self._all = [_Explanation(np.zeros(self._size), 0.0) for _ in range(EXPLANATIONS)]

    @property
    def factors(self) -> Factors:
        """Those of the best explanation."""
        return self._factors(self._best.values)

    def explanation(self, index: int) -> Factors:
        """Return one of the explanations, ``index`` modulo their number."""
        return self._factors(self._all[index % EXPLANATIONS].values)

    def between(self, index: int, share: float) -> Factors:
        """Return factors on the way from the best explanation to another."""
        best, other = self._best.values, self._all[index % EXPLANATIONS].values
        return self._factors(best + share * (other - best))

    def what_if(self, rng: np.random.Generator) -> Factors:
        """Return the best explanation with one device, or one link, other than it says."""
        values = self._best.values.copy()
        links = self._links.start < self._size and rng.random() < 0.5
        part = self._links if links else self._devices
        which = int(rng.integers(part.start, part.stop))
        values[which] += rng.choice([-1.0, 1.0]) * rng.uniform(0.1, 1.5 if links else 0.5)
        return self._factors(np.clip(values, -LIMIT, LIMIT))

    def see_trace(self, shown: TraceFactors) -> None:
        """Take what a trace shows; it binds the factors far more closely than makespans do."""
        with np.errstate(divide="ignore", invalid="ignore"):
            self._traced.append(np.log(np.concatenate(shown)))
        logs = np.stack(self._traced)
        count = np.isfinite(logs).sum(axis=0)
        for index in np.flatnonzero(count).tolist():
            seen = logs[np.isfinite(logs[:, index]), index]
            middle = float(np.median(seen))
            deviation = 1.4826 * float(np.median(np.abs(seen - middle)))
            self._shown[index] = min(max(middle, -LIMIT), LIMIT)
            self._shown_error[index] = TRACE_ERROR + deviation / np.sqrt(len(seen))

    def see(self, seen: Observations) -> Iterator[None]:
        """Take the measurements, in place of those before; with pauses.

        A placement may take far longer with jitter than without, since a late op can change the
        order of many. By how much is simulated once, by the best explanation, and taken off what
        was measured; explanations are then held against it without jitter, which is quick.
        """
        self._observations = None
        if self._seen % JITTER_EVERY == 0:
            yield from self._measure_jitter(seen)
        self._seen += 1
        with_jitter = yield from self._simulate(self._best, seen, self.jitter, SAMPLES)
        without = yield from self._simulate(self._best, seen, 0.0, 1)
        self._goal = seen.target - with_jitter.mean(axis=1) + without[:, 0]
        spread = np.where(np.isfinite(seen.spread), seen.spread, with_jitter.std(axis=1))
        spread = np.clip(spread, LEAST_SPREAD, MOST_SPREAD)
        # How far off the simulated expectation may be, too.
        variance = spread**2 / seen.runs + with_jitter.var(axis=1) / SAMPLES
        self._error = np.sqrt(MODEL_ERROR**2 + variance)
        self._observations = seen
        for each in [self._best, *self._all]:
            each.loss = yield from self._loss(each.values)
        self._keep_best()

    def improve(self, changes: int) -> Iterator[None]:
        """Try random changes of the explanations by turns, with pauses."""
        if self._observations is None:
            return
        if np.isfinite(self._shown).any():
            yield from self._start_from_traces()
        for number in range(changes):
            each = self._all[number % EXPLANATIONS]
            values = self._changed(each.values)
            limit = each.loss + self._rng.exponential()
            loss = yield from self._loss(values, limit)
            if loss <= limit:
                each.values, each.loss = values, loss
                if loss < self._best.loss:
                    self._best = dataclasses.replace(each)

    def predict(self, seen: Observations) -> Generator[None, None, FloatArray]:
        """Expect the makespans of placements by the best explanation and each of the others.

        Returns
        -------
        float64 array, shape [1 + explanations, placements]
            Mean logarithms of seconds, over runs with jitter.
        """
        rows = []
        for each in [self._best, *self._all]:
            logs = yield from self._simulate(each, seen, self.jitter, SAMPLES)
            rows.append(logs.mean(axis=1))
        return np.stack(rows)

    def expect(self, problem: Problem, placements: Sequence[Placement], runtime: str) -> FloatArray:
        """Mean logarithms of the seconds of placements of a problem, over runs with jitter."""
        seen = observations(placements, [()] * len(placements), runtime)
        logs = np.empty((len(placements), 2 * SAMPLES if self.jitter else 1))
        _samples(
            problem.arrays,
            seen.devices,
            seen.priority,
            seen.ordered,
            self.jitter,
            self._work,
            logs,
        )
        mean: FloatArray = logs.mean(axis=1)
        return mean

    def _simulate(
        self, explanation: _Explanation, seen: Observations, jitter: float, samples: int
    ) -> Generator[None, None, FloatArray]:
        """Logarithms of simulated seconds, shape [placements, samples]; with pauses."""
        arrays = self._arrays(explanation.values)
        logs = np.empty((len(seen.runs), samples if jitter else 1))
        for some in self._slices(len(logs), logs.shape[1]):
            part = seen.part(some)
            _samples(
                arrays, part.devices, part.priority, part.ordered, jitter, self._work, logs[some]
            )
            yield
        return logs

    def _measure_jitter(self, seen: Observations) -> Iterator[None]:
        """Choose the jitter that makes makespans vary as they were measured to."""
        often = np.flatnonzero(np.isfinite(seen.spread))[-ASKED:]
        if not often.size:
            return
        misfits = []
        for jitter in JITTERS:
            misfit = 0.0
            for index in often.tolist():
                one = slice(index, index + 1)
                logs = yield from self._simulate(self._best, seen.part(one), jitter, DRAWN)
                ratio = (deviation(logs[0]) + SMALLEST) / (seen.spread[index] + SMALLEST)
                misfit += seen.runs[index] * abs(float(np.log(ratio)))
            misfits.append(misfit)
        self.jitter = JITTERS[int(np.argmin(misfits))]

    @property
    def state(self) -> FloatArray:
        """All explanations, the best first, shape [1 + explanations, values]."""
        return np.stack([each.values for each in [self._best, *self._all]])

    def restore(self, state: FloatArray) -> None:
        """Take up explanations that :attr:`state` gave.

        Raises
        ------
        ValueError
            If they are of another shape, or not finite.
        """
        if state.shape != (1 + EXPLANATIONS, self._size) or not np.isfinite(state).all():
            raise ValueError("explanations of another problem")
        values = np.clip(state, -LIMIT, LIMIT)
        self._best = _Explanation(values[0].copy(), 0.0)
        self._all = [_Explanation(row.copy(), 0.0) for row in values[1:]]

    def _keep_best(self) -> None:
        least = min(self._all, key=lambda each: each.loss)
        if least.loss < self._best.loss:
            self._best = dataclasses.replace(least)

    def _start_from_traces(self) -> Iterator[None]:
        """Offer every explanation the factors that the traces show."""
        n_devices = self.problem.n_devices
        known = np.isfinite(self._shown)
        for each in self._all:
            values = each.values.copy()
            common = np.repeat(values[:2], [n_devices, self._size - 2 - n_devices])
            values[2:][known] = (self._shown - common)[known]
            loss = yield from self._loss(values)
            if loss < each.loss:
                each.values, each.loss = values, loss
        self._keep_best()

    def _changed(self, values: FloatArray) -> FloatArray:
        rng = self._rng
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
            part = self._links if which >= self._links.start else self._devices
            if which < 2 or part.stop - part.start < 2:
                # Shared by all, or the peculiarity of the only one.
                other = int(rng.choice(self._movable))
            else:
                other = int(rng.integers(part.start, part.stop))
            changed[which], changed[other] = values[other], values[which]
        return np.clip(changed, -LIMIT, LIMIT)

    def _logs(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        return values[0] + values[self._devices], values[1] + values[self._links]

    def _factors(self, values: FloatArray) -> Factors:
        devices, links = self._logs(values)
        return Factors(np.exp(devices), np.exp(links))

    def _arrays(self, values: FloatArray) -> Arrays:
        devices, links = self._factors(values)
        arrays = self.problem.arrays
        scale = np.ones_like(arrays.latency)
        scale[self._source, self._target] = links
        compute, latency, factor = (
            arrays.compute * devices,
            arrays.latency * scale,
            arrays.factor * scale,
        )
        for array in (compute, latency, factor):
            array.setflags(write=False)
        return arrays._replace(compute=compute, latency=latency, factor=factor)

    def _slices(self, count: int, samples: int = 1) -> Iterator[slice]:
        size = max(1, SLICE_OPS // (self.problem.n_ops * samples))
        return (slice(start, min(start + size, count)) for start in range(0, count, size))

    def _loss(self, values: FloatArray, limit: float = np.inf) -> Generator[None, None, float]:
        """Negative logarithm of the posterior, up to a constant; with pauses.

        Anything above ``limit`` once that is exceeded.
        """
        loss = float((np.abs(values) / self._scale).sum())
        off = np.abs(np.concatenate(self._logs(values)) - self._shown) / self._shown_error
        huber = np.where(off < BEND, 0.5 * off**2, BEND * (off - 0.5 * BEND))
        loss += float(np.nansum(huber))
        seen = self._observations
        if seen is None:
            return loss
        arrays = self._arrays(values)
        for some in self._slices(len(seen.runs)):
            if loss > limit:
                break
            part = seen.part(some)
            loss += float(
                _misfit(
                    arrays,
                    part.devices,
                    part.priority,
                    part.ordered,
                    self._goal[some],
                    self._error[some],
                    BEND,
                    limit - loss,
                    self._work,
                )
            )
            yield
        return loss
