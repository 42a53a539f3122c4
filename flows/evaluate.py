"""Compare the policy with every method on three suites, and on graphs that it never saw: reports/.

As many cases at once as there are cores, each in a process that is pinned to one: every method has
one core for its seconds.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from common import (
    ThreadPoolTaskRunner,
    flow,
    main,
    markdown_table,
    publish,
    step,
    track,
    write_metrics,
)
from doppler.cases import Case, cases
from doppler.cluster import Cluster
from doppler.cores import cores
from doppler.evaluation.comparison import Comparison, compare
from doppler.evaluation.metrics import flat_metrics
from doppler.evaluation.processes import PinnedProcesses
from doppler.evaluation.reference import References, load_references
from doppler.evaluation.report import (
    SUITES,
    UNSEEN,
    CaseTimeline,
    load_report,
    methods_of,
    save_timeline,
    write_report,
)
from doppler.evaluation.results import EXPECTED, MAKESPAN, CaseResult, save_results
from doppler.evaluation.settings import EvaluationSections
from doppler.evaluation.zero_shot import zero_shot
from doppler.graph.workloads import chainmm
from doppler.methods import SEARCHED
from doppler.placement import Placement
from doppler.policy.checkpoint import load_policy
from doppler.policy.network import DualPolicy
from doppler.problem import Problem
from doppler.simulator import simulate
from doppler.tracking import Trackers


class Params(EvaluationSections):
    """The sections that this stage reads."""


REPORTS = Path("reports")
TIMELINES = REPORTS / "timelines"
# The placement of each case with the least makespan, for the table of best known ones.
PLACEMENTS = REPORTS / "placements"
# Of larger ones the timeline is a carpet, and its file as large as all others together.
MOST_DRAWN_OPS = 1_000
# Stages of training whose curves the report shows, and where they leave them.
CURVES = {stage: REPORTS / f"{stage}.csv" for stage in ("imitate", "reinforce")}


@cache
def trained() -> DualPolicy:
    """Load the policy that the pipeline trained."""
    return load_policy("models/policy.safetensors")


@cache
def references() -> References:
    """Load the table of best known makespans."""
    return load_references("benchmarks/best_known.json")


def warm_up() -> None:
    """Load the policy, and compile what a search with every method runs."""
    problem = Problem(chainmm(8, 8, 8, 8, 8, tiles=1), Cluster.uniform(2))
    outcome = compare(problem, SEARCHED, budget=0.01, policy=trained())
    simulate(problem, outcome.placements[outcome.case.winner])


def compare_here(case: Case, budget: float, params: Params) -> CaseResult:
    """Run every method on a case, and save the winner's timeline."""
    problem, settings = params.problem(case), params.evaluate
    outcome = compare(
        problem,
        SEARCHED,
        budget=budget,
        seed=params.seed,
        policy=trained(),
        jitter=settings.jitter,
        jitter_seeds=settings.jitter_seeds,
        best_known=references().best_known(*case, problem),
        trained=params.trained(case),
        graph=case.graph,
        cluster=case.cluster,
    )
    if problem.n_ops <= MOST_DRAWN_OPS:
        winner = outcome.case.winner
        trace = simulate(problem, outcome.placements[winner]).trace
        save_timeline(CaseTimeline(*case, winner, trace, problem.graph), TIMELINES)
    best_placement(case, outcome).save(PLACEMENTS / f"{case.file_name}.json")
    return outcome.case


def best_placement(case: Case, outcome: Comparison) -> Placement:
    """Choose the placement with the least makespan; it says whose it is, and of what."""
    method = outcome.case.ranked(MAKESPAN)[0]
    found = outcome.case.methods[method]
    info = {
        "graph": case.graph,
        "cluster": case.cluster,
        "method": method,
        "origin": found.extra["origin"],
        "makespan_s": found.makespan_s,
    }
    placement = outcome.placements[method]
    return Placement(placement.devices, placement.priority, info)


def zero_shot_here(case: Case, params: Params) -> CaseResult:
    """Let the policy place a graph that it was not trained on."""
    problem, settings = params.problem(case), params.evaluate
    outcome = zero_shot(
        problem,
        trained(),
        samples=settings.samples,
        seed=params.seed,
        jitter=settings.jitter,
        jitter_seeds=settings.jitter_seeds,
        best_known=references().best_known(*case, problem),
        search_seconds=settings.search,
        graph=case.graph,
        cluster=case.cluster,
    )
    best_placement(case, outcome).save(PLACEMENTS / f"{case.file_name}.json")
    return outcome.case


@step("compare on {case}")
def compare_on(case: Case, budget: float, params: Params, processes: PinnedProcesses) -> CaseResult:
    """Compare the methods in a process of one core."""
    return processes.run(compare_here, case, budget, params)


@step("zero-shot on {case}")
def zero_shot_on(case: Case, params: Params, processes: PinnedProcesses) -> CaseResult:
    """Let the policy alone place a graph in a process of one core."""
    return processes.run(zero_shot_here, case, params)


def show(trackers: Trackers, name: str, title: str, results: list[CaseResult], column: str) -> None:
    """Show each case's figures, as ratios to the best, in Prefect and in W&B."""
    methods = methods_of(results)
    columns = ("graph", "cluster", "winner", *methods)
    rows = [
        [
            *(case.graph, case.cluster, case.winner),
            *(case.ratio(each, column) if case.has(each, column) else None for each in methods),
        ]
        for case in results
    ]
    trackers.log_table(name, columns, rows)
    shown = [
        [*row[:3], *("does not fit" if each is None else f"{each:.3f}" for each in row[3:])]
        for row in rows
    ]
    publish(name.replace("_", "-"), title, markdown_table(columns, shown))


# Prefect takes runners of one kind of future only, says its annotation.
@flow(name="evaluate", task_runner=ThreadPoolTaskRunner(max_workers=cores()))  # type: ignore[arg-type]
def evaluate(params: Params) -> None:
    """Make the results and the report."""
    settings = params.evaluate
    with PinnedProcesses(prepare=warm_up) as processes:
        compared = {
            name: [
                compare_on.submit(case, suite.budget, params, processes)
                for case in cases(suite.cases)
            ]
            for name, suite in settings.suites.items()
        }
        placed = {
            name: [zero_shot_on.submit(case, params, processes) for case in cases(grids)]
            for name, grids in (
                ("zero_shot", settings.zero_shot),
                ("zero_shot_large", settings.zero_shot_large),
            )
        }
        suites = {
            name: [future.result() for future in futures] for name, futures in compared.items()
        }
        unseen = {name: [future.result() for future in futures] for name, futures in placed.items()}
    files = {name: REPORTS / f"{name}.json" for name in suites}
    for name, results in (suites | unseen).items():
        save_results(results, REPORTS / f"{name}.json")
    report = load_report(
        files,
        REPORTS / "zero_shot.json",
        CURVES,
        TIMELINES,
        zero_shot_large=REPORTS / "zero_shot_large.json",
    )
    write_report(report, REPORTS)
    metrics = flat_metrics(report)
    write_metrics(str(REPORTS / "metrics.json"), metrics)
    with track("evaluate", None, params) as trackers:
        trackers.log(metrics, step=0)
        for name, results in suites.items():
            title = f"{SUITES[name]}: expected makespan over the best"
            show(trackers, name, title, results, EXPECTED)
        for name, results in unseen.items():
            title = f"{UNSEEN[name]}: makespan over the best known, held out of training"
            show(trackers, name, title, results, MAKESPAN)
    publish("metrics", "Summary", markdown_table(("metric", "value"), metrics.items()))


if __name__ == "__main__":
    main(evaluate, Params)
