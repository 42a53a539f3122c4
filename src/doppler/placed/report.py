"""A page about a placed model: its timeline, its memory, what moves, and one device beside it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from doppler.files import write_atomic
from doppler.placement import Placement
from doppler.simulator import simulate
from doppler.trace import Trace
from doppler.viewer.timeline import render_timeline
from doppler.viewer.units import count_of, format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from doppler.placed.model import PlacedModel

_MOST_MOVED = 12


def write_report(placed: PlacedModel, path: str | Path) -> Path:
    """Write the page; see :meth:`doppler.placed.PlacedModel.report`."""
    problem = placed.problem
    simulated = simulate(problem, placed.placement)
    alone = simulate(problem, Placement(np.zeros(problem.n_ops, np.int32)))
    last = placed.last_execution
    shown: Trace = simulated.trace if last is None else last.trace
    peak = simulated.peak_memory if last is None else last.peak_memory
    facts = [
        ("model", f"{placed.graph.name}, {count_of(problem.n_ops, 'op')}"),
        ("devices", ", ".join(device.name for device in placed.cluster.devices)),
        ("simulated", format_seconds(simulated.makespan)),
        ("simulated, one device", format_seconds(alone.makespan)),
    ]
    if last is not None:
        facts.append(("measured, the last call", format_seconds(last.makespan)))
    one = placed.measured.get("one device")
    if one is not None:
        facts.append(("measured when compiled, one device", format_seconds(one)))
        facts.append(("measured when compiled, placed", format_seconds(placed.measured["placed"])))
    before, after = (
        (one, placed.measured["placed"])
        if one is not None
        else (alone.makespan, simulated.makespan)
    )
    traces = [simulated.trace] if last is None else [last.trace, simulated.trace]
    page = render_timeline(
        traces,
        problem,
        template="placed.html",
        headline=f"{before / after:.2f} times as fast as one device",
        facts=facts,
        devices=_devices(placed, shown, peak),
        moved=_moved(placed, shown),
    )
    return write_atomic(path, page)


def _devices(placed: PlacedModel, trace: Trace, peak: np.ndarray) -> list[list[str]]:
    rows = [["device", "ops", "busy", "load", "peak memory", "of"]]
    for number, device in enumerate(placed.cluster.devices):
        own = trace.device == number
        busy = float((trace.end - trace.start)[own].sum())
        limit = format_bytes(device.memory) if np.isfinite(device.memory) else "no limit"
        rows.append(
            [
                device.name,
                f"{int(own.sum()):,}",
                format_seconds(busy),
                format_percent(busy / trace.makespan if trace.makespan else 0.0),
                format_bytes(float(peak[number])),
                limit,
            ]
        )
    return rows


def _moved(placed: PlacedModel, trace: Trace) -> list[list[str]]:
    """List the outputs that take most bytes from one device to another."""
    graph, names = placed.graph, trace.device_names
    sent: Counter[tuple[int, int, int]] = Counter()
    for op, source, target in zip(
        trace.transfer_op.tolist(),
        trace.transfer_source.tolist(),
        trace.transfer_target.tolist(),
        strict=True,
    ):
        sent[op, source, target] += int(graph.output_bytes[op])
    rows = [["output of", "from", "to", "bytes"]]
    for (op, source, target), size in sent.most_common(_MOST_MOVED):
        rows.append([graph.names[op], names[source], names[target], format_bytes(size)])
    total = sum(sent.values())
    if len(sent) > _MOST_MOVED:
        rows.append([f"all {len(sent):,}", "", "", format_bytes(total)])
    return rows
