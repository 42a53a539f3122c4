"""``doppler compare``: every method on one graph, at equal seconds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doppler.cli.inputs import find_policy, read_problem
from doppler.cli.options import (
    ClusterOption,
    GraphArgument,
    JitterOption,
    JsonOption,
    PolicyOption,
    RuntimeOption,
    SeedOption,
)
from doppler.cli.output import make_table, make_title, print_json, print_text, progress

if TYPE_CHECKING:
    from doppler.evaluation.comparison import Comparison

EXAMPLES = (
    "doppler compare layer.json --cluster v100x8 --budget 10",
    "doppler compare layer.json --cluster p100x4 --methods doppler,critical_path,heft",
    "doppler compare workload:lstm_grid --cluster uniform:16 --jitter 0",
    "doppler compare workload:ffnn --cluster uniform:4 --json",
)


def compare(
    graph: GraphArgument,
    cluster: ClusterOption = None,
    budget: Annotated[
        float, typer.Option("--budget", "-b", metavar="S", help="Seconds of each method.")
    ] = 2.0,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods", metavar="A,B", help="Some methods; by default all.", show_default=False
        ),
    ] = None,
    policy: PolicyOption = "pretrained",
    seed: SeedOption = 0,
    runtime: RuntimeOption = "priority",
    jitter: JitterOption = 0.1,
    json: JsonOption = False,
) -> None:
    """Compare every method on a graph and a cluster, at equal seconds."""
    with progress("loading"):
        from doppler.evaluation import comparison
        from doppler.methods import METHODS

        names = METHODS if methods is None else tuple(name.strip() for name in methods.split(","))
        network = find_policy(policy)
        problem = read_problem(graph, cluster)
    with progress(f"comparing {len(names)} methods", budget and budget * len(names)):
        outcome = comparison.compare(
            problem,
            names,
            budget=budget,
            seed=seed,
            policy=network,
            runtime=runtime,
            jitter=jitter,
        )
    if json:
        print_json(_values(outcome, budget, seed, runtime))
    else:
        _print(outcome, budget)


def _values(outcome: Comparison, budget: float, seed: int, runtime: str) -> dict[str, Any]:
    values = outcome.case.to_json()
    # What is best known elsewhere is not known here.
    values.pop("best_known_s")
    values["methods"] = {name: values["methods"][name] for name in outcome.case.ranked()}
    return {
        **values,
        "winner": outcome.case.winner,
        "judged_by": outcome.case.judged_by,
        "runtime": runtime,
        "failures": dict(outcome.failures),
        "budget_s": budget,
        "seed": seed,
    }


def _print(outcome: Comparison, budget: float) -> None:
    from rich.text import Text

    from doppler.evaluation.results import EXPECTED, MAKESPAN
    from doppler.viewer.labels import printable
    from doppler.viewer.units import count_of, format_percent, format_seconds

    case = outcome.case
    table = make_table(
        *("method", ">makespan", ">over best", ">over bound"),
        *(f">expected, jitter {case.jitter:g}", ">over best", ">first ready"),
        *(">seconds", ">placements", "origin"),
    )
    title = make_title(
        f"{case.graph} on {case.cluster}: {count_of(case.ops, 'op')}, "
        f"{count_of(case.devices, 'device')}, {budget:g} s each"
    )

    def over(name: str, column: str) -> str:
        share = case.ratio(name, column) - 1
        return f"+{format_percent(share)}" if math.isfinite(share) else "-"

    for name in case.ranked():
        result = case.methods[name]
        bound = case.lower_bound_s
        gap = max(0.0, result.makespan_s / bound - 1) if bound > 0 else None
        expected = result.expected_makespan_s or 0.0
        spread = (result.makespan_std_s or 0.0) / (expected or 1.0)
        table.add_row(
            Text(name, style="bold" if name == case.winner else ""),
            format_seconds(result.makespan_s),
            over(name, MAKESPAN),
            "-" if gap is None else f"+{format_percent(gap)}",
            f"{format_seconds(expected)} ± {format_percent(spread)}",
            over(name, EXPECTED),
            format_seconds(result.expected_fifo_s or 0.0),
            f"{result.seconds:.2f}",
            f"{result.extra['evaluations']:,}",
            Text(printable(str(result.extra["origin"]))),
        )
    for name, reason in outcome.failures.items():
        table.add_row(
            name, Text("no placement", style="red"), *[""] * 7, Text(printable(reason), "dim")
        )
    print_text(title, table)
