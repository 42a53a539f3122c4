"""``doppler run``: what does happen with a placement, on real devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from doppler.cli.inputs import check_output, read_graph, read_placement, read_problem, stdin
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
from doppler.errors import DopplerError, UnknownNameError

if TYPE_CHECKING:
    from torch import Tensor

    from doppler.engine import Backend, Execution
    from doppler.graph import Graph
    from doppler.placement import Placement

EXAMPLES = (
    "doppler run layer.json placement.json --check",
    "doppler run net.json placement.json --weights net.safetensors",
    "doppler run layer.json placement.json --backend cuda --repeat 5 --trace measured.json",
    "doppler run layer.txt placement.json --backend emulated --cluster uniform:4 --time-scale 0.01",
)
_BACKENDS = ("cpu", "cuda", "emulated")


def run(
    graph: GraphArgument,
    placement: PlacementArgument,
    backend: Annotated[
        str,
        typer.Option(
            "--backend",
            metavar="cpu|cuda|emulated",
            help="Threads of this machine; its GPUs, and the CPU if one device more is named; "
            "or sleeping for the modeled times.",
        ),
    ] = "cpu",
    cluster: ClusterOption = None,
    runtime: RuntimeOption = "priority",
    repeat: Annotated[
        int,
        typer.Option(
            "--repeat", metavar="N", help="Runs; with more than one, after one that warms up."
        ),
    ] = 1,
    check: Annotated[
        bool,
        typer.Option("--check", help="Compare the outputs with those of a run in one thread."),
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="S",
            help="Give up a run after so many seconds.",
            show_default=False,
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            metavar="FILE",
            help="Weights of a captured model, as safetensors; left out: random ones.",
            show_default=False,
            callback=stdin,
        ),
    ] = None,
    trace: TraceOption = None,
    seed: SeedOption = 0,
    jitter: Annotated[
        float,
        typer.Option(
            "--jitter",
            metavar="S",
            help="Emulated: standard deviation of the logarithm of every duration.",
        ),
    ] = 0.0,
    time_scale: Annotated[
        float,
        typer.Option(
            "--time-scale", metavar="X", help="Emulated: seconds that a modeled second lasts."
        ),
    ] = 1.0,
    json: JsonOption = False,
) -> None:
    """Run a placement on real devices, or emulated ones, and measure it."""
    from doppler.checks import check_whole

    silent = check_output(trace, graph, placement, cluster, weights, json=json)
    if backend not in _BACKENDS:
        raise UnknownNameError("backend", backend, _BACKENDS)
    check_whole(repeat, "--repeat", 1)
    check_whole(seed, "--seed", 0)
    if backend != "emulated" and (cluster is not None or jitter or time_scale != 1.0):
        raise DopplerError(
            f"--backend {backend}: --cluster, --jitter and --time-scale go with --backend emulated"
        )
    if backend == "emulated" and (check or weights is not None):
        option, done = ("--check", "be compared") if check else ("--weights", "use them")
        raise DopplerError(f"{option}: the emulated backend computes nothing that could {done}")
    with progress("loading"):
        loaded, placed, devices = _load(
            graph, placement, backend, cluster, seed, jitter, time_scale
        )
        from doppler.engine import Engine, longest_idle

        tensors = None if weights is None else _tensors(loaded, weights, seed)
        engine = Engine(loaded, devices, tensors=tensors, seed=seed)
    with progress("running"), engine:
        if repeat > 1 and backend != "emulated":
            engine.run(placed, runtime=runtime, timeout=timeout)
        runs = [engine.run(placed, runtime=runtime, timeout=timeout) for _ in range(repeat)]
    runs.sort(key=lambda execution: execution.makespan)
    median = runs[(repeat - 1) // 2]
    with progress("checking"):
        checked = _check(loaded, median, tensors, seed) if check else None
    if trace is not None:
        from json import dumps

        from doppler.files import write_atomic
        from doppler.viewer import to_chrome

        write_atomic(trace, dumps(to_chrome(median.trace, loaded)) + "\n")
    from doppler.cli.devices import use_of_devices

    measured = median.trace
    values: dict[str, Any] = {
        "makespan_s": median.makespan,
        "makespans_s": [execution.makespan for execution in runs],
        "longest_idle_s": longest_idle(loaded, measured),
        "backend": median.backend,
        "runtime": runtime,
        "jitter": jitter,
        "seed": seed,
        "graph": loaded.name,
        "cluster": cluster,
        "ops": loaded.n_ops,
        "devices": len(measured.device_names),
        "transfers": int(measured.transfer_op.size),
        "transfer_s": float((measured.transfer_end - measured.transfer_start).sum()),
        "by_device": use_of_devices(median, devices.memory),
        "check": checked,
        "weights": weights,
        "trace": None if trace is None else str(trace),
    }
    if json:
        print_json(values)
    elif not silent:
        _print(values)


def _load(
    source: str,
    path: str,
    name: str,
    cluster: str | None,
    seed: int,
    jitter: float,
    time_scale: float,
) -> tuple[Graph, Placement, Backend]:
    from doppler.engine import EmulatedBackend, make_backend

    if name == "emulated":
        problem = read_problem(source, cluster)
        placed = read_placement(path, problem.graph)
        placed.validate(problem)
        emulated = EmulatedBackend(problem, jitter=jitter, seed=seed, time_scale=time_scale)
        return problem.graph, placed, emulated
    graph = read_graph(source)
    placed = read_placement(path, graph)
    return graph, placed, make_backend(name, int(placed.devices.max()) + 1)


def _tensors(graph: Graph, weights: str, seed: int) -> dict[str, Tensor]:
    """Read the weights; make the inputs up."""
    from doppler.capture.weights import load_weights
    from doppler.graph.execution import make_tensors

    return {**make_tensors(graph, seed), **load_weights(weights, graph)}


def _check(
    graph: Graph, execution: Execution, tensors: dict[str, Tensor] | None, seed: int
) -> dict[str, float]:
    """Compare the results with those of a run op by op in this thread.

    Returns
    -------
    dict
        ``largest_difference``, and the ``tolerance`` where it was found.

    Raises
    ------
    DopplerError
        If a result is not within its tolerance.
    """
    from doppler.engine import compare_outputs
    from doppler.graph.execution import make_tensors, run_sequential

    given = make_tensors(graph, seed) if tensors is None else tensors
    found = compare_outputs(graph, execution.outputs, run_sequential(graph, given))
    if not found.equal:
        raise DopplerError(
            f"{graph.name}: result {found.name!r} differs from the sequential run by "
            f"{found.difference:.3g}, more than the tolerance of {found.tolerance:.3g}"
        )
    return {"largest_difference": found.difference, "tolerance": found.tolerance}


def _print(values: dict[str, Any]) -> None:
    from rich.text import Text

    from doppler.cli.devices import table_of_devices
    from doppler.viewer.units import format_seconds

    makespans = values["makespans_s"]
    rows = [("makespan", format_seconds(values["makespan_s"]))]
    if len(makespans) > 1:
        span = f"{format_seconds(makespans[0])} to {format_seconds(makespans[-1])}"
        rows.append(("of", f"{len(makespans)} runs, {span}"))
    moved = f"{values['transfers']:,}, {format_seconds(values['transfer_s'])} in all"
    rows += [
        ("run-time", values["runtime"]),
        ("transfers", moved),
        ("idle while ready", f"{format_seconds(values['longest_idle_s'])} at the longest"),
    ]
    if values["jitter"]:
        rows.append(("jitter", f"{values['jitter']:g}, seed {values['seed']}"))
    if values["check"]:
        difference, tolerance = values["check"].values()
        rows.append(
            ("check", f"equal to the sequential run within {difference:.2g} (of {tolerance:.2g})")
        )
    if values["trace"]:
        rows.append(("trace", values["trace"]))
    where = f" of {values['cluster']}" if values["cluster"] else ""
    print_text(
        make_title(f"{values['graph']} on {values['backend']} devices{where}"),
        make_facts(rows),
        Text(),
        table_of_devices(values["by_device"]),
    )
