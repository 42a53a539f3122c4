"""How often Stage III promotes a placement that is no faster, and what it takes to see a gain.

A refinement is simulated as it decides: every placement that the guard lets it explore is a new
one, is tested against the champion if its run looked faster, and all tests share the error of a
month. Each placement takes as long as the champion, or 0.5% longer, but for the noise of the
machine. The share of refinements that promote any must not be above the error; nor that of months
of nightly comparisons of equals that do.

Of gains it shows how many pairs a test takes to promote, and how often it does.

``python benchmarks/false_promotions.py [--json] [--refinements N] [--runs N]``; about a minute.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.markdown import markdown_table
from doppler.refinement.budget import Spent, next_error
from doppler.refinement.guard import Ledger
from doppler.refinement.settings import ErrorBudget, Guard
from doppler.refinement.trial import Trial, Verdict

REFINEMENTS, RUNS = 2000, 400
NIGHTS = 30
# As in doppler.refinement: what a run must show for its placement to be tested.
LEAST_GAIN = 0.003
TIME = "2026-01-01T00:00:00+00:00"

Floats = npt.NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], Floats]


class System(NamedTuple):
    """A machine on which nothing is faster than the champion.

    Attributes
    ----------
    noise : callable
        Draws what the runs of a refinement take, one after another, as logarithms of seconds.
    challenger : float
        Seconds of every other placement over the champion's.
    """

    noise: Noise
    challenger: float = 1.0


def gaussian(rng: np.random.Generator, runs: int) -> Floats:
    """Draw 2% noise."""
    return 0.02 * rng.standard_normal(runs)


def student(rng: np.random.Generator, runs: int) -> Floats:
    """Draw noise of Student's t with two degrees of freedom: no variance."""
    return np.clip(0.02 * rng.standard_t(2, runs), -3.0, 3.0)


def stalls(rng: np.random.Generator, runs: int) -> Floats:
    """Draw stalls, Pareto distributed without a mean, in one run of ten."""
    stall = np.where(rng.random(runs) < 0.1, rng.pareto(1.0, runs), 0.0)
    return gaussian(rng, runs) + np.log1p(np.minimum(stall, 20.0))


def speeding_up(rng: np.random.Generator, runs: int) -> Floats:
    """Each run is 0.2% faster than the one before."""
    return gaussian(rng, runs) - 0.002 * np.arange(runs)


def slowing_down(rng: np.random.Generator, runs: int) -> Floats:
    """Each run is 0.2% slower than the one before."""
    return gaussian(rng, runs) + 0.002 * np.arange(runs)


def busy(rng: np.random.Generator, runs: int) -> Floats:
    """Be up to 20% slower for some ten runs at a time."""
    lasting = np.cumsum(rng.random(runs) < 0.1)
    return gaussian(rng, runs) + 0.2 * rng.random(runs + 1)[lasting]


SYSTEMS = {
    "gaussian": System(gaussian),
    "student, 2 degrees": System(student),
    "stalls": System(stalls),
    "speeds up 0.2% a run": System(speeding_up),
    "slows down 0.2% a run": System(slowing_down),
    "busy for some runs": System(busy),
    "gaussian, 0.5% slower": System(gaussian, 1.005),
    "stalls, 0.5% slower": System(stalls, 1.005),
}


class Outcome(NamedTuple):
    """What came of a refinement.

    Attributes
    ----------
    promoted : bool
        Whether it promoted anything; it ends there.
    tests : int
    spent : float
        Of the month's error.
    """

    promoted: bool
    tests: int
    spent: float


def refinement(system: System, seed: int, runs: int, budget: ErrorBudget) -> Outcome:
    """Simulate a refinement in which every other placement is no faster than the champion."""
    rng = np.random.default_rng(seed)
    seconds: Iterator[float] = iter(np.exp(system.noise(rng, runs)).tolist())
    ledger, spent, number = Ledger(Guard()), list[Spent](), 0
    trial: Trial | None = None
    for champion in seconds:
        challenging = ledger.allows(1.0) if trial is None or trial.between else True
        if trial is not None and challenging:
            champions = trial.turn == "champion"
            took = champion if champions else champion * system.challenger
            ledger.record(0 if champions else number, took)
            verdict = trial.observe(took)
            if verdict is Verdict.PROMOTED:
                return Outcome(True, len(spent), sum(each.error for each in spent))
            if verdict is Verdict.REJECTED:
                trial = None
        elif challenging:
            number += 1
            baseline, took = ledger.baseline, champion * system.challenger
            ledger.record(number, took)
            if baseline is not None and took < baseline * (1.0 - LEAST_GAIN):
                error = next_error(budget, spent, TIME)
                spent.append(Spent(TIME, error))
                trial = Trial(error, seed=[seed, len(spent)])
        else:
            ledger.record(0, champion)
    return Outcome(False, len(spent), sum(each.error for each in spent))


