"""What runs of a model tell about the devices: the seconds of its ops, and of copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from doppler.cluster import Cluster, Device
from doppler.graph import Graph
from doppler.graph.op_class import op_classes
from doppler.trace import Trace

# Copies of at least so many bytes tell the bandwidth, smaller ones the latency.
_LARGE = 256_000
# Less than the clocks resolve.
_LEAST = 1e-7


@dataclass(frozen=True, eq=False)
class Measurements:
    """Seconds seen so far.

    Attributes
    ----------
    ops : mapping of (str, str) to list of float
        By kind of device and class of op.
    copies : list of (bytes, seconds)
    """

    ops: Mapping[tuple[str, str], Sequence[float]]
    copies: Sequence[tuple[float, float]]

    def add(self, graph: Graph, cluster: Cluster, traces: Sequence[Trace]) -> Measurements:
        """Add what some runs of a graph on the cluster's devices took.

        Of several runs the last count: they had what the first brought to the devices. What a
        class took while other devices computed as well takes the place of what it took alone.
        """
        kinds = [device.kind for device in cluster.devices]
        classes = op_classes(graph)
        seen: dict[tuple[str, str], list[float]] = {}
        copies = list(self.copies)
        for trace in traces:
            seconds = trace.end - trace.start
            for op, device, taken in zip(
                trace.op.tolist(), trace.device.tolist(), seconds.tolist(), strict=True
            ):
                seen.setdefault((kinds[device], classes[op]), []).append(max(taken, _LEAST))
            sizes = graph.output_bytes[trace.transfer_op]
            moved = np.maximum(trace.transfer_end - trace.transfer_start, _LEAST)
            copies.extend(zip(sizes.tolist(), moved.tolist(), strict=True))
        return Measurements({**self.ops, **seen}, copies)

    def applied(self, cluster: Cluster) -> Cluster:
        """Return the cluster with the measured seconds in the place of the guessed ones."""
        by_kind: dict[str, dict[str, float]] = {}
        for (kind, name), seconds in self.ops.items():
            by_kind.setdefault(kind, {})[name] = median(seconds)
        devices: tuple[Device, ...] = tuple(
            replace(device, measured={**device.measured, **by_kind.get(device.kind, {})})
            for device in cluster.devices
        )
        large = [(size, seconds) for size, seconds in self.copies if size >= _LARGE]
        small = [seconds for size, seconds in self.copies if size < _LARGE]
        links = cluster.links
        if large:
            # The median is not moved by copies that waited for a core.
            rate = median(size / seconds for size, seconds in large)
            links = tuple(replace(link, bandwidth=rate) for link in links)
        if small:
            links = tuple(replace(link, latency=median(small)) for link in links)
        return Cluster(cluster.name, devices, links, cluster.channel_names)


NOTHING = Measurements({}, ())
