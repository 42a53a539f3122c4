"""``doppler show``: a graph, a placement or a trace, in the terminal or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doppler.cli.inputs import (
    WORKLOAD,
    check_output,
    check_placement,
    read_graph,
    read_problem,
    stdin,
    stdin_among,
    stdout,
)
from doppler.cli.options import ClusterOption, JsonOption
from doppler.cli.output import make_facts, make_table, make_title, print_json, print_text, progress
from doppler.errors import DopplerError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from doppler.graph import Graph
    from doppler.placement import Placement
    from doppler.problem import Problem
    from doppler.trace import Trace
    from doppler.viewer import Labels, OpLabels

EXAMPLES = (
    "doppler show layer.json",
    "doppler show layer.json -o layer.html",
    "doppler show placement.json --graph layer.json --cluster p100x4 --timeline -o run.html",
    "doppler show trace.json",
    "doppler show trace.json --beside measured.json -o both.html",
)
_PLACEMENT, _TRACE = "doppler-placement", "doppler-trace"


def show(
    source: Annotated[
        str,
        typer.Argument(
            metavar="GRAPH|PLACEMENT|TRACE",
            help="A file, told apart by its content, '-' for stdin, or workload:NAME.",
            show_default=False,
            callback=stdin,
        ),
    ],
    graph: Annotated[
        str | None,
        typer.Option(
            "--graph",
            "-g",
            metavar="GRAPH",
            help="Graph of the placement.",
            show_default=False,
            callback=stdin,
        ),
    ] = None,
    cluster: ClusterOption = None,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Of a placement: its simulated run, not the graph.")
    ] = False,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            "--beside",
            metavar="TRACE",
            help="Further traces of the same graph below, on one time axis; may be repeated.",
            show_default=False,
            callback=stdin_among,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT.html",
            help="Write one self-contained HTML page instead of a summary; '-' is stdout.",
            show_default=False,
            callback=stdout,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show a graph, a placement or a trace."""
    silent = check_output(output, source, graph, cluster, *(beside or ()), json=json)
    with progress("loading"):
        kind, content = _read(source)
        if kind != "placement" and (graph or cluster or timeline):
            raise DopplerError(
                f"{source}: is a {kind}; --graph, --cluster and --timeline go with a placement"
            )
        if beside and not (kind == "trace" or timeline):
            raise DopplerError(
                f"{source}: is a {kind}; --beside goes with a trace, or a placement with --timeline"
            )
        others = _others(beside or [])
        paged = output is not None
        page, summary, values = {
            "graph": lambda: _graph(content, paged),
            "placement": lambda: _placement(
                content, source, graph, cluster, timeline, paged, others
            ),
            "trace": lambda: _trace(content, source, paged, others),
        }[kind]()
    if output is not None:
        from doppler.files import write_atomic

        write_atomic(output, page)
    if json:
        print_json({"kind": kind, **values, "output": None if output is None else str(output)})
    elif output is None:
        print_text(summary)
    elif not silent:
        from rich.text import Text

        from doppler.viewer.labels import printable
        from doppler.viewer.units import count_of

        print_text(Text(printable(f"{output}: {kind} of {count_of(values['ops'], 'op')}")))


def _read(source: str) -> tuple[str, Any]:
    """Read a file, once, and tell by its content what it holds."""
    if source.startswith(WORKLOAD):
        return "graph", read_graph(source)
    from doppler.documents.json_text import parse_json
    from doppler.files import read_text

    text = read_text(source, "graph, placement or trace", DopplerError)
    if _PLACEMENT in text or _TRACE in text:
        document = parse_json(text, source, "placement or trace", DopplerError)
        if isinstance(document, dict):
            other = document.get("otherData")
            if document.get("format") == _PLACEMENT:
                from doppler.placement import Placement

                return "placement", Placement.from_json(document, source)
            if isinstance(other, dict) and other.get("format") == _TRACE:
                from doppler.viewer import from_chrome

                return "trace", from_chrome(document, source)
    from doppler.graph.formats import parse_graph

    return "graph", parse_graph(text, source)


def _graph(graph: Graph, paged: bool) -> tuple[str, RenderableType, dict[str, Any]]:
    from collections import Counter

    from doppler.graph.shared_tiles import shared_tiles
    from doppler.viewer import render_graph, summarize_graph

    values = {
        "graph": graph.name,
        "ops": graph.n_ops,
        "edges": graph.n_edges,
        "meta_ops": len(set(graph.meta_ops)),
        "levels": int(graph.depth.max()) + 1,
        "kinds": dict(Counter(graph.kinds).most_common()),
        "flops": float(graph.flops.sum()),
        "output_bytes": float(graph.output_bytes.sum()),
        "parameter_bytes": shared_tiles(graph).total,
        "compute_s": None if graph.compute_s is None else float(graph.compute_s.sum()),
        "transfer_s": None if graph.transfer_s is None else float(graph.transfer_s.sum()),
    }
    return render_graph(graph) if paged else "", summarize_graph(graph), values


