"""``doppler bound``: what no placement can beat, and the best of all for a small graph."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from doppler.cli.inputs import check_output, read_problem
from doppler.cli.options import ClusterOption, GraphArgument, JsonOption, OutputOption, SeedOption
from doppler.cli.output import make_facts, make_title, print_json, print_text, progress
from doppler.errors import DopplerError

EXAMPLES = (
    "doppler bound layer.json --cluster p100x4",
    "doppler bound small.json --cluster uniform:2 --exact -o best.json",
    "doppler bound small.json --cluster uniform:2 --exact --budget 60 --json",
)


def bound(
    graph: GraphArgument,
    cluster: ClusterOption = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Search for the optimum with OR-Tools ('doppler[exact]'); for some 15 ops.",
        ),
    ] = False,
    budget: Annotated[
        float, typer.Option("--budget", "-b", metavar="S", help="Seconds of --exact, at most.")
    ] = 10.0,
    seed: SeedOption = 0,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Give seconds that no placement of a graph on a cluster can beat."""
    if output is not None and not exact:
        raise DopplerError("--output: there is a placement to write only with --exact")
    silent = check_output(output, graph, cluster, json=json)
    with progress("bounding", budget if exact else None):
        problem = read_problem(graph, cluster)
        from doppler.exact.bounds import lower_bound

        values: dict[str, Any] = {
            "graph": problem.graph.name,
            "cluster": problem.cluster.name,
            "ops": problem.n_ops,
            "devices": problem.n_devices,
            "simple_bound_s": problem.lower_bound,
            "bound_s": lower_bound(problem),
        }
        if exact:
            from doppler import exact as solver

            found = solver.exact(problem, budget=budget, seed=seed)
            values["bound_s"] = found.bound
            values |= {"makespan_s": found.makespan, "proven": found.proven}
            values["output"] = None if output is None else str(output)
            if output is not None:
                found.placement.save(output)
    if json:
        print_json(values)
    elif not silent:
        _print(values)


def _print(values: dict[str, Any]) -> None:
    from doppler.viewer.units import count_of, format_percent, format_seconds

    rows = [
        ("size", f"{count_of(values['ops'], 'op')}, {count_of(values['devices'], 'device')}"),
        ("longest path and work", format_seconds(values["simple_bound_s"])),
        ("lower bound", format_seconds(values["bound_s"])),
    ]
    if "makespan_s" in values:
        makespan, least = values["makespan_s"], values["bound_s"]
        gap = f", +{format_percent(max(0.0, makespan / least - 1))}" if least > 0 else ""
        how = "the optimum, proven" if values["proven"] else f"the best found{gap}"
        rows.append(("makespan", f"{format_seconds(makespan)}, {how}"))
        rows.append(("written to", values["output"] or "nowhere; give -o"))
    print_text(make_title(f"{values['graph']} on {values['cluster']}"), make_facts(rows))
