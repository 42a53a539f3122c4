"""Fidelity: simulated against measured makespans, over placements of many kinds."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from doppler.engine import Backend, Engine
from doppler.errors import DopplerError, MemoryLimitError
from doppler.files import write_atomic
from doppler.methods import LEARNED, solve
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.profiling.load import OtherLoad
from doppler.simulator import simulate
from doppler.viewer.page import render
from doppler.viewer.palette import colour
from doppler.viewer.units import format_percent, format_seconds, seconds_unit, significant, ticks

IntArray = npt.NDArray[np.int32]

#: Shares of the ops that random placements give to the first device, the rest to the others.
SKEWS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
#: Shares of the ops of good placements that are moved to random devices.
MOVED = (0.05, 0.2, 0.4)
#: A placement is balanced if its busiest device has at most so many times its fair share.
BALANCED = 1.15
#: Cores that other processes may use while a run counts as calm.
CALM = 0.1
_OFFENDERS = 5
_WIDTH, _HEIGHT = 460, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 12, 40


@dataclass(frozen=True, eq=False)
class Candidate:
    """A placement that is to be simulated and measured.

    Attributes
    ----------
    kind : str
        How it was made, for people: ``"heft"``, ``"random, 70% on one device"``.
    placement : Placement
    """

    kind: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class Point:
    """One placement, simulated and measured.

    Attributes
    ----------
    kind : str
    simulated_s, measured_s : float
        Makespans; the measured one is the median of the runs.
    spread_s : float
        Median absolute deviation of the runs.
    balance : float
        Work of the busiest device over its fair share; 1 is even.
    calm : int
        Runs that count during which the machine did nothing else; with 0, other runs count.
    """

    kind: str
    simulated_s: float
    measured_s: float
    spread_s: float
    balance: float
    calm: int = 0

    @property
    def ratio(self) -> float:
        """Measured over simulated."""
        return self.measured_s / self.simulated_s


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How well the simulator tells the makespans of one graph.

    Attributes
    ----------
    name : str
        Of the graph.
    ops, devices : int
    points : tuple of Point
    """

    name: str
    ops: int
    devices: int
    points: tuple[Point, ...]

    @property
    def balanced(self) -> tuple[Point, ...]:
        """The placements that give no device much more than its share.

        Single devices and skewed placements make the spread wide and a correlation easy; these are
        what one chooses from.
        """
        return tuple(point for point in self.points if point.balance <= BALANCED)

    @property
    def ratio(self) -> float:
        """Median of measured over simulated."""
        return median(point.ratio for point in self.points)

    @property
    def noise(self) -> float:
        """Median of the deviation of the runs of a placement over their median."""
        return median(point.spread_s / point.measured_s for point in self.points)

    @property
    def error(self) -> float:
        """Median of ``|measured / simulated - 1|``."""
        return median(abs(point.ratio - 1.0) for point in self.points)

    def offenders(self, count: int = _OFFENDERS) -> tuple[Point, ...]:
        """Return the placements whose ratio is farthest from the usual one, the worst first."""
        usual = self.ratio
        ranked = sorted(self.points, key=lambda p: -abs(math.log(p.ratio / usual)))
        return tuple(ranked[:count])

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form: correlations, counts and every point."""
        pearson, spearman = correlations(self.points)
        balanced = self.balanced
        among_pearson, among_spearman = correlations(balanced)
        return {
            "pearson": pearson,
            "spearman": spearman,
            "placements": len(self.points),
            "balanced": {
                "pearson": among_pearson,
                "spearman": among_spearman,
                "placements": len(balanced),
            },
            "ratio": self.ratio,
            "error": self.error,
            "noise": self.noise,
            "disturbed": sum(not point.calm for point in self.points),
            "ops": self.ops,
            "devices": self.devices,
            "worst": [_point(point) for point in self.offenders()],
            "points": [_point(point) for point in self.points],
        }


def correlations(points: Sequence[Point]) -> tuple[float | None, float | None]:
    """Pearson's and Spearman's coefficient of simulated and measured makespans.

    Returns
    -------
    pearson, spearman : float or None
        None where fewer than three points, or equal ones, tell nothing.
    """
    from scipy import stats

    simulated = [point.simulated_s for point in points]
    measured = [point.measured_s for point in points]
    if len(points) < 3 or len(set(simulated)) < 2 or len(set(measured)) < 2:
        return None, None
    return (
        float(stats.pearsonr(simulated, measured).statistic),
        float(stats.spearmanr(simulated, measured).statistic),
    )


def diverse_placements(problem: Problem, count: int = 48, seed: int = 0) -> list[Candidate]:
    """Make placements as different as those that one may meet.

    Every single device, every heuristic, the policy's greedy and sampled episodes, local search
    with little and more time, good placements with some ops moved at random, cuts of the graph in
    topological order, and random placements with several skews.

    Parameters
    ----------
    problem : Problem
    count : int
        How many, at least. Random ones make up the number.
    seed : int

    Returns
    -------
    list of Candidate
        All different, each within the memory of the devices as far as the method minds it.
    """
    found: list[Candidate] = []
    seen: set[tuple[bytes, bytes]] = set()
    draw = np.random.default_rng(seed)
    for candidate in _candidates(problem, draw, seed):
        placement = candidate.placement
        order = b"" if placement.priority is None else placement.priority.tobytes()
        key = (placement.devices.tobytes(), order)
        if key not in seen:
            seen.add(key)
            found.append(candidate)
    # Endless where the graph has more placements than that.
    most = float(problem.n_devices) ** min(problem.n_ops, 60)
    for place, candidate in enumerate(_random(problem, draw)):
        key = (candidate.placement.devices.tobytes(), b"")
        if key not in seen:
            seen.add(key)
            found.append(candidate)
        if len(found) >= count or place > 2 * min(most, 10.0 * count):
            break
    return found


def measure_fidelity(
    problem: Problem,
    backend: Backend,
    candidates: Sequence[Candidate],
    *,
    rounds: int = 5,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Fidelity:
    """Simulate and measure every placement.

    The placements are run in turns, in another order each round, so that what the machine does
    meanwhile hits all of them; two runs warm up and do not count. A run during which other
    processes took more than ``CALM`` of a core is repeated in further rounds, at most as many
    again; runs that were disturbed count only where a placement has no other.

    Parameters
    ----------
    problem : Problem
        Of an executable graph, on a cluster that stands for the backend.
    backend : Backend
    candidates : sequence of Candidate
        At least one.
    rounds : int
        Runs of each placement.
    seed : int
        Of the orders.
    progress : callable, optional
        Told how many runs of how many are done.

    Raises
    ------
    DopplerError
        If the graph cannot run, or rounds is below 1 or there is no placement.
    """
    if rounds < 1 or not candidates:
        raise DopplerError(f"fidelity: {rounds} rounds of {len(candidates)} placements; give more")
    simulated = [simulate(problem, candidate.placement).makespan for candidate in candidates]
    taken = _run_all(problem, backend, candidates, rounds, seed, progress)
    points = []
    for candidate, seconds, (calm, others) in zip(candidates, simulated, taken, strict=True):
        runs = calm or others
        middle = median(runs)
        spread = median(abs(run - middle) for run in runs)
        balance = _balance(problem, candidate.placement)
        points.append(Point(candidate.kind, seconds, middle, spread, balance, len(calm)))
    return Fidelity(problem.graph.name, problem.n_ops, problem.n_devices, tuple(points))


def _run_all(
    problem: Problem,
    backend: Backend,
    candidates: Sequence[Candidate],
    rounds: int,
    seed: int,
    progress: Callable[[int, int], None],
) -> list[tuple[list[float], list[float]]]:
    """Return the makespans of the calm and of the other runs of each placement."""
    taken: list[tuple[list[float], list[float]]] = [([], []) for _ in candidates]
    mix = random.Random(seed)
    load = OtherLoad()
    with Engine(problem.graph, backend, seed=seed) as engine:
        for candidate in (candidates[0], candidates[-1]):
            engine.run(candidate.placement)
        for turn in range(2 * rounds):
            order = [index for index, (calm, _) in enumerate(taken) if len(calm) < rounds]
            if turn == rounds and not any(calm for calm, _ in taken):
                break  # Never calm: more of the same tells no more.
            mix.shuffle(order)
            done = sum(len(calm) + len(others) for calm, others in taken)
            of = max(rounds * len(candidates), done + len(order))
            for place, index in enumerate(order, start=1):
                load.look()
                makespan = engine.run(candidates[index].placement).makespan
                taken[index][load.look() > CALM].append(makespan)
                progress(done + place, of)
    return taken


def save_fidelity(
    results: Sequence[Fidelity],
    json_path: str | os.PathLike[str],
    html_path: str | os.PathLike[str],
    about: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write the figures by the name of the graph as JSON, and a page that shows them.

    Parameters
    ----------
    results : sequence of Fidelity
    json_path, html_path : path-like
    about : mapping, optional
        What the page says about the machine, by name.

    Raises
    ------
    DopplerError
        If a file cannot be written.
    """
    data = {result.name: result.to_json() for result in results}
    page = render_fidelity(results, about)
    return [
        write_atomic(html_path, page),
        write_atomic(json_path, json.dumps(data, indent=1, allow_nan=False) + "\n"),
    ]


