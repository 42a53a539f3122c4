"""A timeline as one HTML file: what every device and link does at every moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from doppler.errors import DopplerError
from doppler.problem import Problem
from doppler.trace import Trace
from doppler.viewer.labels import Labels, check_ops, labels_of
from doppler.viewer.lanes import Lane, device_lanes, link_lanes
from doppler.viewer.page import embed_json, numbers, render
from doppler.viewer.palette import TRANSFER, categorize
from doppler.viewer.units import count_of, format_percent, format_seconds


def render_timeline(
    trace: Trace | Sequence[Trace],
    source: Problem | Labels,
    title: str | None = None,
    *,
    template: str = "timeline.html",
    **more: Any,
) -> str:
    """Draw one trace, or several below each other on one time axis, as a self-contained page.

    Parameters
    ----------
    trace : Trace or sequence of Trace
        Several traces of one graph share the axis, for instance simulated and measured.
    source : Problem, Graph or OpLabels
        Names, kinds and meta-ops of the ops.
    title : str, optional
        Heading of the page; by default the graph's name.
    template : str
        A page that extends that of the timeline.
    **more
        What that page shows beside it.

    Returns
    -------
    str
        HTML that needs no other file and no network.

    Raises
    ------
    DopplerError
        If there is no trace, or a trace is of another graph.
    """
    from markupsafe import Markup

    traces = [trace] if isinstance(trace, Trace) else list(trace)
    if not traces:
        raise DopplerError("timeline: no trace to draw; give at least one")
    labels = labels_of(source)
    check_ops(traces, labels)
    drawn = [(t, device_lanes(t), link_lanes(t)) for t in traces]
    data = {
        "names": labels.names,
        "kind": categorize(labels.kinds).to_json(),
        "meta": categorize(labels.meta_ops).to_json(),
        "transfer": TRANSFER,
        "traces": [
            {"makespan": t.makespan, "lanes": [_lane(lane) for lane in [*devices, *links]]}
            for t, devices, links in drawn
        ],
    }
    return render(
        "doppler.viewer",
        template,
        **more,
        title=title if title is not None else getattr(labels, "name", "Timeline"),
        traces=[
            {
                "label": t.label or "trace",
                "makespan": format_seconds(t.makespan),
                "note": _note(t, devices),
            }
            for t, devices, _ in drawn
        ],
        data=Markup(embed_json(data)),
    )


def _note(trace: Trace, devices: list[Lane]) -> str:
    mean = sum(lane.utilization for lane in devices) / max(1, len(devices))
    return (
        f"{count_of(trace.op.size, 'op')}, {count_of(trace.transfer_op.size, 'transfer')}, "
        f"{count_of(len(devices), 'device')}, "
        f"busy {format_percent(mean)} of the time on average"
    )


def _lane(lane: Lane) -> dict[str, Any]:
    routes = categorize(lane.routes)
    crowded = f" (up to {lane.peak} at once)" if lane.peak > lane.n_rows else ""
    return {
        "name": lane.name + crowded,
        "device": lane.is_device,
        "rows": lane.n_rows,
        "utilization": round(lane.utilization, 4),
        "op": lane.ops.tolist(),
        "row": lane.rows.tolist(),
        "start": numbers(lane.starts),
        "length": numbers(lane.ends - lane.starts, 6),
        "route": routes.values,
        "routeOf": routes.index,
    }
