"""What a teacher shows: the order of its choices, and every device that was as good."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.errors import CheckpointError
from doppler.policy.hint import Hint, make_hint
from doppler.problem import Problem
from doppler.tensors import read_tensors, write_tensors

FORMAT = "doppler-traces"
VERSION = 2

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]


class Demonstrations(NamedTuple):
    """Episodes on one problem, by step, and the hints that some of them follow.

    Attributes
    ----------
    order : int32 array, shape [traces, ops]
        The op of each step.
    choice : int32 array, shape [traces, ops]
        The device that it went to.
    tied : bool array, shape [traces, ops, devices]
        The devices that were as good.
    hint : int32 array, shape [traces]
        Number of the hint that the trace follows as far as that pays, or -1.
    hints : int32 array, shape [hints, ops]
        Device of each op in each hint, the best first.
    seconds : float64 array, shape [hints]
        Makespan of each hint.
    fingerprint : str
        Of the problem.
    """

    order: IntArray
    choice: IntArray
    tied: BoolArray
    hint: IntArray
    hints: IntArray
    seconds: FloatArray
    fingerprint: str

    def made_hints(self, problem: Problem) -> list[Hint]:
        """Return the hints as PLC takes them."""
        return [make_hint(problem, devices) for devices in self.hints]


_ARRAYS = ("order", "choice", "tied", "hint", "hints", "seconds")


def save_demonstrations(traces: Demonstrations, path: str | Path) -> Path:
    """Write traces as safetensors, whole or not at all."""
    header = {"format": FORMAT, "version": VERSION, "fingerprint": traces.fingerprint}
    return write_tensors(path, {name: getattr(traces, name) for name in _ARRAYS}, header)


def load_demonstrations(path: str | Path, problem: Problem) -> Demonstrations:
    """Read the traces of a problem.

    Raises
    ------
    CheckpointError
        If the file is missing, corrupt, not of traces, or of another problem.
    """
    header, tensors = read_tensors(path, "trace", FORMAT, VERSION, fix="run the traces stage")
    if header.get("fingerprint") != problem.fingerprint:
        raise CheckpointError(
            f"{path}: recorded on another problem than {problem.graph.name!r} on "
            f"{problem.cluster.name!r}; record it again"
        )
    if not tensors.keys() >= set(_ARRAYS):
        raise CheckpointError(f"{path}: lacks an array; record the traces again")
    arrays = {name: tensors[name] for name in _ARRAYS}
    traces = Demonstrations(**arrays, fingerprint=header["fingerprint"])
    fault = _fault(traces, problem)
    if fault:
        raise CheckpointError(f"{path}: {fault}; record the traces again")
    return traces


def _fault(traces: Demonstrations, problem: Problem) -> str:
    """Say why compiled code must not follow these traces, or nothing."""
    order, choice, tied, hint, hints, seconds = traces[:6]
    n_ops, n_devices = problem.n_ops, problem.n_devices
    count = len(order)
    shapes = (order.shape, choice.shape, tied.shape, hint.shape, hints.shape)
    wanted = (
        (count, n_ops),
        (count, n_ops),
        (count, n_ops, n_devices),
        (count,),
        (seconds.size, n_ops),
    )
    if count < 1 or shapes != wanted or seconds.ndim != 1:
        return f"holds arrays of other shapes than {n_ops} ops on {n_devices} devices have"
    types = [array.dtype.name for array in traces[:6]]
    if types != ["int32", "int32", "bool", "int32", "int32", "float64"]:
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
    if not (hint >= -1).all() or not (hint < len(hints)).all():
        return "a trace follows a hint that is not there"
    if hints.size and (hints.min() < 0 or hints.max() >= n_devices):
        return "a hint uses a device that the cluster lacks"
    if not np.isfinite(problem.arrays.compute[np.arange(n_ops), hints]).all():
        return "a hint puts an op where it cannot run"
    if not (np.isfinite(seconds) & (seconds >= 0)).all():
        return "the seconds of a hint are not finite numbers"
    if not np.take_along_axis(tied, choice[:, :, None].astype(np.int64), axis=2).all():
        return "a trace's own choices are not among those that it holds for as good"
    return ""
