"""Cluster files: YAML with groups of equal devices and rules for the links between groups."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from doppler.cluster.cluster import MAX_DEVICES, Cluster, Device, Link
from doppler.documents.yaml_text import parse_yaml, yaml_text
from doppler.errors import ClusterError, UnknownNameError
from doppler.files import read_text, write_atomic
from doppler.messages import shown, shown_value

_DEVICE_KEYS = {
    "name",
    "count",
    "kind",
    "flops",
    "efficiency",
    "memory_bandwidth",
    "memory",
    "launch_overhead",
    "slowdown",
    "measured",
}
_LINK_KEYS = {"between", "bandwidth", "latency", "channel", "hops"}
_TOP_KEYS = {"name", "source", "devices", "links", "measured"}
_CHANNELS = ("none", "pair", "source", "shared")
#: Tables of seconds by op class.
Tables = Mapping[str, Mapping[str, float]]


def presets() -> list[str]:
    """Names of the clusters that come with the package."""
    folder = resources.files("doppler.cluster") / "presets"
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in folder.iterdir()
        if entry.name.endswith(".yaml")
    )


def load_cluster(name: str) -> Cluster:
    """Load ``uniform:K``, a preset, or a YAML file; see :meth:`Cluster.load`."""
    if name.startswith("uniform:"):
        count = name.removeprefix("uniform:")
        if not (count.isascii() and count.isdigit() and len(count) < 9):
            raise ClusterError(f"{name}: give a whole number of devices, as in uniform:4")
        return Cluster.uniform(int(count))
    if name in presets():
        text = (resources.files("doppler.cluster") / "presets" / f"{name}.yaml").read_text("utf-8")
        return parse_cluster(text, f"preset {name}")
    path = Path(name)
    if path.exists() or path.suffix in {".yaml", ".yml"} or path.parent != Path():
        return parse_cluster(read_text(path, "cluster", ClusterError), str(path))
    raise UnknownNameError("cluster", name, [*presets(), "uniform:K"])


def parse_cluster(text: str, where: str) -> Cluster:
    """Read a cluster from YAML text.

    Parameters
    ----------
    text : str
        A mapping with ``devices`` (groups with ``name`` and ``count``) and ``links`` (rules
        ``between: [group, group]``). A rule's ``channel`` is ``none`` (never contended), ``pair``
        (each ordered pair takes turns on its own), ``source`` (all that a device sends takes
        turns), ``source NAME`` (all that it sends over an adapter of its own beside its other links
        takes turns) or ``shared`` (all transfers of the rule in one direction take turns). A
        group's ``measured`` names a table of the top level's ``measured``: seconds by op class.
    where : str
        File or preset, for messages.

    Raises
    ------
    ClusterError
        On anything that is not such a mapping; the message names the key.
    """
    data = _mapping(parse_yaml(text, where, "cluster", ClusterError), _TOP_KEYS, where)
    tables = _tables(data.get("measured", {}), where)
    groups = _groups(data.get("devices"), tables, where)
    devices = tuple(device for members in groups.values() for device in members)
    try:
        links, channels = _links(data.get("links", []), groups, devices, where)
        return Cluster(_text(data, "name", Path(where).stem, where), devices, links, channels)
    except ClusterError as error:
        message = str(error)
        raise ClusterError(
            message if message.startswith(where) else f"{where}: {message}"
        ) from None


def save_cluster(cluster: Cluster, path: str | Path, source: str = "") -> Path:
    """Write a cluster as YAML, one group per device and one rule per link; reads back equal.

    A channel of the cluster that several links share becomes the ``shared`` channel of that name.
    Devices with equal measured times share a table, named after the first of them.
    """
    devices = []
    tables: dict[str, dict[str, float]] = {}
    for device in cluster.devices:
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
            "between": [cluster.devices[link.source].name, cluster.devices[link.target].name],
            "bandwidth": float(link.bandwidth),
            "latency": float(link.latency),
            "hops": float(link.hops),
            "channel": "none" if link.channel < 0 else f"={cluster.channel_names[link.channel]}",
        }
        for link in cluster.links
    ]
    data: dict[str, Any] = {
        "name": cluster.name,
        "source": source,
        "devices": devices,
        "links": links,
    }
    if tables:
        data["measured"] = tables
    return write_atomic(path, yaml_text(data))


def _mapping(data: Any, allowed: set[str], where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ClusterError(f"{where}: expected a mapping with {', '.join(sorted(allowed))}")
    for key in data:
        if key not in allowed:
            near = difflib.get_close_matches(str(key), allowed, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ClusterError(f"{where}: unknown key {shown_value(key)}{hint}")
    return data


def _text(entry: Mapping[str, Any], key: str, default: str, where: str) -> str:
    value = entry.get(key, default)
    if not isinstance(value, str) or not value:
        raise ClusterError(f"{where}: {key} is {shown_value(value)}, must be a text")
    return value


def _number(entry: Mapping[str, Any], key: str, default: float | None, where: str) -> float:
    value = entry.get(key, default)
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        number = float(value)
    except ValueError:
        raise ClusterError(f"{where}: {key} is {shown_value(value)}, must be a number") from None
    except OverflowError:
        raise ClusterError(f"{where}: {key} is too large for a number") from None
    if math.isnan(number):
        raise ClusterError(f"{where}: {key} is not a number")
    return number


def _tables(entries: Any, where: str) -> Tables:
    if not isinstance(entries, dict):
        raise ClusterError(f"{where}: measured must be a mapping of names to tables")
    tables: dict[str, dict[str, float]] = {}
    for name, entry in entries.items():
        here = f"{where}: measured[{shown_value(name)}]"
        if not isinstance(name, str) or not name:
            raise ClusterError(f"{here}: the name of a table must be a text")
        if not isinstance(entry, dict):
            raise ClusterError(f"{here}: must be a mapping of op classes to seconds")
        table = tables[name] = {}
        for op_class, value in entry.items():
            if not isinstance(op_class, str) or not op_class:
                raise ClusterError(f"{here}: op class {shown_value(op_class)} must be a text")
            seconds = _number(entry, op_class, None, here)
            if not 0 < seconds < math.inf:
                raise ClusterError(
                    f"{here}: {shown(op_class)} is {shown_value(value)}, "
                    "must be seconds, finite and > 0"
                )
            table[op_class] = seconds
    return tables


def _measured(entry: Mapping[str, Any], tables: Tables, where: str) -> Mapping[str, float]:
    """Look up the table that a group names."""
    if "measured" not in entry:
        return {}
    name = entry["measured"]
    if not isinstance(name, str) or name not in tables:
        known = (
            f"one of {', '.join(map(shown, tables))}" if tables else "a table, and there is none"
        )
        raise ClusterError(f"{where}: measured is {shown_value(name)}, must name {known}")
    return tables[name]


def _groups(entries: Any, tables: Tables, where: str) -> dict[str, list[Device]]:
    if not isinstance(entries, list) or not entries:
        raise ClusterError(f"{where}: devices must be a list with at least one group")
    groups: dict[str, list[Device]] = {}
    total = 0
    for index, entry in enumerate(entries):
        here = f"{where}: devices[{index}]"
        entry = _mapping(entry, _DEVICE_KEYS, here)
        name = entry.get("name")
        if not isinstance(name, str) or not name or name in groups:
            raise ClusterError(f"{here}: name is {shown_value(name)}, must be a new text")
        count = entry.get("count", 1)
        if isinstance(count, bool) or not isinstance(count, int) or not count >= 1:
            raise ClusterError(
                f"{here}: count is {shown_value(count)}, must be a whole number >= 1"
            )
        total += count
        if total > MAX_DEVICES:
            raise ClusterError(
                f"{here}: count is {shown_value(count)}, at most {MAX_DEVICES} devices"
            )
        measured = _measured(entry, tables, here)
        efficiency = _number(entry, "efficiency", 1.0, here)
        if not 0 < efficiency <= 1:
            raise ClusterError(f"{here}: efficiency is {efficiency}, must be in (0, 1]")
        try:
            groups[name] = [
                Device(
                    f"{name}{i}" if count > 1 else name,
                    _text(entry, "kind", "gpu", here),
                    _number(entry, "flops", None, here) * efficiency,
                    _number(entry, "memory_bandwidth", math.inf, here),
                    _number(entry, "memory", math.inf, here),
                    _number(entry, "launch_overhead", 0.0, here),
                    _number(entry, "slowdown", 1.0, here),
                    measured,
                )
                for i in range(count)
            ]
        except ClusterError as error:
            message = str(error)
            raise ClusterError(
                message if message.startswith(where) else f"{here}: {message}"
            ) from None
    return groups


def _links(
    entries: Any, groups: dict[str, list[Device]], devices: tuple[Device, ...], where: str
) -> tuple[tuple[Link, ...], tuple[str, ...]]:
    if not isinstance(entries, list):
        raise ClusterError(f"{where}: links must be a list")
    index = {device.name: i for i, device in enumerate(devices)}
    members = {name: [index[device.name] for device in group] for name, group in groups.items()}
    channels: dict[str, int] = {}
    links: dict[tuple[int, int], Link] = {}
    ways = [entry.get("between") for entry in entries if isinstance(entry, dict)]
    for number, entry in enumerate(entries):
        here = f"{where}: links[{number}]"
        entry = _mapping(entry, _LINK_KEYS, here)
        ends = entry.get("between")
        if not (
            isinstance(ends, list)
            and len(ends) == 2
            and all(isinstance(end, str) and end in members for end in ends)
        ):
            known = ", ".join(members)
            raise ClusterError(
                f"{here}: between is {shown_value(ends)}, must name two groups of {known}"
            )
        rule = _text(entry, "channel", "none", here)
        over = rule.removeprefix("source ").strip() if rule.startswith("source ") else ""
        out = f"{over} out" if over else "out"
        rule = "source" if over else rule
        if rule not in _CHANNELS and not (rule.startswith("=") and len(rule) > 1):
            raise ClusterError(f"{here}: channel is {rule!r}, must be {', '.join(_CHANNELS)}")
        bandwidth = _number(entry, "bandwidth", None, here)
        latency = _number(entry, "latency", 0.0, here)
        hops = _number(entry, "hops", 1.0, here)
        directions = [(ends[0], ends[1])]
        # A rule is for the way back as well, unless that has a rule of its own.
        if ends[::-1] not in ways and not rule.startswith("="):
            directions.append((ends[1], ends[0]))
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
                    }.get(rule, rule[1:])
                    channel = channels.setdefault(name, len(channels)) if name else -1
                    try:
                        links[a, b] = Link(a, b, bandwidth, latency, channel, hops)
                    except ClusterError as error:
                        raise ClusterError(f"{here}: {error}") from None
    return tuple(links[pair] for pair in sorted(links)), tuple(channels)
