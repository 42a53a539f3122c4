"""``doppler simulate``: what would happen with a placement."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from doppler.cli.inputs import check_output, read_placement, read_problem
from doppler.cli.options import (
    ClusterOption,
    GraphArgument,
    JsonOption,
    PlacementArgument,
    RuntimeOption,
    SeedOption,
    TraceOption,
)
from doppler.cli.output import make_facts, make_title, print_json, print_text, progress

EXAMPLES = (
    "doppler simulate layer.json placement.json --cluster p100x4",
    "doppler simulate layer.json placement.json --cluster p100x4 --trace trace.json",
    "doppler simulate layer.json placement.json --cluster p100x4 --jitter 0.1 --seed 7 --json",
)


def simulate(
    graph: GraphArgument,
    placement: PlacementArgument,
    cluster: ClusterOption = None,
    trace: TraceOption = None,
    runtime: RuntimeOption = "priority",
    jitter: Annotated[
        float,
        typer.Option(
            "--jitter",
            metavar="S",
            help="Standard deviation of the logarithm of every duration; 0.1 is about 10%.",
        ),
    ] = 0.0,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Simulate a placement on a cluster."""
    silent = check_output(trace, graph, placement, cluster, json=json)
    with progress("simulating"):
        problem = read_problem(graph, cluster)
        from doppler import simulator
        from doppler.cli.devices import use_of_devices

        placed = read_placement(placement, problem.graph)
        simulator.check_memory(problem, placed, runtime)
        result = simulator.simulate(problem, placed, runtime=runtime, jitter=jitter, seed=seed)
    if trace is not None:
        from json import dumps

        from doppler.files import write_atomic
        from doppler.viewer import to_chrome

        write_atomic(trace, dumps(to_chrome(result.trace, problem.graph)) + "\n")
    run = result.trace
    values: dict[str, Any] = {
        "makespan_s": result.makespan,
        "lower_bound_s": problem.lower_bound,
        "runtime": runtime,
        "jitter": jitter,
        "seed": seed,
        "graph": problem.graph.name,
        "cluster": problem.cluster.name,
        "ops": problem.n_ops,
        "devices": problem.n_devices,
        "transfers": int(run.transfer_op.size),
        "transfer_s": float((run.transfer_end - run.transfer_start).sum()),
        "by_device": use_of_devices(result, problem.arrays.capacity),
        "trace": None if trace is None else str(trace),
    }
    if json:
        print_json(values)
    elif not silent:
        _print(values)


def _print(values: dict[str, Any]) -> None:
    from rich.text import Text

    from doppler.cli.devices import table_of_devices
    from doppler.viewer.units import format_percent, format_seconds

    makespan, bound = values["makespan_s"], values["lower_bound_s"]
    # Durations that vary may also be shorter than those that the bound is made of.
    exact = bound > 0 and values["jitter"] == 0
    gap = f", +{format_percent(max(0.0, makespan / bound - 1))}" if exact else ""
    moved = f"{values['transfers']:,}, {format_seconds(values['transfer_s'])} in all"
    rows = [
        ("makespan", format_seconds(makespan)),
        ("lower bound", f"{format_seconds(bound)}{gap}"),
        ("run-time", values["runtime"]),
        ("transfers", moved),
    ]
    if values["jitter"]:
        rows.append(("jitter", f"{values['jitter']:g}, seed {values['seed']}"))
    if values["trace"]:
        rows.append(("trace", values["trace"]))
    print_text(
        make_title(f"{values['graph']} on {values['cluster']}"),
        make_facts(rows),
        Text(),
        table_of_devices(values["by_device"]),
    )
