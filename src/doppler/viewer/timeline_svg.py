"""A timeline as a static picture, for a README or a report."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from doppler.problem import Problem
from doppler.trace import Trace
from doppler.viewer.labels import Labels, check_ops, labels_of
from doppler.viewer.lanes import Lane, device_lanes, link_lanes
from doppler.viewer.palette import TRANSFER, categorize
from doppler.viewer.units import count_of, format_seconds, seconds_unit, significant, ticks

_ROW, _LINK_ROW, _GAP = 22, 8, 5
_CHARACTER = 6.6
_MOST_LINKS = 12
_STYLE = (
    ".dp-text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#4a5565}"
    ".dp-small{font-size:10px}.dp-head{font-weight:600;fill:#1c2430}.dp-lane{fill:#8d9aad;fill-opacity:.14}"
    ".dp-grid{stroke:#8d9aad;stroke-opacity:.3}"
    "@media (prefers-color-scheme:dark){.dp-text{fill:#aab4c2}.dp-head{fill:#e4e9f0}}"
)


def timeline_svg(
    trace: Trace,
    source: Problem | Labels,
    *,
    title: str | None = None,
    width: int = 960,
    links: bool = True,
    by: str = "kind",
) -> str:
    """Draw a trace as one SVG element that needs nothing else.

    Parameters
    ----------
    trace : Trace
        Simulated or measured.
    source : Problem, Graph or OpLabels
        Names, kinds and meta-ops of the ops.
    title : str, optional
        Heading above the lanes; an empty one leaves the line out. By default the trace's label
        and makespan.
    width : int
        Pixels of the view box; the picture scales with its container.
    links : bool
        Draw a lane per channel and link as well, of the twelve that are the busiest.
    by : str
        Color by ``"kind"`` or by ``"meta_op"``.

    Raises
    ------
    DopplerError
        If the trace is of another graph.
    """
    labels = labels_of(source)
    check_ops([trace], labels)
    used = sorted(set(trace.op.tolist()))
    groups = labels.kinds if by == "kind" else labels.meta_ops
    categories = categorize([groups[op] for op in used])
    index = dict(zip(used, categories.index, strict=True))
    channels = link_lanes(trace, max_rows=1) if links else []
    busiest = sorted(channels, key=lambda lane: -lane.utilization)[:_MOST_LINKS]
    lanes = device_lanes(trace) + [lane for lane in channels if lane in busiest]
    heading = f"{trace.label}: {format_seconds(trace.makespan)}" if title is None else title
    left = min(
        width * 0.3, 14 + _CHARACTER * max((len(lane.name) + 6 for lane in lanes), default=0)
    )
    plot = width - left - 16
    span = trace.makespan or 1.0

    parts: list[str] = []
    y = 10.0
    if heading:
        parts.append(_text(0, y + 6, heading, "dp-text dp-head"))
        y += 22
    legend = list(zip(categories.values, categories.colors, strict=True))
    if links and trace.transfer_op.size:
        legend.append(("transfer", TRANSFER))
    swatches, y = _legend(legend, y, width)
    parts += swatches
    axis_y = y + 6
    y += 16
    top = y
    boxes: list[str] = []
    for lane in lanes:
        height = _ROW if lane.is_device else _LINK_ROW
        tall = height * lane.n_rows
        parts.append(
            f'<rect class="dp-lane" x="{left:g}" y="{y:g}" width="{plot:g}" height="{tall}"/>'
        )
        room = int((left - 52) / _CHARACTER)
        name = lane.name if len(lane.name) <= room else lane.name[: max(1, room - 1)] + "…"
        style = "dp-text" if lane.is_device else "dp-text dp-small"
        parts.append(_text(0, y + tall / 2 + 4, name, style))
        share = f"{lane.utilization * 100:.0f}%"
        parts.append(_text(left - 8, y + tall / 2 + 4, share, style, anchor="end"))
        colors = [categories.colors[index[op]] for op in lane.ops] if lane.is_device else None
        boxes += _boxes(lane, colors, left, y, plot / span, height)
        y += tall + _GAP
    scale, unit = seconds_unit(trace.makespan)
    for tick in ticks(trace.makespan / scale):
        x = left + tick * scale / span * plot
        parts.append(f'<line class="dp-grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{y:g}"/>')
        text = (
            significant(tick, 4).rstrip("0").rstrip(".")
            if "." in significant(tick)
            else f"{tick:g}"
        )
        parts.append(_text(x, axis_y, f"{text} {unit}" if tick == 0 else text, anchor="middle"))
    if len(channels) > len(busiest):
        y += 10
        rest = f"and {count_of(len(channels) - len(busiest), 'less busy link')}"
        parts.append(_text(0, y, rest, "dp-text dp-small"))
        y += 4
    body = "".join(parts + boxes)
    name = escape(heading or trace.label, quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y + 2:g}" width="100%" '
        f'role="img" aria-label="{name}"><style>{_STYLE}</style>{body}</svg>'
    )


def _boxes(
    lane: Lane, colors: Sequence[str] | None, left: float, top: float, scale: float, height: int
) -> list[str]:
    """One path per color; what shares a pixel becomes one box, in the color of its first."""
    paths: dict[str, list[str]] = {}
    open_boxes: dict[int, tuple[str, float, float]] = {}

    def close(row: int) -> None:
        color, x0, x1 = open_boxes.pop(row)
        gap = 0.6 if x1 - x0 > 3 else 0.0
        width = max(0.3, x1 - x0 - gap)
        y = top + row * height + (1 if height > 10 else 0.5)
        tall = height - (2 if height > 10 else 1)
        paths.setdefault(color, []).append(f"M{x0:.2f} {y:g}h{width:.2f}v{tall}h-{width:.2f}z")

    for k, (row, start, end) in enumerate(zip(lane.rows, lane.starts, lane.ends, strict=True)):
        color = TRANSFER if colors is None else colors[k]
        x0, x1 = left + start * scale, left + end * scale
        if row in open_boxes:
            before, first, last = open_boxes[row]
            if last >= x1 and before == color:
                continue
            if x0 - last < 0.25 and x1 - first < 1:
                open_boxes[row] = (before, first, max(last, x1))
                continue
            close(row)
        open_boxes[row] = (color, x0, x1)
    for row in list(open_boxes):
        close(row)
    return [f'<path fill="{color}" d="{"".join(d)}"/>' for color, d in paths.items()]


def _legend(entries: list[tuple[str, str]], y: float, width: int) -> tuple[list[str], float]:
    limit = 16
    parts: list[str] = []
    x = 0.0
    shown = [(name[:28] + "…" if len(name) > 29 else name, c) for name, c in entries[:limit]]
    if len(entries) > limit:
        shown.append((f"and {len(entries) - limit} more", ""))
    for name, color in shown:
        room = 22 + _CHARACTER * len(name) + 10
        if x and x + room > width:
            x = 0.0
            y += 18
        if color:
            parts.append(
                f'<rect x="{x:g}" y="{y - 4:g}" width="11" height="11" rx="2" fill="{color}"/>'
            )
        parts.append(_text(x + 16, y + 6, name or "(none)"))
        x += room
    return parts, y + 22


def _text(x: float, y: float, text: str, style: str = "dp-text", anchor: str = "start") -> str:
    place = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}"{place}>{_xml(text)}</text>'


def _xml(text: str) -> str:
    # XML 1.0 has no place for most control characters, even escaped.
    return escape("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))
