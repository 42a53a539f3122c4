"""Where ops run: devices, links and the channels that links share."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from doppler.checks import check_items, check_type, check_whole
from doppler.cluster.device import MAX_DEVICES, REFERENCE_FLOPS, Device
from doppler.cluster.document import Parts, parse_parts, parts_text, preset_text, presets
from doppler.cluster.link import REFERENCE_BANDWIDTH, Link, fully_connected
from doppler.errors import ClusterError, UnknownNameError
from doppler.files import read_text, write_atomic
from doppler.messages import shown_value


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
        check_type(self.name, str, "cluster: name", ClusterError)
        for part, kind in (("devices", Device), ("links", Link), ("channel_names", str)):
            what = f"cluster {self.name!r}: {part}"
            items = check_items(getattr(self, part), kind, what, ClusterError)
            object.__setattr__(self, part, items)
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
        what = f"uniform:{shown_value(count)}: the number of devices"
        count = check_whole(count, what, 1, MAX_DEVICES, ClusterError)
        devices = tuple(Device(f"gpu{i}", memory=memory) for i in range(count))
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
        for what, number in (("accelerators", accelerators), ("cpus", cpus)):
            check_whole(number, f"the number of {what}", 0, MAX_DEVICES, ClusterError)
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
        name = str(name_or_path)
        if name.startswith("uniform:"):
            count = name.removeprefix("uniform:")
            if not (count.isascii() and count.isdigit() and len(count) < 9):
                raise ClusterError(f"{name}: give a whole number of devices, as in uniform:4")
            return cls.uniform(int(count))
        if name in presets():
            return cls.parse(preset_text(name), f"preset {name}")
        path = Path(name)
        if path.exists() or path.suffix in {".yaml", ".yml"} or path.parent != Path():
            return cls.parse(read_text(path, "cluster", ClusterError), name)
        raise UnknownNameError("cluster", name, [*presets(), "uniform:K"])

    @classmethod
    def parse(cls, text: str, where: str) -> Cluster:
        """Make a cluster of the text of a file; see :mod:`doppler.cluster.document`.

        Parameters
        ----------
        text : str
            YAML.
        where : str
            File or preset, for messages.

        Raises
        ------
        ClusterError
            If the text is malformed or breaks a rule; the message names the key.
        """
        parts = parse_parts(text, where)
        try:
            return cls(*parts)
        except ClusterError as error:
            raise ClusterError(f"{where}: {error}") from None


def save_cluster(cluster: Cluster, path: str | Path, source: str = "") -> Path:
    """Write a cluster as YAML, one group per device and one rule per link; reads back equal.

    A channel of the cluster that several links share becomes the ``shared`` channel of that name.
    Devices with equal measured times share a table, named after the first of them.
    """
    parts = Parts(cluster.name, cluster.devices, cluster.links, cluster.channel_names)
    try:
        text = parts_text(parts, source)
    except UnicodeEncodeError as error:
        raise ClusterError(f"{path}: cannot be written, a name is no text ({error})") from None
    return write_atomic(path, text)
