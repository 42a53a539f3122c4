"""Profiling a machine: its devices and links as a cluster, with the times that were measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any

from doppler.cluster import Cluster, Device, Link, save_cluster
from doppler.cores import cores
from doppler.errors import ClusterError
from doppler.graph import Graph
from doppler.profiling.classes import ClassTimes, find_classes, measure_classes
from doppler.profiling.links import LinkRates, copy_sizes, measure_link
from doppler.profiling.machine import describe, find_devices, free_memory_of, memory_of
from doppler.profiling.rates import Rates, measure_rates
from doppler.profiling.timing import Timing
from doppler.profiling.workers import Workers

#: Shows that a part of the work is under way, given what it is and how long it may take.
Phase = Callable[[str, float | None], AbstractContextManager[None]]


@dataclass(frozen=True, eq=False)
class Profile:
    """What was measured on a machine.

    Attributes
    ----------
    cluster : Cluster
        Its devices and links, with the measured times of op classes.
    source : str
        When, where and how, for people.
    rates : tuple of Rates, length devices
    links : mapping of (int, int) to LinkRates
        By source and target.
    classes : tuple of mapping of str to Timing, length devices
        By op class.
    left_out : mapping of str to str
        Op classes that were not measured, and why.
    disturbance : float
        Share of the time of CPU devices that other processes took while ops were timed. What was
        measured of them does not count it, but it tells how busy the machine was.
    seconds : float
        Time that it took.
    """

    cluster: Cluster
    source: str
    rates: tuple[Rates, ...]
    links: dict[tuple[int, int], LinkRates]
    classes: tuple[dict[str, Timing], ...]
    left_out: dict[str, str]
    disturbance: float
    seconds: float

    def save(self, path: str | Path) -> Path:
        """Write the cluster file, whole or not at all."""
        return save_cluster(self.cluster, path, self.source)

    def to_json(self) -> dict[str, Any]:
        """Return all that was measured, in JSON form."""
        names = [device.name for device in self.cluster.devices]
        return {
            "cluster": self.cluster.name,
            "source": self.source,
            "seconds": self.seconds,
            "disturbance": self.disturbance,
            "devices": {
                device.name: {
                    "kind": device.kind,
                    "flops": rates.flops,
                    "memory_bandwidth": rates.memory_bandwidth,
                    "launch_overhead_s": rates.launch_overhead,
                    "memory": device.memory,
                    "measured": {name: timing.to_json() for name, timing in times.items()},
                }
                for device, rates, times in zip(
                    self.cluster.devices, self.rates, self.classes, strict=True
                )
            },
            "links": [
                {
                    "source": names[source],
                    "target": names[target],
                    "bandwidth": link.bandwidth if isfinite(link.bandwidth) else None,
                    "latency_s": link.latency,
                }
                for (source, target), link in self.links.items()
            ],
            "left_out": self.left_out,
        }


def profile(
    backend: str = "cpu",
    devices: int | None = None,
    graphs: Sequence[Graph] = (),
    *,
    repeats: int = 9,
    budget: float = 60.0,
    phase: Phase = lambda what, seconds: nullcontext(),
) -> Profile:
    """Measure the devices and links of this machine, and the ops of some graphs on them.

    Everything is measured while all devices compute, because that is how a graph runs: they share
    the memory and its bandwidth. Rates come first and links last, with the seconds that they need;
    the rest of the budget is for op classes.

    Parameters
    ----------
    backend : {"cpu", "cuda"}
        ``cpu``: each device is a thread that computes on one core. Its ops and copies are timed by
        the processor time of their thread, unless there are more devices than cores.
    devices : int, optional
        How many; see :func:`doppler.profiling.machine.find_devices`.
    graphs : sequence of Graph
        Executable graphs whose op classes are measured.
    repeats : int
        Timings of everything, after one that warms up; medians are kept.
    budget : float
        Seconds.
    phase : callable, optional
        Shows progress.

    Raises
    ------
    ClusterError
        If the machine has no such devices, or repeats or budget are out of range.
    UnknownNameError
        On another backend.
    GraphError
        If a graph has no executable ops.
    """
    if repeats < 1:
        raise ClusterError(f"profile: repeats is {repeats}, must be at least 1")
    if not 0 < budget < float("inf"):
        raise ClusterError(f"profile: budget is {budget}, must be a number of seconds > 0")
    found = find_devices(backend, devices)
    wanted = find_classes(graphs)
    began = time.perf_counter()
    # Of the CPU: those that no worker of a GPU keeps busy, as in the engine.
    gpus = sum(device != "cpu" for device in found)
    with Workers(found, threads=max(1, cores() - gpus) if gpus else 1) as workers:
        with phase("measuring the rates of the devices", None):
            rates = measure_rates(workers, repeats)
        left = max(0.0, budget - (time.perf_counter() - began))
        with phase(f"measuring {len(wanted)} op classes", left):
            spare = [free / 2 for free in free_memory_of(found)]
            times = measure_classes(workers, rates, spare, wanted, repeats, left)
        disturbance = workers.disturbance
        with phase("measuring the links", None):
            links = _links(workers, found, copy_sizes(graphs), repeats)
        names = [worker.name for worker in workers.all]
    cluster = _cluster(f"{backend}x{len(found)}", names, found, rates, links, times)
    return Profile(
        cluster,
        _source(found, graphs, times, repeats),
        tuple(rates),
        links,
        tuple(times.timings),
        times.left_out,
        disturbance,
        time.perf_counter() - began,
    )


def _links(
    workers: Workers, devices: Sequence[str], sizes: Sequence[int], repeats: int
) -> dict[tuple[int, int], LinkRates]:
    """Measure every link; those between CPU devices are all the same memory, so one of them."""
    links: dict[tuple[int, int], LinkRates] = {}
    between_cpus: LinkRates | None = None
    for source, sender in enumerate(devices):
        for target, receiver in enumerate(devices):
            if source == target:
                continue
            if sender == receiver == "cpu":
                between_cpus = between_cpus or measure_link(workers, source, target, sizes, repeats)
                links[source, target] = between_cpus
            else:
                links[source, target] = measure_link(workers, source, target, sizes, repeats)
    return links


def _cluster(
    name: str,
    names: Sequence[str],
    devices: Sequence[str],
    rates: Sequence[Rates],
    links: dict[tuple[int, int], LinkRates],
    times: ClassTimes,
) -> Cluster:
    memory = memory_of(devices)
    channels = {pair: number for number, pair in enumerate(links)}
    return Cluster(
        name,
        tuple(
            Device(
                names[place],
                "cpu" if device == "cpu" else "gpu",
                rates[place].flops,
                rates[place].memory_bandwidth,
                memory[place],
                rates[place].launch_overhead,
                measured={key: timing.seconds for key, timing in times.timings[place].items()},
            )
            for place, device in enumerate(devices)
        ),
        tuple(
            Link(source, target, link.bandwidth, link.latency, channels[source, target])
            for (source, target), link in links.items()
        ),
        tuple(f"{names[source]} to {names[target]}" for source, target in links),
    )


def _source(
    devices: Sequence[str], graphs: Sequence[Graph], times: ClassTimes, repeats: int
) -> str:
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    text = (
        f"Measured {when} by doppler profile, {describe(devices)}. "
        f"Medians of {repeats}, all devices busy."
    )
    if graphs:
        names = ", ".join(dict.fromkeys(graph.name for graph in graphs))
        counted = len({name for on_device in times.timings for name in on_device})
        text += f" {counted} op classes of {names}, in float32."
    return text
