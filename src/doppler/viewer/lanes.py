"""Lanes of a timeline: one per device, one per channel or uncontended link."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from doppler.trace import Trace

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: Rows that one lane of a drawing may take; what overlaps beyond them is drawn over the last row.
MAX_ROWS = 6


@dataclass(frozen=True, eq=False)
class Lane:
    """Intervals that belong on one line of a timeline.

    Attributes
    ----------
    name : str
        Device, channel or link.
    is_device : bool
        True for ops, False for transfers.
    items : int array, shape [items]
        Places in the trace's arrays of ops or of transfers.
    ops : int array, shape [items]
        Op that runs, or whose output is sent.
    starts, ends : float64 array, shape [items]
        Seconds, in order of start.
    rows : int array, shape [items]
        Row within the lane, 0 unless items overlap.
    n_rows : int
        Rows in use, at most ``max_rows``.
    peak : int
        Most items at one moment.
    utilization : float
        Share of the makespan in which at least one item runs.
    routes : tuple of str, length items
        ``"gpu0 → gpu1"`` for transfers, empty for a device.
    """

    name: str
    is_device: bool
    items: IntArray
    ops: IntArray
    starts: FloatArray
    ends: FloatArray
    rows: IntArray
    n_rows: int
    peak: int
    utilization: float
    routes: tuple[str, ...]


def device_lanes(trace: Trace, max_rows: int | None = MAX_ROWS) -> list[Lane]:
    """One lane per device, in the order of the devices, idle ones too.

    ``max_rows`` limits the rows of a lane; None does not.
    """
    return [
        _lane(name, True, np.flatnonzero(trace.device == device), trace, max_rows)
        for device, name in enumerate(trace.device_names)
    ]


def link_lanes(trace: Trace, max_rows: int | None = MAX_ROWS) -> list[Lane]:
    """One lane per channel in use, then one per pair of devices with an uncontended link in use.

    ``max_rows`` limits the rows of a lane; None does not.
    """
    lanes: list[Lane] = []
    names = trace.device_names
    for channel in np.unique(trace.transfer_channel[trace.transfer_channel >= 0]):
        items = np.flatnonzero(trace.transfer_channel == channel)
        pairs = {(int(trace.transfer_source[i]), int(trace.transfer_target[i])) for i in items}
        alone = next(iter(pairs)) if len(pairs) == 1 else None
        name = f"{names[alone[0]]} → {names[alone[1]]}" if alone else f"channel {channel}"
        lanes.append(_lane(name, False, items, trace, max_rows))
    free = np.flatnonzero(trace.transfer_channel < 0)
    pair = trace.transfer_source[free].astype(np.int64) * len(names) + trace.transfer_target[free]
    for key in np.unique(pair):
        source, target = divmod(int(key), len(names))
        name = f"{names[source]} → {names[target]}"
        lanes.append(_lane(name, False, free[pair == key], trace, max_rows))
    return lanes


def _lane(name: str, is_device: bool, items: IntArray, trace: Trace, max_rows: int | None) -> Lane:
    if is_device:
        ops, starts, ends = trace.op[items], trace.start[items], trace.end[items]
    else:
        ops = trace.transfer_op[items]
        starts, ends = trace.transfer_start[items], trace.transfer_end[items]
    order = np.lexsort((ends, starts))
    starts, ends = starts[order], ends[order]
    rows, peak = _pack(starts.tolist(), ends.tolist(), 1e-9 * trace.makespan)
    most = max(1, peak if max_rows is None else min(peak, max_rows))
    names = trace.device_names
    routes = (
        ()
        if is_device
        else tuple(
            f"{names[trace.transfer_source[i]]} → {names[trace.transfer_target[i]]}"
            for i in items[order]
        )
    )
    return Lane(
        name=name,
        is_device=is_device,
        items=items[order],
        ops=ops[order].astype(np.int64),
        starts=starts,
        ends=ends,
        rows=np.minimum(np.array(rows, np.int64), most - 1),
        n_rows=most,
        peak=peak,
        utilization=_covered(starts, ends) / trace.makespan if trace.makespan > 0 else 0.0,
        routes=routes,
    )


def _pack(starts: list[float], ends: list[float], tolerance: float) -> tuple[list[int], int]:
    """Give overlapping intervals different rows, the lowest free one first; O(n log n)."""
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    rows: list[int] = []
    count = 0
    for start, end in zip(starts, ends, strict=True):
        while busy and busy[0][0] <= start + tolerance:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            row = heapq.heappop(free)
        else:
            row = count
            count += 1
        rows.append(row)
        heapq.heappush(busy, (end, row))
    return rows, count


def _covered(starts: FloatArray, ends: FloatArray) -> float:
    """Length of the union of intervals that are sorted by start."""
    if starts.size == 0:
        return 0.0
    reached = np.maximum.accumulate(ends)
    begins = np.maximum(starts[1:], reached[:-1])
    return float(ends[0] - starts[0] + np.maximum(ends[1:] - begins, 0).sum())