def render_fidelity(results: Sequence[Fidelity], about: Mapping[str, Any] | None = None) -> str:
    """Show results as one self-contained HTML page: a scatter plot and the worst of each graph."""
    from markupsafe import Markup

    graphs = []
    for result in results:
        figures = result.to_json()
        kinds = _kinds(result.points)
        graphs.append(
            {
                "name": result.name,
                "size": f"{result.ops:,} ops on {result.devices} devices",
                "pearson": _coefficient(figures["pearson"]),
                "spearman": _coefficient(figures["spearman"]),
                "placements": len(result.points),
                "balanced_pearson": _coefficient(figures["balanced"]["pearson"]),
                "balanced_spearman": _coefficient(figures["balanced"]["spearman"]),
                "balanced": figures["balanced"]["placements"],
                "ratio": f"{result.ratio:.3f}",
                "error": format_percent(result.error),
                "svg": Markup(scatter_svg(result)),
                "legend": [
                    {"name": kind, "colour": colour(place)} for kind, place in kinds.items()
                ],
                "disturbed": figures["disturbed"],
                "worst": [_shown(point) for point in result.offenders()],
            }
        )
    return render(
        "doppler.evaluation",
        "fidelity.html",
        title="Doppler: simulated and measured",
        subtitle="; ".join(f"{name}: {value}" for name, value in (about or {}).items()),
        graphs=graphs,
        limit=format_percent(BALANCED - 1, 0),
    )


