"""Traces as JSON that Chrome's tracing page and Perfetto open, and back.

Format: "Trace Event Format" (Google, 2016), complete events (``"ph": "X"``), microseconds.
Process 0 holds the devices, process 1 the links.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from doppler.documents.json_text import read_json
from doppler.documents.schema import Strict, check
from doppler.errors import DopplerError
from doppler.trace import Trace
from doppler.viewer.labels import Labels, OpLabels, check_ops
from doppler.viewer.lanes import link_lanes

_FORMAT = "doppler-trace"
_VERSION = 1
_DEVICES, _LINKS = 0, 1
_MICRO = 1e6

Index = Annotated[int, Field(ge=0, lt=2**31)]
Time = Annotated[float, Field(allow_inf_nan=False)]
Duration = Annotated[Time, Field(ge=0)]
Channel = Annotated[int, Field(ge=-1, lt=2**31)]


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
    return _parse(document, f"{source}: is a damaged trace")


def load_chrome(path: str | os.PathLike[str]) -> tuple[Trace, OpLabels]:
    """Read a trace file that :func:`to_chrome` filled.

    Raises
    ------
    DopplerError
        If the file is missing, not JSON, or not a trace that Doppler wrote.
    """
    return from_chrome(read_json(path, "trace", DopplerError), str(path))


class _Ops(Strict):
    op: list[Index]
    device: list[Index]
    ts: list[Time]
    dur: list[Duration]
    name: list[str]
    cat: list[str]
    meta_op: list[str]


class _Transfers(Strict):
    op: list[Index]
    source: list[Index]
    target: list[Index]
    channel: list[Channel]
    ts: list[Time]
    dur: list[Duration]


class _Columns(Strict):
    """The events by column: a check of each event would take longer than all the rest."""

    device_names: list[str]
    label: str
    ops: _Ops
    transfers: _Transfers


def _parse(document: Any, where: str) -> tuple[Trace, OpLabels]:
    try:
        complete = [event for event in document["traceEvents"] if event["ph"] == "X"]
        ran = [event for event in complete if event["pid"] == _DEVICES]
        sent = [event for event in complete if event["pid"] == _LINKS]
        columns = {
            "device_names": document["otherData"]["device_names"],
            "label": document["otherData"]["label"],
            "ops": {
                "device": [event["tid"] for event in ran],
                **{key: [event[key] for event in ran] for key in ("ts", "dur", "name", "cat")},
                **{key: [event["args"][key] for event in ran] for key in ("op", "meta_op")},
            },
            "transfers": {
                **{key: [event[key] for event in sent] for key in ("ts", "dur")},
                **{
                    key: [event["args"][key] for event in sent]
                    for key in ("op", "source", "target", "channel")
                },
            },
        }
    except (KeyError, TypeError) as error:
        what = f"an event lacks {error}" if isinstance(error, KeyError) else str(error)
        raise DopplerError(f"{where}: {what}; make it again") from None
    read = check(_Columns, columns, where, DopplerError)
    ops, transfers = read.ops, read.transfers
    n_ops = 1 + max(*ops.op, *transfers.op, -1, -1)
    if n_ops > 4 * len(complete) + 1_000_000:
        raise DopplerError(f"{where}: it names {n_ops} ops in {len(complete)} events")
    n_devices = 1 + max(*ops.device, *transfers.source, *transfers.target, -1, -1)
    if n_devices > len(read.device_names):
        raise DopplerError(f"{where}: device {n_devices - 1} has no name; make it again")
    labels = [f"op{op}" for op in range(n_ops)]
    kinds = ["op"] * n_ops
    meta_ops = list(labels)
    for op, name, kind, meta_op in zip(ops.op, ops.name, ops.cat, ops.meta_op, strict=True):
        labels[op], kinds[op], meta_ops[op] = name, kind, meta_op
    start, sent_start = np.array(ops.ts, np.float64), np.array(transfers.ts, np.float64)
    trace = Trace(
        op=np.array(ops.op, np.int32),
        device=np.array(ops.device, np.int32),
        start=start / _MICRO,
        end=(start + np.array(ops.dur, np.float64)) / _MICRO,
        transfer_op=np.array(transfers.op, np.int32),
        transfer_source=np.array(transfers.source, np.int32),
        transfer_target=np.array(transfers.target, np.int32),
        transfer_start=sent_start / _MICRO,
        transfer_end=(sent_start + np.array(transfers.dur, np.float64)) / _MICRO,
        transfer_channel=np.array(transfers.channel, np.int32),
        device_names=tuple(read.device_names),
        label=read.label,
    )
    return trace, OpLabels(tuple(labels), tuple(kinds), tuple(meta_ops))


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
