"""A comparison of champion and challenger on the real system, from the first run to the evidence.

How it decides is told in :mod:`doppler.refinement.trial`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from doppler.errors import PromotionError
from doppler.markdown import markdown_cell, markdown_table
from doppler.refinement.signed_rank import center_interval
from doppler.refinement.trial import Side, Trial, Verdict
from doppler.viewer.units import count_of, format_percent

#: Runs once and returns the makespan, or those of several problems, in seconds.
Measure = Callable[[], float | Sequence[float] | npt.NDArray[np.float64]]


@dataclass(frozen=True)
class PairedResult:
    """What the pairs say, and what was decided.

    Attributes
    ----------
    promote : bool
        Whether the whole interval is below ``1 - min_gain``.
    ratio : float or None
        Makespan of the challenger over that of the champion: Hodges-Lehmann estimate over the
        pairs, of the geometric mean over the problems. None if the challenger failed.
    low, high : float or None
        Interval of ``ratio``; None also if the challenger was given up after too few pairs for one.
    confidence : float
        Of the interval. With several looks it holds at all of them together.
    min_gain : float
        Share by which the challenger must be faster at least.
    p_value : float or None
        One-sided and exact: of the challenger not being faster by ``min_gain``, at one look.
    champion_s, challenger_s : tuple of tuple of float
        Makespans, by pair and problem.
    first : tuple of str
        Who ran first in each pair.
    problems : tuple of str
        Names of the problems.
    planned : int
        Pairs that were to run; fewer ran if a look decided, or a run failed.
    looks, seed : int
    failure : str or None
        Why the challenger failed.
    """

    promote: bool
    ratio: float | None
    low: float | None
    high: float | None
    confidence: float
    min_gain: float
    p_value: float | None
    champion_s: tuple[tuple[float, ...], ...]
    challenger_s: tuple[tuple[float, ...], ...]
    first: tuple[Side, ...]
    problems: tuple[str, ...]
    planned: int
    looks: int
    seed: int
    failure: str | None = None

    @property
    def error(self) -> float:
        """Chance at which a challenger that is no faster would have been promoted."""
        return (1 - self.confidence) / 2

    @property
    def pairs(self) -> int:
        """Pairs that count."""
        return len(self.challenger_s)

    @property
    def by_problem(self) -> dict[str, float]:
        """Hodges-Lehmann estimate of the ratio of each problem."""
        if not self.pairs:
            return {}
        logs = _log_ratios(self.champion_s, self.challenger_s)
        return {
            name: math.exp(center_interval(logs[:, i], 0.5)[0])
            for i, name in enumerate(self.problems)
        }

    @property
    def text(self) -> str:
        """The decision in one line."""
        decided = "promoted" if self.promote else "champion kept"
        if self.ratio is None:
            return f"challenger {self.failure}: {decided}"
        gain = 1 - self.ratio
        found = f"challenger {format_percent(abs(gain))} {'slower' if gain < 0 else 'faster'}"
        pairs = count_of(self.pairs, "pair")
        if self.low is None or self.high is None:
            return f"{found} ({pairs}, no hope left): {decided}"
        least, most = 1 - self.high, 1 - self.low
        if least >= 0 or most <= 0:
            ends = sorted((abs(least), abs(most)))
            interval = f"{100 * ends[0]:.1f} to {format_percent(ends[1])}"
        else:
            interval = f"{format_percent(-least)} slower to {format_percent(most)} faster"
        return f"{found} ({100 * self.confidence:g}% interval {interval}, {pairs}): {decided}"

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON can express it, with what follows from it."""
        derived = {name: getattr(self, name) for name in ("text", "error", "pairs", "by_problem")}
        return asdict(self) | derived