def scatter_svg(result: Fidelity) -> str:
    """Draw measured over simulated makespans as one SVG element, with the line of equality."""
    kinds = _kinds(result.points)
    largest = max(max(p.simulated_s, p.measured_s + p.spread_s) for p in result.points) * 1.04
    scale, unit = seconds_unit(largest)

    def across(seconds: float) -> float:
        return _LEFT + seconds / largest * (_WIDTH - _LEFT - _RIGHT)

    def down(seconds: float) -> float:
        return _HEIGHT - _BOTTOM - seconds / largest * (_HEIGHT - _TOP - _BOTTOM)

    parts: list[str] = []
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for tick in ticks(largest / scale):
        x, y, label = across(tick * scale), down(tick * scale), significant(tick, 3)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{label}</text>')
    parts.append(
        f'<line class="equal" x1="{across(0):.1f}" y1="{down(0):.1f}" '
        f'x2="{across(largest):.1f}" y2="{down(largest):.1f}"/>'
    )
    parts.append(
        f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">'
        f"simulated, {unit}</text>"
    )
    parts.append(
        f'<text transform="translate(13 {(_TOP + bottom) / 2}) rotate(-90)" '
        f'text-anchor="middle">measured, {unit}</text>'
    )
    for point in result.points:
        x, y = across(point.simulated_s), down(point.measured_s)
        fill = colour(kinds[_family(point.kind)])
        high, low = down(point.measured_s + point.spread_s), down(point.measured_s - point.spread_s)
        title = escape(
            f"{point.kind}: simulated {format_seconds(point.simulated_s)}, "
            f"measured {format_seconds(point.measured_s)} ± {format_seconds(point.spread_s, 2)}"
        )
        parts.append(
            f'<g><title>{title}</title><path class="spread" d="M{x:.1f} {high:.1f}V{low:.1f}"/>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}"/></g>'
        )
    label = escape(f"Measured against simulated makespans of {result.name}", quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="scatter" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    )


def _candidates(problem: Problem, draw: np.random.Generator, seed: int) -> Iterator[Candidate]:
    count = problem.n_devices
    for device, named in enumerate(problem.cluster.devices):
        devices = np.full(problem.n_ops, device, np.int32)
        yield Candidate(f"single device {named.name}", _legal(problem, devices))
    methods = ("round_robin", "critical_path", "heft", "enumerative", "sibling_affinity")
    good: list[Candidate] = []
    for method in methods:
        good += _solved(problem, method, method, budget=0.0, seed=seed)
    good += _solved(problem, LEARNED, "policy, greedy", budget=0.0, seed=seed)
    for number, budget in enumerate((0.05, 0.3, 1.0)):
        label = f"local search, {budget:g} s"
        good += _solved(problem, "local_search", label, budget=budget, seed=seed + number)
    good += _solved(problem, LEARNED, "policy and search, 1 s", budget=1.0, seed=seed)
    yield from good
    yield from _episodes(problem, 4, seed)
    for place, candidate in enumerate(good):
        share = MOVED[place % len(MOVED)]
        devices = candidate.placement.devices.copy()
        chosen = draw.random(devices.size) < share
        devices[chosen] = draw.integers(0, count, int(chosen.sum()))
        moved = _legal(problem, devices, candidate.placement.priority)
        yield Candidate(f"{candidate.kind}, {share:.0%} of the ops moved", moved)
    for share in (0.25, 0.5, 0.75):
        yield Candidate(f"cut at {share:.0%} of the ops", _cut(problem, share))


