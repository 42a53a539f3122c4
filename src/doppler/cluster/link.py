"""Links between devices, and the channels that links share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from doppler.checks import check_indices, check_number, check_whole
from doppler.cluster.device import MAX_DEVICES
from doppler.errors import ClusterError

REFERENCE_BANDWIDTH = 1e10


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a connection.

    Attributes
    ----------
    source, target : int
        Indices of the devices.
    bandwidth : float
        Bytes per second.
    latency : float
        Seconds before the first byte.
    channel : int
        Transfers of one channel take turns; -1: this link is never contended.
    hops : float
        Multiplies explicit transfer seconds; 2 where the data crosses the host.
    """

    source: int
    target: int
    bandwidth: float = REFERENCE_BANDWIDTH
    latency: float = 0.0
    channel: int = -1
    hops: float = 1.0

    def __post_init__(self) -> None:
        check_whole(self.source, "link: source", 0, error=ClusterError)
        check_whole(self.target, "link: target", 0, error=ClusterError)
        where = f"link {self.source} -> {self.target}"
        bandwidth = check_number(
            self.bandwidth, f"{where}: bandwidth", above=True, infinite=True, error=ClusterError
        )
        if 1.0 / bandwidth == math.inf:
            raise ClusterError(f"{where}: bandwidth is {self.bandwidth}, too small")
        check_number(self.latency, f"{where}: latency", error=ClusterError)
        check_number(self.hops, f"{where}: hops", error=ClusterError)
        check_whole(self.channel, f"{where}: channel", -1, error=ClusterError)


def fully_connected(
    count: int,
    bandwidth: float = REFERENCE_BANDWIDTH,
    latency: float = 0.0,
    channels: Sequence[Sequence[int]] | None = None,
) -> tuple[Link, ...]:
    """Links between all ordered pairs of ``count`` devices; channel -1 unless a matrix says."""
    check_whole(count, "the number of devices", 0, MAX_DEVICES, ClusterError)
    if channels is not None:
        channels = check_indices(channels, "channels", ClusterError, axes=2).tolist()
        if np.shape(channels) != (count, count):
            raise ClusterError(f"channels must be {count} lists of {count} numbers")
    return tuple(
        Link(a, b, bandwidth, latency, -1 if channels is None else channels[a][b])
        for a in range(count)
        for b in range(count)
        if a != b
    )