def compare_paired(
    measure_champion: Measure,
    measure_challenger: Measure,
    *,
    pairs: int = 20,
    confidence: float = 0.95,
    min_gain: float = 0.0,
    looks: int = 1,
    warmup: int = 0,
    problems: Sequence[str] | None = None,
    seed: int = 0,
) -> PairedResult:
    """Run champion and challenger in turn and decide by a paired test.

    Drives a :class:`~doppler.refinement.trial.Trial` to its end. The challenger is promoted only if
    the whole interval of the ratio of makespans is below ``1 - min_gain``; so at equal speed with a
    chance of at most ``(1 - confidence) / 2``, and on a tie never. With several ``looks`` the
    comparison may end early, at a look for the challenger, at any pair against it.

    Parameters
    ----------
    measure_champion, measure_challenger : callable
        Run once on the real system and return the makespan in seconds, or one for each problem.
    pairs : int
        Pairs of runs.
    confidence : float
        Of the interval.
    min_gain : float
        Share by which the challenger must be faster: 0.01 asks for 1%.
    looks : int
        How often to look whether it is decided; 1 looks at the end alone.
    warmup : int
        Runs of each that are not counted, before the pairs.
    problems : sequence of str, optional
        Names of the problems.
    seed : int
        Of the order within the pairs.

    Returns
    -------
    PairedResult
        Not promoted, with ``failure``, as soon as a run of the challenger raises or returns what
        is no makespan.

    Raises
    ------
    PromotionError
        If an argument is out of range, or a run of the champion fails.
    """
    if not 0.5 <= confidence < 1:
        raise PromotionError(f"confidence is {confidence!r}, must be at least 0.5 and below 1")
    if warmup < 0:
        raise PromotionError(f"warmup is {warmup!r}, must be at least 0")
    error = (1 - confidence) / 2
    trial = Trial(error, pairs=pairs, looks=looks, min_gain=min_gain, seed=seed)
    measures: dict[Side, Measure] = {
        "champion": measure_champion,
        "challenger": measure_challenger,
    }
    made: dict[Side, list[tuple[float, ...]]] = {side: [] for side in measures}
    names = None if problems is None else tuple(problems)
    failure = None
    try:
        for side in (*measures,) * warmup:
            _run(side, measures[side], names, 0)
        while trial.verdict is Verdict.OPEN:
            side = trial.turn
            makespans = _run(side, measures[side], names, len(trial.differences) + 1)
            names = names or tuple(f"problem {i + 1}" for i in range(len(makespans)))
            made[side].append(makespans)
            trial.observe(math.exp(float(np.log(makespans).mean())))
    except _ChallengerError as error:
        failure = " ".join(str(error).split())
    interval = trial.interval() if failure is None else None
    ratio, low, high = interval or (None, None, None)
    if high == math.inf:
        low = high = None
    counted = len(trial.differences)
    return PairedResult(
        promote=trial.verdict is Verdict.PROMOTED,
        ratio=ratio,
        low=low,
        high=high,
        confidence=confidence,
        min_gain=min_gain,
        p_value=None if interval is None else trial.p_value,
        champion_s=tuple(made["champion"][:counted]),
        challenger_s=tuple(made["challenger"][:counted]),
        first=tuple(trial.first),
        problems=names or (),
        planned=pairs,
        looks=looks,
        seed=seed,
        failure=failure,
    )


def decision_markdown(
    result: PairedResult, champion: str = "champion", challenger: str = "challenger"
) -> str:
    """Write a decision and its evidence as Markdown.

    Parameters
    ----------
    result : PairedResult
    champion, challenger : str
        Ids of the versions that were compared.

    Returns
    -------
    str
        A heading, the decision, and tables of the figures and of the problems.
    """
    rows = [("decision", f"**{'promoted' if result.promote else 'champion kept'}**")]
    if result.ratio is not None:
        rows += [
            ("ratio of makespans", f"{result.ratio:.4f}"),
            ("one-sided p-value", f"{result.p_value:.2g}"),
        ]
    if result.low is not None:
        interval = f"{result.low:.4f} to {result.high:.4f}"
        rows.append((f"{100 * result.confidence:g}% interval", interval))
    if result.failure is not None:
        rows.append(("failure", result.failure))
    looks = f", {count_of(result.looks, 'look')}" if result.looks > 1 else ""
    rows += [
        ("least gain asked for", format_percent(result.min_gain)),
        ("pairs", f"{result.pairs} of {result.planned}{looks}, order seeded with {result.seed}"),
    ]
    lines = [
        f"# {markdown_cell(challenger)} against {markdown_cell(champion)}",
        "",
        f"{markdown_cell(result.text[0].upper() + result.text[1:])}.",
        "",
        markdown_table(("figure", "value"), rows),
    ]
    if result.pairs:
        champions = np.median(np.array(result.champion_s), axis=0)
        challengers = np.median(np.array(result.challenger_s), axis=0)
        problems = [
            (name, f"{was:.4g}", f"{now:.4g}", f"{ratio:.4f}")
            for (name, ratio), was, now in zip(
                result.by_problem.items(), champions, challengers, strict=True
            )
        ]
        columns = ("problem", "champion, median s", "challenger, median s", "ratio")
        lines += ["", markdown_table(columns, problems)]
    return "\n".join(lines) + "\n"


class _ChallengerError(Exception):
    """A run of the challenger failed."""


def _run(
    side: Side, measure: Measure, problems: tuple[str, ...] | None, pair: int
) -> tuple[float, ...]:
    try:
        return _makespans(measure(), problems)
    except Exception as error:
        where = f"pair {pair}" if pair > 0 else "the warm-up"
        reason = f"failed in {where} ({type(error).__name__}: {error})"
        if side == "challenger":
            raise _ChallengerError(reason) from error
        raise PromotionError(f"the champion {reason}, so nothing is decided") from error


def _makespans(
    run: float | Sequence[float] | npt.NDArray[np.float64], problems: tuple[str, ...] | None
) -> tuple[float, ...]:
    values = tuple(float(x) for x in np.atleast_1d(np.asarray(run, dtype=np.float64)).ravel())
    for value in values:
        if not (math.isfinite(value) and value > 0):
            raise PromotionError(f"measured {value!r} s, must be a finite time above 0")
    if not values or (problems is not None and len(values) != len(problems)):
        raise PromotionError(
            f"measured {count_of(len(values), 'makespan')}, must be {len(problems or ()) or 1}"
        )
    return values


def _log_ratios(
    champion: Sequence[Sequence[float]], challenger: Sequence[Sequence[float]]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Logarithm of challenger over champion, shape [pairs, problems]."""
    logs: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = np.log(challenger) - np.log(champion)
    return logs
