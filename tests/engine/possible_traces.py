"""What must hold for the trace of any run."""

from __future__ import annotations

import numpy as np

from doppler import Graph, Placement
from doppler.trace import Trace


def assert_possible(graph: Graph, placement: Placement, trace: Trace) -> None:
    """Every op once, on its device, after its inputs; a device or channel does one at a time."""
    n_ops = graph.n_ops
    assert sorted(trace.op.tolist()) == list(range(n_ops))
    np.testing.assert_array_equal(trace.device, placement.devices[trace.op])
    start, end = np.empty(n_ops), np.empty(n_ops)
    start[trace.op], end[trace.op] = trace.start, trace.end
    assert (start >= 0).all()
    assert (end >= start).all()
    assert (np.diff(trace.start) >= 0).all()
    assert (np.diff(trace.transfer_start) >= 0).all()
    for device in range(len(trace.device_names)):
        ran = trace.device == device
        assert (trace.start[ran][1:] >= trace.end[ran][:-1]).all()
    for channel in set(trace.transfer_channel.tolist()) - {-1}:
        sent = trace.transfer_channel == channel
        assert (trace.transfer_start[sent][1:] >= trace.transfer_end[sent][:-1]).all()
    arrival = {}
    moved = zip(
        trace.transfer_op.tolist(),
        trace.transfer_source.tolist(),
        trace.transfer_target.tolist(),
        trace.transfer_start.tolist(),
        trace.transfer_end.tolist(),
        strict=True,
    )
    for op, source, target, begins, arrives in moved:
        assert (op, target) not in arrival, "a tensor was sent twice to one device"
        assert source == placement.devices[op] != target
        assert end[op] <= begins <= arrives
        arrival[op, target] = arrives
    needed = set()
    for u, v in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
        home, target = int(placement.devices[u]), int(placement.devices[v])
        if home == target:
            assert end[u] <= start[v]
        else:
            needed.add((u, target))
            assert arrival[u, target] <= start[v]
    assert needed == set(arrival)
