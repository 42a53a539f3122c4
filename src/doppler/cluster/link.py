"""Links between devices, and the channels that links share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
        where = f"link {self.source} -> {self.target}"
        if not self.bandwidth > 0:
            raise ClusterError(f"{where}: bandwidth is {self.bandwidth}, must be > 0")
        if 1.0 / self.bandwidth == math.inf:
            raise ClusterError(f"{where}: bandwidth is {self.bandwidth}, too small")
        if not 0 <= self.latency < math.inf:
            raise ClusterError(f"{where}: latency is {self.latency}, must be finite and >= 0")
        if not 0 <= self.hops < math.inf:
            raise ClusterError(f"{where}: hops is {self.hops}, must be finite and >= 0")
        if self.channel < -1:
            raise ClusterError(f"{where}: channel is {self.channel}, must be >= -1")


def fully_connected(
    count: int,
    bandwidth: float = REFERENCE_BANDWIDTH,
    latency: float = 0.0,
    channels: Sequence[Sequence[int]] | None = None,
) -> tuple[Link, ...]:
    """Links between all ordered pairs of ``count`` devices; channel -1 unless a matrix says."""
    return tuple(
        Link(a, b, bandwidth, latency, -1 if channels is None else channels[a][b])
        for a in range(count)
        for b in range(count)
        if a != b
    )
