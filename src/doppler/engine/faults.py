"""What went wrong in a run, said in one line that names the op and the device."""

from __future__ import annotations

from doppler.engine.backend import Backend
from doppler.errors import DeviceMemoryError, EngineError
from doppler.graph import Graph
from doppler.messages import shown


def label_of(graph: Graph, backend: Backend, op: int, device: int) -> str:
    """Name an op on a device."""
    return (
        f"{graph.name}: op {op} ({shown(graph.names[op])}) on device "
        f"{backend.device_names[device]!r}"
    )


def named(
    error: BaseException,
    usual: type[EngineError],
    label: str,
    backend: Backend,
    op: int,
    device: int,
) -> EngineError:
    """Make an error that names op and device of what a backend raised.

    Parameters
    ----------
    error : BaseException
    usual : type of EngineError
        What it is if neither it nor the backend says otherwise.
    label : str
        Of the op or the transfer.
    """
    known = type(error) if isinstance(error, EngineError) else backend.fault(error)
    what = str(error) if isinstance(error, EngineError) else _said(error)
    found = (known or usual)(f"{label} failed: {what}", op, backend.device_names[device])
    found.__cause__ = error
    return found


def too_little_memory(
    graph: Graph, backend: Backend, op: int, device: int, size: float, free: float
) -> DeviceMemoryError:
    """Say that the output of an op does not fit."""
    return DeviceMemoryError(
        f"{label_of(graph, backend, op, device)}: its output takes {size:.0f} B, but of "
        f"{backend.memory[device]:.0f} B only {free:.0f} B are free",
        op,
        backend.device_names[device],
    )


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