def month(system: System, seed: int, nights: int, budget: ErrorBudget) -> Outcome:
    """Simulate a month of nightly comparisons with challengers that are no faster."""
    rng, spent = np.random.default_rng(seed), list[Spent]()
    for night in range(nights):
        error = next_error(budget, spent, TIME)
        spent.append(Spent(TIME, error))
        trial = Trial(error, seed=[seed, night])
        for seconds in np.exp(system.noise(rng, 2 * trial.pairs)).tolist():
            ratio = system.challenger if trial.turn == "challenger" else 1.0
            if trial.observe(seconds * ratio) is not Verdict.OPEN:
                break
        if trial.verdict is Verdict.PROMOTED:
            return Outcome(True, len(spent), sum(each.error for each in spent))
    return Outcome(False, len(spent), sum(each.error for each in spent))


def false_promotions(
    refinements: int = REFINEMENTS, runs: int = RUNS, budget: ErrorBudget | None = None
) -> dict[str, dict[str, float]]:
    """Return by system how many refinements and months promoted anything, and what they tested."""
    budget, seeds = budget or ErrorBudget(), range(refinements)
    made = {
        name: [refinement(system, seed, runs, budget) for seed in seeds]
        for name, system in SYSTEMS.items()
    }
    for name in ("gaussian", "stalls", "speeds up 0.2% a run"):
        months = [month(SYSTEMS[name], seed, NIGHTS, budget) for seed in seeds]
        made[f"{NIGHTS} nights, {name}"] = months
    found = {}
    for name, outcomes in made.items():
        found[name] = {
            "promoted": sum(each.promoted for each in outcomes) / refinements,
            "spent": sum(each.spent for each in outcomes) / refinements,
            "tests": sum(each.tests for each in outcomes) / refinements,
        }
    return found


def power(gain: float, noise: float, error: float, tests: int = 300) -> dict[str, float]:
    """Return how often a gain is promoted, and the pairs that this takes."""
    promoted, pairs = 0, []
    for seed in range(tests):
        rng = np.random.default_rng([seed, 1])
        trial = Trial(error, seed=seed)
        while trial.verdict is Verdict.OPEN:
            ratio = 1.0 - gain if trial.turn == "challenger" else 1.0
            trial.observe(ratio * math.exp(noise * rng.standard_normal()))
        promoted += trial.verdict is Verdict.PROMOTED
        if trial.verdict is Verdict.PROMOTED:
            pairs.append(len(trial.differences))
    return {"promoted": promoted / tests, "pairs": float(np.mean(pairs)) if pairs else math.nan}


def _shown(found: dict[str, float]) -> tuple[str, str]:
    return f"{found['promoted']:.0%}", f"{found['pairs']:.0f}"


def main() -> None:
    """Print both tables; exit with 1 if more is promoted by chance than may be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--refinements", type=int, default=REFINEMENTS, metavar="N")
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help="of a refinement")
    arguments = parser.parse_args()
    budget = ErrorBudget()
    found = false_promotions(arguments.refinements, arguments.runs, budget)
    first, tenth = (budget.error * 10 / ((9 + k) * (10 + k)) for k in (1, 10))
    gains: list[dict[str, Any]] = [
        {
            "gain": gain,
            "noise": noise,
            "first": power(gain, noise, first),
            "tenth": power(gain, noise, tenth),
        }
        for gain in (0.01, 0.03, 0.10)
        for noise in (0.01, 0.02, 0.03)
    ]
    if arguments.json:
        print(json.dumps({"error": budget.error, "systems": found, "power": gains}, indent=1))
    else:
        rows = [
            (name, f"{f['promoted']:.2%}", f"{f['spent']:.2%}", f"{f['tests']:.1f}")
            for name, f in found.items()
        ]
        columns = ("nothing is faster", "promote any", "error spent", "tests")
        print(f"{arguments.refinements:,} refinements of {arguments.runs:,} runs, or months,")
        print(f"each with an error of {budget.error:.0%}\n")
        print(markdown_table(columns, rows), end="\n\n")
        rows_of_gains = [
            (
                f"{each['gain']:.0%}",
                f"{each['noise']:.0%}",
                *_shown(each["first"]),
                *_shown(each["tenth"]),
            )
            for each in gains
        ]
        tests = ("gain", "noise", "first test of a month", "pairs", "tenth test", "pairs")
        print(markdown_table(tests, rows_of_gains))
    sys.exit(any(each["promoted"] > budget.error for each in found.values()))


if __name__ == "__main__":
    main()
