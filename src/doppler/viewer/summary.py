"""Summaries of graphs and traces for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from doppler.graph import Graph
from doppler.graph.shared_tiles import shared_tiles
from doppler.problem import Problem
from doppler.trace import Trace
from doppler.viewer.labels import Labels, check_ops, labels_of, printable
from doppler.viewer.lanes import Lane, device_lanes, link_lanes
from doppler.viewer.units import (
    count_of,
    format_bytes,
    format_flops,
    format_percent,
    format_seconds,
)

_MOST_KINDS = 8
_MOST_LINKS = 8
_BAR = 24


def summarize_graph(graph: Graph) -> RenderableType:
    """Describe a graph in a screenful.

    Parameters
    ----------
    graph : Graph

    Returns
    -------
    rich renderable
        Size and shape, the total of every cost that is given, the machine that the file names,
        and the most frequent kinds of op with their share of the cost.
    """
    depth = graph.depth
    widths = np.bincount(depth)
    widest = int(widths.argmax())
    facts: list[tuple[str, str]] = [
        ("ops", f"{graph.n_ops:,}"),
        ("meta-ops", f"{len(set(graph.meta_ops)):,}"),
        ("edges", f"{graph.n_edges:,}"),
        ("depth", count_of(len(widths), "level")),
        ("widest level", f"{count_of(int(widths[widest]), 'op')} at depth {widest}"),
    ]
    if graph.flops.any():
        facts.append(("compute", format_flops(float(graph.flops.sum()))))
    if graph.output_bytes.any():
        facts.append(("outputs", format_bytes(float(graph.output_bytes.sum()))))
    if graph.param_bytes.any():
        facts.append(("parameters", format_bytes(shared_tiles(graph).total)))
    if graph.compute_s is not None:
        facts.append(("compute", format_seconds(float(graph.compute_s.sum()))))
    for name, cost in graph.class_compute_s.items():
        able = np.isfinite(cost)
        total = format_seconds(float(cost[able].sum()))
        facts.append(
            (f"compute ({printable(name)})", f"{total} in {count_of(int(able.sum()), 'op')}")
        )
    if graph.transfer_s is not None:
        facts.append(("transfers", format_seconds(float(graph.transfer_s.sum()))))
    pinned = int((graph.pinned >= 0).sum())
    if pinned:
        facts.append(("pinned", count_of(pinned, "op")))
    groups = np.unique(graph.colocation[graph.colocation >= 0]).size
    if groups:
        facts.append(("colocation", count_of(groups, "group")))
    if graph.machine is not None:
        machine = graph.machine
        facts.append(
            (
                "machine",
                f"{count_of(machine.accelerators, 'accelerator')} of "
                f"{format_bytes(machine.accelerator_memory)}, {count_of(machine.cpus, 'CPU')}",
            )
        )
    return Group(_facts(graph.name, facts), Text(), _kinds(graph))


def summarize_trace(trace: Trace, source: Problem | Labels | None = None) -> RenderableType:
    """Describe a run in a screenful.

    Parameters
    ----------
    trace : Trace
        Simulated or measured.
    source : Problem, Graph or OpLabels, optional
        Names of the ops; without it they go by number.

    Returns
    -------
    rich renderable
        Makespan, the last op, how busy every device and the busiest links were.

    Raises
    ------
    DopplerError
        If the trace is of another graph.
    """
    facts = [("makespan", format_seconds(trace.makespan)), ("ops", f"{trace.op.size:,}")]
    if trace.op.size:
        last = int(trace.op[trace.end.argmax()])
        name = f"op {last}"
        if source is not None:
            labels = labels_of(source)
            check_ops([trace], labels)
            name = labels.names[last]
        facts.append(("last op", name))
    moved = float((trace.transfer_end - trace.transfer_start).sum())
    facts.append(("transfers", f"{trace.transfer_op.size:,}, {format_seconds(moved)} in all"))
    parts: list[RenderableType] = [_facts(trace.label, facts), Text()]
    parts.append(_lanes("device", "ops", device_lanes(trace)))
    links = sorted(link_lanes(trace), key=lambda lane: -lane.utilization)
    if links:
        parts += [Text(), _lanes("link", "transfers", links[:_MOST_LINKS])]
        if len(links) > _MOST_LINKS:
            rest = len(links) - _MOST_LINKS
            parts.append(Text(f"and {rest} more, less busy", style="dim"))
    return Group(*parts)


def _facts(title: str, facts: Sequence[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    table.add_row(Text(""), Text(printable(title), style="bold"))
    for name, value in facts:
        table.add_row(name, Text(printable(value)))
    return table


def _kinds(graph: Graph) -> Table:
    cost = graph.flops if graph.compute_s is None else graph.compute_s
    total = float(cost.sum())
    counts = Counter(graph.kinds)
    work: Counter[str] = Counter()
    for kind, amount in zip(graph.kinds, cost.tolist(), strict=True):
        work[kind] += amount
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("kind", overflow="fold")
    table.add_column("ops", justify="right")
    if total:
        table.add_column("share of compute", justify="right")
    common = counts.most_common()
    for kind, count in common[:_MOST_KINDS]:
        share = [format_percent(work[kind] / total)] if total else []
        table.add_row(Text(printable(kind)), f"{count:,}", *share)
    rest = common[_MOST_KINDS:]
    if rest:
        share = [format_percent(sum(work[kind] for kind, _ in rest) / total)] if total else []
        table.add_row(f"{len(rest)} more kinds", f"{sum(c for _, c in rest):,}", *share)
    return table


def _lanes(what: str, items: str, lanes: Sequence[Lane]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column(what, overflow="fold")
    table.add_column(items, justify="right")
    table.add_column("busy", justify="right")
    table.add_column("")
    for lane in lanes:
        full = round(lane.utilization * _BAR)
        bar = Text("━" * full, style="cyan")
        count = f"{lane.ops.size:,}"
        table.add_row(Text(printable(lane.name)), count, format_percent(lane.utilization), bar)
    return table
