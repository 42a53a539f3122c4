"""Whether the devices of a machine work: each computes a small graph, whose results are known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from doppler.engine import Backend, Engine, compare_outputs
from doppler.errors import EngineError
from doppler.graph import workloads
from doppler.graph.execution import make_tensors, run_sequential
from doppler.markdown import markdown_table
from doppler.placement import Placement
from doppler.viewer.units import format_seconds


class Health(NamedTuple):
    """What a check found.

    Attributes
    ----------
    device : str
        Name of the device, or ``"all"``: ops and transfers spread over all devices.
    healthy : bool
    seconds : float
        Makespan of the run that was checked; 0 if it failed.
    finding : str
        What is wrong, or ``"results are right"``.
    """

    device: str
    healthy: bool
    seconds: float
    finding: str


def check_device(backend: Backend, device: int | None, timeout: float) -> Health:
    """Run a small graph on one device, or spread over all of them, and check its results.

    Parameters
    ----------
    backend : Backend
    device : int or None
        None: all devices, every op on another one than the op before it.
    timeout : float
        Seconds after which a run is given up.

    Returns
    -------
    Health
        Of the second of two runs: the first may load libraries and start the device.
    """
    name = "all" if device is None else backend.device_names[device]
    graph = workloads.ffnn(64, 32, 64, 16, tiles=2)
    tensors = make_tensors(graph)
    expected = run_sequential(graph, tensors)
    count = len(backend.device_names)
    devices = np.arange(graph.n_ops) % count if device is None else np.full(graph.n_ops, device)
    placement = Placement(devices.astype(np.int32))
    try:
        with Engine(graph, backend, tensors=tensors) as engine:
            engine.run(placement, timeout=timeout)
            execution = engine.run(placement, timeout=timeout)
        parity = compare_outputs(graph, execution.outputs, expected)
    except EngineError as error:
        return Health(name, False, 0.0, str(error))
    if not parity.equal:
        finding = f"computes {parity.name} wrong, off by up to {parity.difference:.3g}"
        return Health(name, False, execution.makespan, finding)
    return Health(name, True, execution.makespan, "results are right")


def health_markdown(health: Iterable[Health]) -> str:
    """Lay out what was found as a Markdown table."""
    rows = [
        (
            each.device,
            "healthy" if each.healthy else "**unhealthy**",
            format_seconds(each.seconds),
            each.finding,
        )
        for each in health
    ]
    return markdown_table(("device", "state", "took", "finding"), rows)
