"""Compare the policy with every method, and on graphs that it never saw: reports/.

As many cases at once as there are cores, each in a process that is pinned to one: every method has
one core for its seconds.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from common import (
    ThreadPoolTaskRunner,
    flow,
    load_problem,
    main,
    markdown_table,
    publish,
    step,
    write_metrics,
)
from doppler import Cluster, Problem, simulate, workloads
from doppler.cores import cores
from doppler.evaluation.comparison import compare
from doppler.evaluation.metrics import flat_metrics
from doppler.evaluation.processes import PinnedProcesses
from doppler.evaluation.reference import References, load_references
from doppler.evaluation.report import (
    BASELINE,
    METHOD,
    CaseTimeline,
    load_report,
    save_timeline,
    write_report,
)
from doppler.evaluation.results import CaseResult, save_results
from doppler.evaluation.zero_shot import zero_shot
from doppler.params import Case, EvaluateParams, Params, cases
from doppler.policy.checkpoint import load_policy
from doppler.policy.network import DualPolicy

REPORTS = Path("reports")
TIMELINES = REPORTS / "timelines"
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
    problem = Problem(workloads.chainmm(8, 8, 8, 8, 8, tiles=1), Cluster.uniform(2))
    outcome = compare(problem, budget=0.01, policy=trained())
    simulate(problem, outcome.placements[outcome.case.winner])


def compare_here(case: Case, settings: EvaluateParams, seed: int) -> CaseResult:
    """Run every method on a case, and save the winner's timeline."""
    problem = load_problem(case)
    outcome = compare(
        problem,
        budget=settings.budget,
        seed=seed,
        policy=trained(),
        jitter=settings.jitter,
        jitter_seeds=settings.jitter_seeds,
        best_known=references().best_known(*case, problem),
        graph=case.graph,
        cluster=case.cluster,
    )
    winner = outcome.case.winner
    trace = simulate(problem, outcome.placements[winner]).trace
    save_timeline(CaseTimeline(*case, winner, trace, problem.graph), TIMELINES)
    return outcome.case


def zero_shot_here(case: Case, settings: EvaluateParams, seed: int) -> CaseResult:
    """Let the policy place a graph that it was not trained on."""
    problem = load_problem(case)
    return zero_shot(
        problem,
        trained(),
        samples=settings.samples,
        seed=seed,
        jitter=settings.jitter,
        jitter_seeds=settings.jitter_seeds,
        best_known=references().best_known(*case, problem),
        search_seconds=settings.budget,
        graph=case.graph,
        cluster=case.cluster,
    )


@step("compare on {case}")
def compare_on(
    case: Case, settings: EvaluateParams, seed: int, processes: PinnedProcesses
) -> CaseResult:
    """Compare the methods in a process of one core."""
    return processes.run(compare_here, case, settings, seed)


@step("zero-shot on {case}")
def zero_shot_on(
    case: Case, settings: EvaluateParams, seed: int, processes: PinnedProcesses
) -> CaseResult:
    """Let the policy alone place a graph in a process of one core."""
    return processes.run(zero_shot_here, case, settings, seed)


def table_of(results: list[CaseResult], methods: tuple[str, ...]) -> str:
    """Lay out each case's makespans as ratios to the best known."""
    rows = [
        [
            case.graph,
            case.cluster,
            case.winner,
            *(case.ratio(name) if name in case.methods else "does not fit" for name in methods),
        ]
        for case in results
    ]
    return markdown_table(("graph", "cluster", "winner", *methods), rows)


@flow(name="evaluate", task_runner=ThreadPoolTaskRunner(max_workers=cores()))
def evaluate(params: Params) -> None:
    """Make the results and the report."""
    settings = params.evaluate
    with PinnedProcesses(prepare=warm_up) as processes:
        how = (settings, params.seed, processes)
        compared = [compare_on.submit(case, *how) for case in cases(settings.suite)]
        placed = [zero_shot_on.submit(case, *how) for case in cases(settings.zero_shot)]
        suite = [future.result() for future in compared]
        unseen = [future.result() for future in placed]
    save_results(suite, REPORTS / "suite.json")
    save_results(unseen, REPORTS / "zero_shot.json")
    report = load_report(REPORTS / "suite.json", REPORTS / "zero_shot.json", CURVES, TIMELINES)
    write_report(report, REPORTS)
    metrics = flat_metrics(report)
    write_metrics(str(REPORTS / "metrics.json"), metrics)
    publish("suite", "Makespan over the best known", table_of(suite, (METHOD, BASELINE)))
    publish(
        "zero-shot",
        "Makespan over the best known, on graphs held out of training",
        table_of(unseen, tuple(dict.fromkeys(name for case in unseen for name in case.methods))),
    )
    publish("metrics", "Summary", markdown_table(("metric", "value"), metrics.items()))


if __name__ == "__main__":
    main(evaluate)
