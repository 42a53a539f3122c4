"""Compare every method on all suites at length: reports/benchmark_suite.json.

``python benchmarks/suite.py --cases 'llama*@v100*' --budget 20 --seeds 0 1 2`` runs the cases of
``params.yaml`` (and the layer graphs of dnn-partitioning, where ``../shared/graphs/layers`` has
them), one after another; each method has all cores for its seconds. What is there is written after
every case; ``--resume`` goes on where a run with the same settings stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from doppler import Placement, Problem, load_graph
from doppler.cases import Case, cases
from doppler.cores import cores
from doppler.errors import DopplerError
from doppler.evaluation.comparison import compare
from doppler.evaluation.reference import References, load_references
from doppler.evaluation.report import METHOD, summarize_cases
from doppler.evaluation.results import EXPECTED, MAKESPAN, CaseResult, parse_results
from doppler.files import read_text, write_atomic
from doppler.methods import SEARCHED, check_options
from doppler.params import Params, load_params
from doppler.policy.checkpoint import load_policy
from doppler.policy.network import DualPolicy
from doppler.viewer.units import format_percent, format_seconds

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "reports" / "benchmark_suite.json"
LAYERS = ROOT.parent / "shared" / "graphs" / "layers"
# Of a graph file that names its machine itself.
OWN_MACHINE = "its machine"
# Of each method on each case, unless asked otherwise.
BUDGET_SECONDS = 20.0
Key = tuple[str, str, str, int]


@dataclass(frozen=True)
class Settings:
    """What decides on the results, besides the code.

    Attributes
    ----------
    budget : float
        Seconds of each method on each case.
    jitter : float
    runtime : {"priority", "fifo"}
    methods : tuple of str
    policy : str
    """

    budget: float
    jitter: float
    runtime: str
    methods: tuple[str, ...]
    policy: str

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, the head of the report."""
        return {
            "budget_s": self.budget,
            "jitter": self.jitter,
            "runtime": self.runtime,
            "methods": list(self.methods),
            "policy": self.policy,
            "cores": cores(),
        }


def chosen_cases(params: Params, pattern: str, layers: Path) -> list[tuple[str, Case]]:
    """List the cases that a pattern of GRAPH@CLUSTER picks, each with the name of its suite."""
    found = [
        (name, case)
        for name, suite in params.evaluate.suites.items()
        for case in cases(suite.cases)
    ]
    found += [("operators", Case(path.stem, OWN_MACHINE)) for path in sorted(layers.glob("*.json"))]
    return [(suite, case) for suite, case in found if fnmatch(str(case), pattern)]


def problem_of(case: Case, params: Params, layers: Path) -> Problem:
    """Make the problem of a case: from the parameters, or of a file that names its machine."""
    if case.cluster == OWN_MACHINE:
        return Problem(load_graph(layers / f"{case.graph}.json"))
    return params.problem(case)


def run_case(
    case: Case,
    problem: Problem,
    params: Params,
    settings: Settings,
    seed: int,
    policy: DualPolicy,
    references: References,
) -> tuple[CaseResult, Placement]:
    """Compare the methods on a case; the placement is that of the least makespan."""
    outcome = compare(
        problem,
        settings.methods,
        budget=settings.budget,
        seed=seed,
        policy=policy,
        runtime=settings.runtime,
        jitter=settings.jitter,
        best_known=references.best_known(*case, problem),
        trained=params.trained(case),
        graph=case.graph,
        cluster=case.cluster,
    )
    method = outcome.case.ranked(MAKESPAN)[0]
    placement = outcome.placements[method]
    info = {"method": method, "origin": outcome.case.methods[method].extra["origin"]}
    return outcome.case, Placement(placement.devices, placement.priority, info)


def summary_of(results: dict[Key, CaseResult]) -> dict[str, Any]:
    """Sum up every suite, and the cases trained on and held out; each seed is a case."""
    groups: dict[str, list[CaseResult]] = {}
    for (suite, *_), case in results.items():
        groups.setdefault(suite, []).append(case)
        if case.trained is not None:
            groups.setdefault("held_out" if case.trained == "none" else "trained", []).append(case)
    return {name: summarize_cases(found) for name, found in groups.items()}


def report_of(settings: Settings, results: dict[Key, CaseResult]) -> dict[str, Any]:
    """Return the JSON form of all results."""
    return {
        **settings.to_json(),
        "summary": summary_of(results),
        "cases": [
            {"suite": suite, "seed": seed, **case.to_json()}
            for (suite, _, _, seed), case in results.items()
        ],
    }


