"""Traces as JSON that Chrome's tracing page and Perfetto open, and back.

Format: "Trace Event Format" (Google, 2016), complete events (``"ph": "X"``), microseconds.
Process 0 holds the devices, process 1 the links.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from doppler.documents.json_text import read_json
from doppler.errors import DopplerError
from doppler.trace import Trace
from doppler.viewer.labels import Labels, OpLabels, check_ops
from doppler.viewer.lanes import link_lanes

_FORMAT = "doppler-trace"
_VERSION = 1
_DEVICES, _LINKS = 0, 1
_MICRO = 1e6


def to_chrome(trace: Trace, graph: Labels) -> dict[str, Any]:
    """Write a trace in the trace event format.

    Parameters
    ----------
    trace : Trace
        Simulated or measured.
    graph : Graph or OpLabels
        Names, kinds and meta-ops of the ops.

    Returns
    -------
    dict
        JSON-able. ``otherData`` has what :func:`from_chrome` needs beyond the events.

    Raises
    ------
    DopplerError
        If the trace is of another graph.
    """
    check_ops([trace], graph)
    events: list[dict[str, Any]] = [
        _meta("process_name", _DEVICES, 0, name="devices"),
        _meta("process_name", _LINKS, 0, name="links"),
    ]
    for device, name in enumerate(trace.device_names):
        events.append(_meta("thread_name", _DEVICES, device, name=name))
        events.append(_meta("thread_sort_index", _DEVICES, device, sort_index=device))
    ops = zip(*(a.tolist() for a in (trace.op, trace.device, trace.start, trace.end)), strict=True)
    for op, device, start, end in ops:
        args = {"op": op, "meta_op": graph.meta_ops[op]}
        events.append(
            _complete(graph.names[op], graph.kinds[op], _DEVICES, device, start, end, args)
        )
    threads = _link_threads(trace, events)
    columns = (
        trace.transfer_op,
        trace.transfer_source,
        trace.transfer_target,
        trace.transfer_channel,
        trace.transfer_start,
        trace.transfer_end,
    )
    transfers = zip(*(column.tolist() for column in columns), strict=True)
    for thread, (op, source, target, channel, start, end) in zip(threads, transfers, strict=True):
        args = {"op": op, "source": source, "target": target, "channel": channel}
        events.append(_complete(graph.names[op], "transfer", _LINKS, thread, start, end, args))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "format": _FORMAT,
            "version": _VERSION,
            "label": trace.label,
            "makespan_s": float(trace.makespan),
            "device_names": list(trace.device_names),
        },
    }


def from_chrome(document: Any, source: str = "trace") -> tuple[Trace, OpLabels]:
    """Read back what :func:`to_chrome` wrote.

    Parameters
    ----------
    document : object
        The parsed JSON.
    source : str
        Where it comes from, for error messages.

    Returns
    -------
    trace : Trace
        Times agree with the original to a rounding error of microseconds in float64.
    labels : OpLabels
        Labels of the ops that the trace names; an op that it does not run is called ``op7``.

    Raises
    ------
    DopplerError
        If the document is not a trace that Doppler wrote.
    """
    other = document.get("otherData") if isinstance(document, Mapping) else None
    if not isinstance(other, Mapping) or other.get("format") != _FORMAT:
        raise DopplerError(
            f"{source}: is not a trace; make one with 'doppler simulate --trace' or "
            "'doppler run --trace'"
        )
    if other.get("version") != _VERSION:
        raise DopplerError(
            f"{source}: is a trace of version {other.get('version')}, this Doppler reads "
            f"version {_VERSION}; make it again with 'doppler simulate --trace'"
        )
    try:
        return _parse(document, other)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise DopplerError(f"{source}: is a damaged trace ({what}); make it again") from None


def load_chrome(path: str | os.PathLike[str]) -> tuple[Trace, OpLabels]:
    """Read a trace file that :func:`to_chrome` filled.

    Raises
    ------
    DopplerError
        If the file is missing, not JSON, or not a trace that Doppler wrote.
    """
    return from_chrome(read_json(path, "trace", DopplerError), str(path))


def _parse(document: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[Trace, OpLabels]:
    names = tuple(str(name) for name in other["device_names"])
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    ran = [event for event in events if event["pid"] == _DEVICES]
    sent = [event for event in events if event["pid"] == _LINKS]
    n_ops = 1 + max((int(event["args"]["op"]) for event in events), default=-1)
    if n_ops > 4 * len(events) + 1_000_000:
        raise ValueError(f"it names {n_ops} ops in {len(events)} events")
    labels = [f"op{op}" for op in range(n_ops)]
    kinds = ["op"] * n_ops
    meta_ops = list(labels)
    for event in ran:
        op = _index(event["args"]["op"], n_ops, "op")
        labels[op] = str(event["name"])
        kinds[op] = str(event["cat"])
        meta_ops[op] = str(event["args"]["meta_op"])

    def column(rows: list[Any], key: str, limit: int) -> Any:
        return np.array([_index(row["args"][key], limit, key) for row in rows], np.int32)

    def seconds(rows: list[Any]) -> tuple[Any, Any]:
        start = np.array([_time(row["ts"]) for row in rows])
        return start / _MICRO, (start + np.array([_time(row["dur"]) for row in rows])) / _MICRO

    start, end = seconds(ran)
    sent_start, sent_end = seconds(sent)
    trace = Trace(
        op=column(ran, "op", n_ops),
        device=np.array([_index(row["tid"], len(names), "device") for row in ran], np.int32),
        start=start,
        end=end,
        transfer_op=column(sent, "op", n_ops),
        transfer_source=column(sent, "source", len(names)),
        transfer_target=column(sent, "target", len(names)),
        transfer_start=sent_start,
        transfer_end=sent_end,
        transfer_channel=np.array([int(row["args"]["channel"]) for row in sent], np.int32),
        device_names=names,
        label=str(other["label"]),
    )
    return trace, OpLabels(tuple(labels), tuple(kinds), tuple(meta_ops))


def _index(value: Any, limit: int, what: str) -> int:
    number = int(value)
    if not 0 <= number < limit:
        raise ValueError(f"{what} {number} is not between 0 and {limit - 1}")
    return number


def _time(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"a time is {number}")
    return number


def _link_threads(trace: Trace, events: list[dict[str, Any]]) -> list[int]:
    """Name the threads of the links and return the thread of every transfer.

    Complete events of one thread must nest, so transfers that overlap get a thread of their own.
    """
    threads = np.zeros(trace.transfer_op.size, np.int64)
    offset = 0
    for lane in link_lanes(trace, max_rows=None):
        threads[lane.items] = offset + lane.rows
        for row in range(lane.n_rows):
            name = lane.name if lane.n_rows == 1 else f"{lane.name} #{row + 1}"
            events.append(_meta("thread_name", _LINKS, offset + row, name=name))
            events.append(_meta("thread_sort_index", _LINKS, offset + row, sort_index=offset + row))
        offset += lane.n_rows
    return threads.tolist()


def _meta(event: str, process: int, thread: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": event, "pid": process, "tid": thread, "args": args}


def _complete(
    name: str,
    category: str,
    process: int,
    thread: int,
    start: float,
    end: float,
    args: dict[str, Any],
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": process,
        "tid": thread,
        "ts": start * _MICRO,
        "dur": (end - start) * _MICRO,
        "args": args,
    }
