"""``doppler place``: a placement for a graph."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from doppler.cli.inputs import check_output, find_policy, read_problem
from doppler.cli.options import (
    ClusterOption,
    GraphArgument,
    JitterOption,
    JsonOption,
    OutputOption,
    PolicyOption,
    RuntimeOption,
    SeedOption,
)
from doppler.cli.output import make_facts, make_title, print_json, print_text, progress

EXAMPLES = (
    "doppler place layer.json --cluster p100x4 -o placement.json",
    "doppler place layer.txt --cluster uniform:4 --budget 20 --json",
    "doppler place layer.json --cluster v100x8 --jitter 0.05",
    "doppler place workload:moe_layer --cluster v100x8 --method heft",
)


def place(
    graph: GraphArgument,
    cluster: ClusterOption = None,
    method: Annotated[
        str,
        typer.Option("--method", "-m", metavar="M", help="'doppler', a heuristic or a baseline."),
    ] = "doppler",
    policy: PolicyOption = "pretrained",
    budget: Annotated[
        float,
        typer.Option("--budget", "-b", metavar="S", help="Seconds to search; 0: answer at once."),
    ] = 2.0,
    seed: SeedOption = 0,
    runtime: RuntimeOption = "priority",
    jitter: JitterOption = 0.1,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Place a graph on a cluster, with a trained policy or another method."""
    silent = check_output(output, graph, cluster, json=json)
    with progress("loading"):
        network = find_policy(policy)
        problem = read_problem(graph, cluster)
        from doppler import methods
        from doppler.simulator import simulate
    with progress(f"placing with {method}", budget):
        placement = methods.place(
            problem, method, network, budget, seed, runtime=runtime, jitter=jitter
        )
    result = simulate(problem, placement, runtime=runtime)
    if output is not None:
        placement.save(output)
    from doppler.cli.devices import use_of_devices

    values: dict[str, Any] = {
        **placement.info,
        "runtime": runtime,
        "ops": problem.n_ops,
        "devices": problem.n_devices,
        "by_device": use_of_devices(result, problem.arrays.capacity),
        "output": None if output is None else str(output),
    }
    if json:
        print_json(values)
    elif not silent:
        _print(values)


def _print(values: dict[str, Any]) -> None:
    from rich.text import Text

    from doppler.cli.devices import table_of_devices
    from doppler.viewer.units import count_of, format_percent, format_seconds

    makespan, bound = values["makespan_s"], values["lower_bound_s"]
    gap = f", +{format_percent(max(0.0, makespan / bound - 1))}" if bound > 0 else ""
    sizes = f"{count_of(values['ops'], 'op')}, {count_of(values['devices'], 'device')}"
    facts = [
        ("size", sizes),
        ("makespan", format_seconds(makespan)),
        (
            f"expected, jitter {values['jitter']:g}",
            f"{format_seconds(values['expected_makespan_s'])} "
            f"± {format_seconds(values['makespan_std_s'])}",
        ),
        ("first ready, first run", format_seconds(values["makespan_fifo_s"])),
        ("lower bound", f"{format_seconds(bound)}{gap}"),
        ("method", f"{values['method']}: {values['origin']}"),
        ("evaluations", f"{values['evaluations']:,} in {format_seconds(values['seconds'], 3)}"),
        ("written to", values["output"] or "nowhere; give -o"),
    ]
    print_text(
        make_title(f"{values['graph']} on {values['cluster']}"),
        make_facts(facts),
        Text(),
        table_of_devices(values["by_device"]),
    )