def _others(paths: list[str]) -> list[Trace]:
    if not paths:
        return []
    from doppler.viewer import load_chrome

    return [load_chrome(path)[0] for path in paths]


def _trace(
    read: tuple[Trace, OpLabels], source: str, paged: bool, others: list[Trace]
) -> tuple[str, RenderableType, dict[str, Any]]:
    from doppler.files import name_of
    from doppler.viewer import render_timeline

    trace, labels = read
    values = _run(trace, others)
    page = render_timeline([trace, *others], labels, name_of(source)) if paged else ""
    return page, _summaries([trace, *others], labels), values


def _run(trace: Trace, others: list[Trace]) -> dict[str, Any]:
    """Sum up a run, and those beside it."""
    import numpy as np

    busy = np.bincount(trace.device, trace.end - trace.start, minlength=len(trace.device_names))
    values = {
        "label": trace.label,
        "makespan_s": trace.makespan,
        "ops": int(trace.op.size),
        "transfers": int(trace.transfer_op.size),
        "busy_s": dict(zip(trace.device_names, busy.tolist(), strict=True)),
    }
    return {**values, "beside": [_run(other, []) for other in others]} if others else values


def _summaries(traces: list[Trace], source: Problem | Labels) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from doppler.viewer import summarize_trace

    parts = [part for trace in traces for part in (Text(), summarize_trace(trace, source))]
    return Group(*parts[1:])


def _placement(
    placement: Placement,
    source: str,
    graph: str | None,
    cluster: str | None,
    timeline: bool,
    paged: bool,
    others: list[Trace],
) -> tuple[str, RenderableType, dict[str, Any]]:
    if graph is None:
        if paged or timeline or cluster is not None:
            raise DopplerError(f"{source}: is a placement; give its graph too, with --graph")
        values = _facts(placement)
        return "", _summary(values), values
    if timeline or cluster is not None:
        return _simulated(placement, source, graph, cluster, timeline, paged, others)
    from doppler.viewer import render_graph

    loaded = read_graph(graph)
    check_placement(placement, loaded, source)
    values = _facts(placement)
    page = render_graph(loaded, placement, title=_title(loaded, placement)) if paged else ""
    return page, _summary(values), values


def _simulated(
    placement: Placement,
    source: str,
    graph: str,
    cluster: str | None,
    timeline: bool,
    paged: bool,
    others: list[Trace],
) -> tuple[str, RenderableType, dict[str, Any]]:
    from doppler.simulator import simulate
    from doppler.viewer import render_graph, render_timeline

    problem = read_problem(graph, cluster)
    check_placement(placement, problem.graph, source)
    result = simulate(problem, placement)
    names = [device.name for device in problem.cluster.devices]
    values = {**_facts(placement, names), "makespan_s": result.makespan}
    if others:
        values["beside"] = [_run(other, []) for other in others]
    title = _title(problem.graph, placement)
    page = ""
    if paged and timeline:
        page = render_timeline([result.trace, *others], problem, title)
    elif paged:
        page = render_graph(problem.graph, placement, device_names=names, title=title)
    traces = [result.trace, *others]
    summary = _summaries(traces, problem) if timeline else _summary(values)
    return page, summary, values


def _title(graph: Graph, placement: Placement) -> str:
    method = placement.info.get("method")
    return f"{graph.name}, placed by {method}" if method else f"{graph.name}, placed"


def _facts(placement: Placement, names: list[str] | None = None) -> dict[str, Any]:
    import numpy as np

    ops = np.bincount(placement.devices, minlength=len(names or [])).tolist()
    return {
        "ops": int(placement.devices.size),
        "prioritized": placement.priority is not None,
        "by_device": dict(zip(names or [f"device {d}" for d in range(len(ops))], ops, strict=True)),
        "info": dict(placement.info),
    }


def _summary(values: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from doppler.viewer.labels import printable
    from doppler.viewer.units import format_seconds

    info = values["info"]
    rows = [("ops", f"{values['ops']:,}")]
    if "makespan_s" in values:
        rows.append(("makespan", format_seconds(values["makespan_s"])))
    rows.append(("order", "by priority" if values["prioritized"] else "first ready, first run"))
    rows += [(str(key), str(value)) for key, value in info.items() if key != "graph"]
    table = make_table("device", ">ops")
    for name, ops in values["by_device"].items():
        table.add_row(Text(printable(name)), f"{ops:,}")
    title = make_title(str(info.get("graph", "placement")))
    return Group(title, make_facts(rows), Text(), table)