def load_report(path: Path, settings: Settings) -> dict[Key, CaseResult]:
    """Read what a run with the same settings has left.

    Raises
    ------
    DopplerError
        If the file is missing or damaged, or its settings are others.
    """
    try:
        data = json.loads(read_text(path, "benchmark", DopplerError))
        found = {
            (entry.pop("suite"), entry["graph"], entry["cluster"], entry.pop("seed")): entry
            for entry in data.pop("cases")
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DopplerError(f"{path}: is no report of this benchmark ({error})") from None
    data.pop("summary", None)
    if data != settings.to_json():
        raise DopplerError(f"{path}: was made with other settings; leave --resume out")
    try:
        return dict(zip(found, parse_results([*found.values()], str(path)), strict=True))
    except DopplerError as error:
        raise DopplerError(f"{path}: is no report of this benchmark ({error})") from None


def line(suite: str, seed: int, case: CaseResult, seconds: float) -> str:
    """Say in one line who won, by what is expected and without jitter."""
    parts = [f"{suite:9} {case.graph}@{case.cluster} seed {seed}:"]
    for column, what in ((EXPECTED, "expected"), (MAKESPAN, "no jitter")):
        other = case.best_other(METHOD, column)
        own = case.methods[METHOD].figure(column) if METHOD in case.methods else None
        told = "no placement" if own is None else format_seconds(own)
        if other is not None:
            rival = case.methods[other].figure(column) or 0.0
            over = "" if not own else f" ({format_percent(rival / own - 1)} above)"
            told += f" against {format_seconds(rival)} of {other}{over}"
        parts.append(f"{what} {told};")
    return " ".join([*parts, f"{seconds:.0f} s"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cases, one line each, and write the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=BUDGET_SECONDS,
        help=f"seconds of each method ({BUDGET_SECONDS:g})",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="one run each (0)")
    parser.add_argument("--cases", default="*", help="pattern of GRAPH@CLUSTER")
    parser.add_argument("--suites", nargs="+", default=None, help="suite, large, operators; all")
    parser.add_argument("--jitter", type=float, default=0.1, help="of every duration (0.1)")
    parser.add_argument("--runtime", choices=("priority", "fifo"), default="priority")
    parser.add_argument("--methods", default=",".join(SEARCHED), help="A,B; all that search")
    parser.add_argument("--policy", default="pretrained", help="policy file")
    parser.add_argument("--layers", type=Path, default=LAYERS, help="folder of layer graphs")
    parser.add_argument("--output", type=Path, default=REPORT, help="the report to write")
    parser.add_argument("--placements", type=Path, help="folder for the best placements found")
    parser.add_argument("--resume", action="store_true", help="go on with the report that is there")
    options = parser.parse_args(arguments)
    settings = Settings(
        options.budget,
        options.jitter,
        options.runtime,
        tuple(name.strip() for name in options.methods.split(",")),
        options.policy,
    )
    try:
        _run(options, settings)
    except DopplerError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _run(options: argparse.Namespace, settings: Settings) -> None:
    for seed in options.seeds:
        check_options(
            budget=settings.budget, seed=seed, jitter=settings.jitter, runtime=settings.runtime
        )
    params = load_params(ROOT / "params.yaml")
    policy = load_policy(settings.policy)
    references = load_references(ROOT / "benchmarks" / "best_known.json")
    chosen = chosen_cases(params, options.cases, options.layers)
    if options.suites is not None:
        chosen = [(suite, case) for suite, case in chosen if suite in options.suites]
    if not chosen:
        where = f"--cases {options.cases}"
        if options.suites is not None:
            where += f" --suites {' '.join(options.suites)}"
        raise DopplerError(f"{where}: no case is named so")
    done: dict[Key, CaseResult] = {}
    if options.resume and options.output.exists():
        done = load_report(options.output, settings)
    for suite, case, seed in _missing(chosen, options.seeds, done):
        began = time.perf_counter()
        problem = problem_of(case, params, options.layers)
        result, placement = run_case(case, problem, params, settings, seed, policy, references)
        done[suite, case.graph, case.cluster, seed] = result
        text = json.dumps(report_of(settings, done), indent=1, allow_nan=False)
        write_atomic(options.output, text + "\n")
        if options.placements is not None:
            _keep(options.placements / f"{case.file_name}.json", placement, result)
        print(line(suite, seed, result, time.perf_counter() - began), flush=True)


def _missing(
    chosen: Sequence[tuple[str, Case]], seeds: Sequence[int], done: dict[Key, CaseResult]
) -> Iterator[tuple[str, Case, int]]:
    for seed in seeds:
        for suite, case in chosen:
            if (suite, case.graph, case.cluster, seed) not in done:
                yield suite, case, seed


def _keep(path: Path, placement: Placement, result: CaseResult) -> None:
    """Save a placement unless a better one is there."""
    best = min(found.makespan_s for found in result.methods.values())
    if path.exists():
        known = Placement.load(path).info.get("makespan_s")
        if isinstance(known, int | float) and known <= best:
            return
    info = {**placement.info, "makespan_s": best}
    Placement(placement.devices, placement.priority, info).save(path)


if __name__ == "__main__":
    main()
