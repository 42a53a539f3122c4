"""What a teacher shows: the order of its choices, and every device that was as good."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from doppler.errors import CheckpointError, UnknownNameError
from doppler.files import write_atomic
from doppler.heuristics.critical_path import critical_path_trace
from doppler.heuristics.sibling_affinity import sibling_affinity_trace
from doppler.problem import Problem

FORMAT = "doppler-traces"
VERSION = 1

IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]
Teacher = Callable[[Problem, int], tuple[IntArray, IntArray, BoolArray]]

TEACHERS: dict[str, Teacher] = {
    "critical_path": critical_path_trace,
    "sibling_affinity": sibling_affinity_trace,
}


class Traces(NamedTuple):
    """Episodes of a teacher on one problem; by step.

    Attributes
    ----------
    order : int32 array, shape [traces, ops]
        The op of each step.
    choice : int32 array, shape [traces, ops]
        The device that it went to.
    tied : bool array, shape [traces, ops, devices]
        The devices that were as good.
    fingerprint : str
        Of the problem.
    """

    order: IntArray
    choice: IntArray
    tied: BoolArray
    fingerprint: str


def record(problem: Problem, teacher: str, count: int, seed: int = 0) -> Traces:
    """Let a teacher place a problem ``count`` times, breaking ties anew each time.

    Parameters
    ----------
    problem : Problem
    teacher : str
        One of ``TEACHERS``.
    count : int
        At least 1.
    seed : int

    Raises
    ------
    UnknownNameError
        On another teacher; names the nearest.
    """
    if teacher not in TEACHERS:
        raise UnknownNameError("teacher", teacher, TEACHERS)
    seeds = np.random.default_rng(seed).integers(2**32, size=count).tolist()
    shown = [TEACHERS[teacher](problem, each) for each in seeds]
    return Traces(
        np.stack([order for order, _, _ in shown]),
        np.stack([devices[order] for order, devices, _ in shown]),
        np.stack([tied for _, _, tied in shown]),
        problem.fingerprint,
    )


def save_traces(traces: Traces, path: str | Path) -> Path:
    """Write traces as safetensors, whole or not at all."""
    header = {"format": FORMAT, "version": VERSION, "fingerprint": traces.fingerprint}
    arrays = {
        "order": np.ascontiguousarray(traces.order),
        "choice": np.ascontiguousarray(traces.choice),
        "tied": np.ascontiguousarray(traces.tied),
    }
    return write_atomic(path, save(arrays, {"doppler": json.dumps(header)}))


def load_traces(path: str | Path, problem: Problem) -> Traces:
    """Read the traces of a problem.

    Raises
    ------
    CheckpointError
        If the file is missing, corrupt, not of traces, or of another problem.
    """
    try:
        with safe_open(path, framework="np") as file:
            header = json.loads((file.metadata() or {}).get("doppler", "{}"))
            arrays = {name: file.get_tensor(name) for name in ("order", "choice", "tied")}
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such trace file; run the traces stage") from None
    except (SafetensorError, OSError, ValueError, OverflowError, RecursionError):
        raise CheckpointError(f"{path}: corrupt, or not a trace file") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise CheckpointError(f"{path}: a safetensors file, but not of traces")
    if header.get("version") != VERSION:
        raise CheckpointError(
            f"{path}: traces of version {header.get('version')!r}, this Doppler reads {VERSION}; "
            "record them again"
        )
    if header.get("fingerprint") != problem.fingerprint:
        raise CheckpointError(
            f"{path}: recorded on another problem than {problem.graph.name!r} on "
            f"{problem.cluster.name!r}; record it again"
        )
    traces = Traces(arrays["order"], arrays["choice"], arrays["tied"], header["fingerprint"])
    fault = _fault(traces, problem)
    if fault:
        raise CheckpointError(f"{path}: {fault}; record the traces again")
    return traces


def _fault(traces: Traces, problem: Problem) -> str:
    """Say why compiled code must not follow these traces, or nothing."""
    order, choice, tied = traces[:3]
    n_ops, n_devices = problem.n_ops, problem.n_devices
    count = len(order)
    shapes = (order.shape, choice.shape, tied.shape)
    if count < 1 or shapes != ((count, n_ops), (count, n_ops), (count, n_ops, n_devices)):
        return f"holds arrays of other shapes than {n_ops} ops on {n_devices} devices have"
    types = [array.dtype.name for array in (order, choice, tied)]
    if types != ["int32", "int32", "bool"]:
        return "holds arrays of other types than traces have"
    if not (np.sort(order, axis=1) == np.arange(n_ops)).all():
        return "a trace does not place every op once"
    step = np.argsort(order, axis=1)
    if not (step[:, problem.graph.src] < step[:, problem.graph.dst]).all():
        return "a trace places an op before its inputs"
    if choice.min() < 0 or choice.max() >= n_devices:
        return "a trace uses a device that the cluster lacks"
    if not np.isfinite(problem.arrays.compute[order, choice]).all():
        return "a trace puts an op where it cannot run"
    if not np.take_along_axis(tied, choice[:, :, None].astype(np.int64), axis=2).all():
        return "a trace's own choices are not among those that it holds for as good"
    return ""
