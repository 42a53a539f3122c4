"""How a run uses each device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from doppler.engine import Execution
    from doppler.simulator import Result


def use_of_devices(
    result: Result | Execution, memory: Iterable[float]
) -> dict[str, dict[str, Any]]:
    """Sum up a simulated or measured run by device.

    Parameters
    ----------
    result : Result or Execution
    memory : iterable of float, length devices
        Bytes that each device has.

    Returns
    -------
    dict
        By device name: ``ops``; ``busy_s``, seconds of computing; ``load``, their share of the
        makespan; ``peak_memory_bytes``; ``memory_bytes``, None where it is not limited.
    """
    import numpy as np

    trace = result.trace
    count = len(trace.device_names)
    busy = np.bincount(trace.device, trace.end - trace.start, minlength=count)
    ops = np.bincount(trace.device, minlength=count)
    makespan = result.makespan
    return {
        name: {
            "ops": int(ops[d]),
            "busy_s": float(busy[d]),
            "load": float(busy[d] / makespan) if makespan > 0 else 0.0,
            "peak_memory_bytes": float(result.peak_memory[d]),
            "memory_bytes": float(limit) if np.isfinite(limit) else None,
        }
        for d, (name, limit) in enumerate(zip(trace.device_names, memory, strict=True))
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