def _solved(
    problem: Problem, method: str, kind: str, *, budget: float, seed: int
) -> list[Candidate]:
    try:
        found = solve(problem, method, budget=budget, seed=seed)
    except MemoryLimitError:
        return []
    return [Candidate(kind, found.placement)]


def _episodes(problem: Problem, count: int, seed: int) -> Iterator[Candidate]:
    """Sample episodes of the policy, good or not."""
    # Imported late, as the method does: torch-geometric takes a second.
    import torch

    from doppler.methods import PRETRAINED
    from doppler.policy.checkpoint import load_policy
    from doppler.policy.network import policy_inputs
    from doppler.policy.rollout import SAMPLE, Roller

    policy = load_policy(PRETRAINED)
    with torch.no_grad():
        weights = policy.weights(policy(policy_inputs(problem)))
    episodes = Roller(problem).play(weights, SAMPLE, [seed + place for place in range(count)])
    for place in range(count):
        placement = Placement(episodes.devices(place), episodes.priority(place))
        yield Candidate("policy, sampled", placement)


def _legal(problem: Problem, devices: IntArray, priority: IntArray | None = None) -> Placement:
    """Bring ops from devices that cannot run them to one that can, groups to one device."""
    compute, group = problem.arrays.compute, problem.arrays.group
    devices = devices.copy()
    stuck = ~np.isfinite(compute[np.arange(problem.n_ops), devices])
    devices[stuck] = compute[stuck].argmin(axis=1)
    grouped = np.flatnonzero(group >= 0)
    if grouped.size:
        _, first = np.unique(group[grouped], return_index=True)
        devices[grouped] = devices[grouped[first]][group[grouped]]
    return Placement(devices, priority)


def _cut(problem: Problem, share: float) -> Placement:
    """Give the first ops in topological order to one device and the others to the rest."""
    order = problem.arrays.order
    devices = np.zeros(problem.n_ops, np.int32)
    later = order[int(share * order.size) :]
    devices[later] = 1 + np.arange(later.size) % max(1, problem.n_devices - 1)
    return _legal(problem, np.minimum(devices, problem.n_devices - 1))


def _random(problem: Problem, draw: np.random.Generator) -> Iterator[Candidate]:
    count = problem.n_devices
    while True:
        for skew in SKEWS:
            favoured = int(draw.integers(count))
            devices = draw.integers(0, count, problem.n_ops)
            devices[draw.random(problem.n_ops) < (skew * count - 1) / max(1, count - 1)] = favoured
            kind = f"random, {skew:.0%} on one device" if skew > 1 / count else "random"
            yield Candidate(kind, _legal(problem, devices.astype(np.int32)))


def _balance(problem: Problem, placement: Placement) -> float:
    seconds = problem.arrays.compute[np.arange(problem.n_ops), placement.devices]
    loads = np.bincount(placement.devices, seconds, problem.n_devices)
    return float(loads.max() / loads.mean())


def _family(kind: str) -> str:
    """Return the first words of a kind, by which it is coloured."""
    if "moved" in kind:
        return "ops moved at random"
    if kind.startswith(("random", "policy", "local search", "single device", "cut")):
        return next(
            word
            for word in ("random", "policy", "local search", "single device", "cut")
            if kind.startswith(word)
        )
    return "heuristics"


def _kinds(points: Sequence[Point]) -> dict[str, int]:
    return {
        kind: place
        for place, kind in enumerate(dict.fromkeys(_family(point.kind) for point in points))
    }


def _point(point: Point) -> dict[str, Any]:
    return {
        "kind": point.kind,
        "simulated_s": point.simulated_s,
        "measured_s": point.measured_s,
        "spread_s": point.spread_s,
        "ratio": point.ratio,
        "balance": point.balance,
        "calm_runs": point.calm,
    }


def _shown(point: Point) -> dict[str, str]:
    return {
        "kind": point.kind,
        "simulated": format_seconds(point.simulated_s),
        "measured": f"{format_seconds(point.measured_s)} ± {format_seconds(point.spread_s, 2)}",
        "ratio": f"{point.ratio:.3f}",
    }


def _coefficient(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
