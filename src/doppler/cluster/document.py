"""Cluster files: YAML with groups of equal devices and rules for the links between groups.

A file is a mapping with ``devices`` (groups with ``name`` and ``count``) and ``links`` (rules
``between: [group, group]``). A rule's ``channel`` is ``none`` (never contended), ``pair`` (each
ordered pair takes turns on its own), ``source`` (all that a device sends takes turns),
``source NAME`` (all that it sends over an adapter of its own beside its other links takes turns),
``shared`` (all transfers of the rule in one direction take turns) or ``=NAME`` (all transfers of
the rules with that name take turns). A group's ``measured`` names a table of the top level's
``measured``: seconds by op class.
"""

from __future__ import annotations

import math
from importlib import resources
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from doppler.cluster.device import MAX_DEVICES, Device
from doppler.cluster.link import Link
from doppler.documents.schema import Strict, check
from doppler.documents.yaml_text import parse_yaml, yaml_text
from doppler.errors import ClusterError
from doppler.files import name_of
from doppler.messages import shown, shown_value

_CHANNELS = ("none", "pair", "source", "shared")

Text = Annotated[str, Field(min_length=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Parts(NamedTuple):
    """What a cluster is made of.

    Attributes
    ----------
    name : str
    devices : tuple of Device
    links : tuple of Link
    channel_names : tuple of str
    """

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    channel_names: tuple[str, ...]


class _Group(Strict):
    name: Text
    count: Annotated[int, Field(ge=1, le=MAX_DEVICES)] = 1
    kind: Text = "gpu"
    flops: float
    efficiency: Annotated[float, Field(gt=0, le=1)] = 1.0
    memory_bandwidth: float = math.inf
    memory: float = math.inf
    launch_overhead: float = 0.0
    slowdown: float = 1.0
    measured: str | None = None


class _Rule(Strict):
    between: Annotated[list[str], Field(min_length=2, max_length=2)]
    bandwidth: float
    latency: float = 0.0
    hops: float = 1.0
    channel: Text = "none"


class _File(Strict):
    name: Text | None = None
    source: Any = None
    devices: Annotated[list[_Group], Field(min_length=1)]
    links: list[_Rule] = Field(default_factory=list)
    measured: dict[Text, dict[Text, Seconds]] = Field(default_factory=dict)


def presets() -> list[str]:
    """Names of the clusters that come with the package."""
    folder = resources.files("doppler.cluster") / "presets"
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in folder.iterdir()
        if entry.name.endswith(".yaml")
    )


def preset_text(name: str) -> str:
    """Return the file of a preset."""
    return (resources.files("doppler.cluster") / "presets" / f"{name}.yaml").read_text("utf-8")


def parse_parts(text: str, where: str) -> Parts:
    """Read the parts of a cluster from YAML text.

    Parameters
    ----------
    text : str
    where : str
        File or preset, for messages.

    Raises
    ------
    ClusterError
        If the text is malformed, or a device or link breaks a rule; the message names the key.
    """
    file = check(_File, parse_yaml(text, where, "cluster", ClusterError), where, ClusterError)
    groups: dict[str, list[Device]] = {}
    for index, group in enumerate(file.devices):
        here = f"{where}: devices[{index}]"
        if group.name in groups:
            raise ClusterError(f"{here}: name is {shown_value(group.name)}, must be a new one")
        try:
            groups[group.name] = _members(group, file.measured)
        except ClusterError as error:
            raise ClusterError(f"{here}: {error}") from None
    devices = tuple(device for members in groups.values() for device in members)
    links, channels = _links(file.links, groups, devices, where)
    return Parts(file.name or name_of(where), devices, links, channels)


def parts_text(parts: Parts, source: str) -> str:
    """Write the parts as YAML text, one group per device and one rule per link."""
    devices = []
    tables: dict[str, dict[str, float]] = {}
    for device in parts.devices:
        entry: dict[str, Any] = {"name": device.name, "kind": device.kind}
        for key in ("flops", "memory_bandwidth", "memory", "launch_overhead", "slowdown"):
            entry[key] = float(getattr(device, key))
        if device.measured:
            times = {name: float(seconds) for name, seconds in device.measured.items()}
            equal = (name for name, table in tables.items() if table == times)
            entry["measured"] = next(equal, device.name)
            tables.setdefault(entry["measured"], times)
        devices.append(entry)
    links = [
        {
            "between": [parts.devices[link.source].name, parts.devices[link.target].name],
            "bandwidth": float(link.bandwidth),
            "latency": float(link.latency),
            "hops": float(link.hops),
            "channel": "none" if link.channel < 0 else f"={parts.channel_names[link.channel]}",
        }
        for link in parts.links
    ]
    data: dict[str, Any] = {"name": parts.name, "source": source}
    data |= {"devices": devices, "links": links}
    if tables:
        data["measured"] = tables
    return yaml_text(data)


def _members(group: _Group, tables: dict[str, dict[str, float]]) -> list[Device]:
    if group.measured is not None and group.measured not in tables:
        known = f"one of {', '.join(map(shown, tables))}" if tables else "a table; there is none"
        raise ClusterError(f"measured is {shown_value(group.measured)}, must name {known}")
    return [
        Device(
            f"{group.name}{i}" if group.count > 1 else group.name,
            group.kind,
            group.flops * group.efficiency,
            group.memory_bandwidth,
            group.memory,
            group.launch_overhead,
            group.slowdown,
            {} if group.measured is None else tables[group.measured],
        )
        for i in range(group.count)
    ]


def _links(
    rules: list[_Rule], groups: dict[str, list[Device]], devices: tuple[Device, ...], where: str
) -> tuple[tuple[Link, ...], tuple[str, ...]]:
    index = {device.name: i for i, device in enumerate(devices)}
    members = {name: [index[device.name] for device in group] for name, group in groups.items()}
    channels: dict[str, int] = {}
    links: dict[tuple[int, int], Link] = {}
    ways = [rule.between for rule in rules]
    for number, rule in enumerate(rules):
        here = f"{where}: links[{number}]"
        if not all(end in members for end in rule.between):
            raise ClusterError(
                f"{here}: between is {shown_value(rule.between)}, must name two groups of "
                f"{', '.join(members)}"
            )
        channel = rule.channel
        over = channel.removeprefix("source ").strip() if channel.startswith("source ") else ""
        out = f"{over} out" if over else "out"
        channel = "source" if over else channel
        if channel not in _CHANNELS and not (channel.startswith("=") and len(channel) > 1):
            raise ClusterError(f"{here}: channel is {channel!r}, must be {', '.join(_CHANNELS)}")
        directions = [rule.between]
        # A rule is for the way back as well, unless that has a rule of its own.
        if rule.between[::-1] not in ways and not channel.startswith("="):
            directions.append(rule.between[::-1])
        for source_group, target_group in directions:
            for a in members[source_group]:
                for b in members[target_group]:
                    if a == b:
                        continue
                    name = {
                        "none": "",
                        "pair": f"{devices[a].name} to {devices[b].name}",
                        "source": f"{devices[a].name} {out}",
                        "shared": f"{source_group} to {target_group}",
                    }.get(channel, channel[1:])
                    lane = channels.setdefault(name, len(channels)) if name else -1
                    try:
                        links[a, b] = Link(a, b, rule.bandwidth, rule.latency, lane, rule.hops)
                    except ClusterError as error:
                        raise ClusterError(f"{here}: {error}") from None
    return tuple(links[pair] for pair in sorted(links)), tuple(channels)
