"""How a simulated run uses each device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from doppler.problem import Problem
    from doppler.simulator.simulate import Result


def use_of_devices(problem: Problem, result: Result) -> dict[str, dict[str, Any]]:
    """Sum up a run by device.

    Returns
    -------
    dict
        By device name: ``ops``; ``busy_s``, seconds of computing; ``load``, their share of the
        makespan; ``peak_memory_bytes``; ``memory_bytes``, None where it is not limited.
    """
    import numpy as np

    trace = result.trace
    count = problem.n_devices
    busy = np.bincount(trace.device, trace.end - trace.start, minlength=count)
    ops = np.bincount(trace.device, minlength=count)
    makespan = result.makespan
    return {
        device.name: {
            "ops": int(ops[d]),
            "busy_s": float(busy[d]),
            "load": float(busy[d] / makespan) if makespan > 0 else 0.0,
            "peak_memory_bytes": float(result.peak_memory[d]),
            "memory_bytes": float(device.memory) if np.isfinite(device.memory) else None,
        }
        for d, device in enumerate(problem.cluster.devices)
    }


def table_of_devices(use: dict[str, dict[str, Any]]) -> Table:
    """Show what :func:`use_of_devices` found."""
    from rich.text import Text

    from doppler.cli.output import make_table
    from doppler.viewer.labels import printable
    from doppler.viewer.units import format_bytes, format_percent, format_seconds

    table = make_table("device", ">ops", ">busy", ">load", ">peak memory", ">of")
    for name, row in use.items():
        table.add_row(
            Text(printable(name)),
            f"{row['ops']:,}",
            format_seconds(row["busy_s"]),
            format_percent(row["load"]),
            format_bytes(row["peak_memory_bytes"]),
            "-" if row["memory_bytes"] is None else format_bytes(row["memory_bytes"]),
        )
    return table
