"""Where ops run: devices, links and the channels that links share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from doppler.errors import ClusterError
from doppler.messages import is_unicode, shown, shown_value

REFERENCE_FLOPS = 1e13
REFERENCE_BANDWIDTH = 1e10
MAX_DEVICES = 1024


@dataclass(frozen=True, slots=True)
class Device:
    """One device.

    Attributes
    ----------
    name : str
        Unique in the cluster.
    kind : str
        Device class, ``"gpu"`` or ``"cpu"``; picks the explicit seconds of a heterogeneous graph.
    flops : float
        Achieved floating-point operations per second (peak times efficiency).
    memory_bandwidth : float
        Bytes per second; infinite where reading costs nothing.
    memory : float
        Capacity in bytes; infinite where it is not limited.
    launch_overhead : float
        Seconds before an op starts to compute.
    slowdown : float
        Multiplies explicit seconds of an op; 1 on the device that they were given for.
    measured : mapping of str to float
        Seconds that ops of a class (:func:`doppler.graph.op_class.op_classes`) were seen to take
        on this device, overhead included; they replace what the rates above predict.
    """

    name: str
    kind: str = "gpu"
    flops: float = REFERENCE_FLOPS
    memory_bandwidth: float = math.inf
    memory: float = math.inf
    launch_overhead: float = 0.0
    slowdown: float = 1.0
    measured: Mapping[str, float] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        if not is_unicode(self.name):
            raise ClusterError(
                f"device name {shown_value(self.name)} holds half of a surrogate pair and no "
                "character"
            )
        for name in ("flops", "memory_bandwidth", "memory", "slowdown"):
            value = getattr(self, name)
            if not value > 0:
                raise ClusterError(f"device {self.name!r}: {name} is {value}, must be > 0")
        if self.slowdown == math.inf:
            raise ClusterError(f"device {self.name!r}: slowdown is inf, must be finite")
        if not 0 <= self.launch_overhead < math.inf:
            raise ClusterError(
                f"device {self.name!r}: launch_overhead is {self.launch_overhead}, "
                "must be finite and >= 0"
            )
        for op_class, seconds in self.measured.items():
            if not op_class:
                raise ClusterError(f"device {self.name!r}: measured names an empty op class")
            if not 0 < seconds < math.inf:
                raise ClusterError(
                    f"device {self.name!r}: measured {shown(op_class)} is {seconds}, "
                    "must be finite and > 0"
                )


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


@dataclass(frozen=True)
class Cluster:
    """Devices and the links between every ordered pair of them.

    Attributes
    ----------
    name : str
    devices : tuple of Device
    links : tuple of Link
        One for each ordered pair of different devices.
    channel_names : tuple of str
        Label of each channel, in the order of their numbers.

    Raises
    ------
    ClusterError
        On no device or too many, a repeated name, or a pair with no link or two.
    """

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...] = field(repr=False)
    channel_names: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        count = len(self.devices)
        if count == 0:
            raise ClusterError(f"cluster {self.name!r} has no device; give it at least one")
        if count > MAX_DEVICES:
            raise ClusterError(f"cluster {self.name!r}: at most {MAX_DEVICES} devices")
        names = [device.name for device in self.devices]
        for name in names:
            if names.count(name) > 1:
                raise ClusterError(f"cluster {self.name!r}: two devices are named {name!r}")
        for name in self.channel_names:
            if not name or self.channel_names.count(name) > 1:
                raise ClusterError(
                    f"cluster {self.name!r}: channel name {name!r} is empty or repeated"
                )
        seen = set()
        for link in self.links:
            pair = (link.source, link.target)
            if not (0 <= link.source < count and 0 <= link.target < count):
                raise ClusterError(f"cluster {self.name!r}: link {pair} names a missing device")
            if link.source == link.target or pair in seen:
                raise ClusterError(f"cluster {self.name!r}: link {pair} is repeated or a loop")
            if link.channel >= len(self.channel_names):
                raise ClusterError(f"cluster {self.name!r}: link {pair} has an unnamed channel")
            seen.add(pair)
        if len(seen) != count * (count - 1):
            missing = next(
                (a, b) for a in range(count) for b in range(count) if a != b and (a, b) not in seen
            )
            raise ClusterError(
                f"cluster {self.name!r}: no link from {names[missing[0]]!r} to "
                f"{names[missing[1]]!r}; every pair needs one in each direction"
            )

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return len(self.devices)

    @property
    def n_channels(self) -> int:
        """Number of channels on which transfers take turns."""
        return len(self.channel_names)

    @classmethod
    def uniform(cls, count: int, memory: float = math.inf) -> Cluster:
        """Make ``count`` equal devices whose links are never contended.

        Explicit seconds hold as they are. Modeled costs use a reference device of 1e13 FLOP/s
        and reference links of 1e10 bytes/s without latency, so that one byte takes what the
        official DOPPLER files call one unit.

        Parameters
        ----------
        count : int
            Number of devices, at least 1.
        memory : float
            Bytes of each device.

        Raises
        ------
        ClusterError
            If ``count`` is not a positive whole number.
        """
        if not 1 <= count <= MAX_DEVICES or count != int(count):
            raise ClusterError(
                f"uniform:{count}: give a whole number of devices from 1 to {MAX_DEVICES}"
            )
        devices = tuple(Device(f"gpu{i}", memory=memory) for i in range(int(count)))
        return cls(f"uniform:{count}", devices, fully_connected(len(devices)))

    @classmethod
    def accelerators_and_cpus(
        cls, accelerators: int, cpus: int, accelerator_memory: float
    ) -> Cluster:
        """Make accelerators that share a host with CPUs, as dnn-partitioning files describe.

        An accelerator moves a tensor over its own connection to the host's memory, one at a time;
        from one accelerator to another it crosses the host and so takes twice as long. Between
        CPUs nothing moves (Tarnawski et al., "Efficient Algorithms for Device Placement of DNN
        Graph Operators", NeurIPS 2020).
        """
        names = [f"gpu{i}" for i in range(accelerators)]
        devices = tuple(
            [Device(name, "gpu", memory=accelerator_memory) for name in names]
            + [Device(f"cpu{i}", "cpu", flops=REFERENCE_FLOPS / 10) for i in range(cpus)]
        )
        links = []
        for a in range(len(devices)):
            for b in range(len(devices)):
                if a == b:
                    continue
                on_accelerator = (a < accelerators) + (b < accelerators)
                channel = a if a < accelerators else (b if b < accelerators else -1)
                bandwidth = REFERENCE_BANDWIDTH / on_accelerator if on_accelerator else math.inf
                links.append(Link(a, b, bandwidth, channel=channel, hops=float(on_accelerator)))
        label = f"accelerators:{accelerators}+cpus:{cpus}"
        return cls(label, devices, tuple(links), tuple(f"{name} to host" for name in names))

    @classmethod
    def load(cls, name_or_path: str | Path) -> Cluster:
        """Load a preset by name, a YAML file by path, or ``uniform:K``.

        Raises
        ------
        ClusterError
            If the file is missing, malformed or breaks a rule.
        UnknownNameError
            If it is neither a file nor a preset; names the nearest preset.
        """
        from doppler.cluster.loading import load_cluster

        return load_cluster(str(name_or_path))


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
