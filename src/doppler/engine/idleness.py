"""Whether a run was work-conserving."""

from __future__ import annotations

import numpy as np

from doppler.graph import Graph
from doppler.trace import Trace


def longest_idle(graph: Graph, trace: Trace) -> float:
    """Find the longest interval in which a device idled while an op placed on it was ready.

    An op is ready when the last of its inputs is on its device: when its producer there has
    ended, or the transfer has arrived. O((V + E) log V).

    Parameters
    ----------
    graph : Graph
    trace : Trace
        Of a whole run of the graph.

    Returns
    -------
    float
        Seconds; 0 if no device ever did.
    """
    n_ops = graph.n_ops
    device, start, end = np.empty(n_ops, np.int64), np.empty(n_ops), np.empty(n_ops)
    device[trace.op], start[trace.op], end[trace.op] = trace.device, trace.start, trace.end
    n_devices = len(trace.device_names)
    ready = np.zeros(n_ops)
    home = device[graph.src] == device[graph.dst]
    np.maximum.at(ready, graph.dst[home], end[graph.src[home]])
    # What crosses devices arrives with the transfer of its producer to the consumer's device.
    keys = trace.transfer_op.astype(np.int64) * n_devices + trace.transfer_target
    order = np.argsort(keys)
    wanted = graph.src[~home].astype(np.int64) * n_devices + device[graph.dst[~home]]
    found = order[np.searchsorted(keys, wanted, sorter=order)] if wanted.size else order[:0]
    np.maximum.at(ready, graph.dst[~home], trace.transfer_end[found])
    longest = 0.0
    for each in range(n_devices):
        ran = np.flatnonzero(device == each)
        if not ran.size:
            continue
        ran = ran[np.lexsort((end[ran], start[ran]))]
        free = np.concatenate(([0.0], np.maximum.accumulate(end[ran])[:-1]))
        # The soonest ready of the ops that are still to start.
        soonest = np.minimum.accumulate(ready[ran][::-1])[::-1]
        longest = max(longest, float((start[ran] - np.maximum(free, soonest)).max()))
    return longest
