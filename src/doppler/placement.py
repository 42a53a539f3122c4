"""The answer: the device of every op, and the priority that orders ready ops."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from doppler.documents.json_text import read_json
from doppler.documents.schema import Strict, check
from doppler.errors import PlacementError
from doppler.files import write_atomic
from doppler.messages import shown_value
from doppler.problem import Problem

FORMAT = "doppler-placement"
VERSION = 1

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False, init=False)
class Placement:
    """A device for every op, and optionally a priority.

    Attributes
    ----------
    devices : int32 array, shape [ops]
        Index of the device of each op.
    priority : int32 array, shape [ops], or None
        A free device takes the ready op with the smallest number, of equal ones that with the
        smallest id. None: first ready, first run.
    info : mapping
        What is known about it (method, makespan, graph, cluster), kept in the file.

    Raises
    ------
    PlacementError
        If the arrays are not whole numbers of equal length, at least one, or a device is < 0.
    """

    devices: IntArray
    priority: IntArray | None
    info: Mapping[str, Any]

    def __init__(
        self,
        devices: npt.ArrayLike,
        priority: npt.ArrayLike | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        placed = _integers(devices, "devices")
        if not placed.size:
            raise PlacementError("placement: the list of devices is empty")
        if placed.min() < 0:
            raise PlacementError(f"placement: op {int(placed.argmin())} has device {placed.min()}")
        order = None if priority is None else _integers(priority, "priority")
        if order is not None and order.size != placed.size:
            raise PlacementError(f"placement: {order.size} priorities for {placed.size} devices")
        object.__setattr__(self, "devices", placed)
        object.__setattr__(self, "priority", order)
        object.__setattr__(self, "info", {} if info is None else info)

    def validate(self, problem: Problem) -> None:
        """Check that the placement suits a problem, memory aside.

        Raises
        ------
        PlacementError
            On another number of ops, a missing device, an op on a device that cannot run it or
            other than its pin, or a colocation group that is split.
        """
        graph = problem.graph
        if self.devices.size != problem.n_ops:
            raise PlacementError(
                f"placement: {self.devices.size} ops, but graph {graph.name!r} has {problem.n_ops}"
            )
        if self.devices.max() >= problem.n_devices:
            op = int(self.devices.argmax())
            raise PlacementError(
                f"placement: op {op} ({graph.names[op]}) is on device {self.devices[op]}, but "
                f"cluster {problem.cluster.name!r} has devices 0 to {problem.n_devices - 1}"
            )
        compute = problem.arrays.compute
        bad = np.flatnonzero(~np.isfinite(compute[np.arange(problem.n_ops), self.devices]))
        if bad.size:
            op = int(bad[0])
            device = problem.cluster.devices[self.devices[op]].name
            raise PlacementError(
                f"placement: op {op} ({graph.names[op]}) cannot run on device {device!r} "
                "(its kind, its pin or its colocation group forbids it)"
            )
        group = problem.arrays.group
        home = np.full(problem.arrays.n_groups, -1, np.int32)
        for op in np.flatnonzero(group >= 0).tolist():
            if home[group[op]] not in (-1, self.devices[op]):
                raise PlacementError(
                    f"placement: colocation group {graph.colocation[op]} is split over devices "
                    f"{home[group[op]]} and {self.devices[op]} (op {op}, {graph.names[op]})"
                )
            home[group[op]] = self.devices[op]

    def save(self, path: str | Path) -> Path:
        """Write the placement as JSON, whole or not at all."""
        return write_atomic(path, json.dumps(self.to_json()) + "\n")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, a dict of lists and plain values."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "devices": self.devices.tolist(),
            "priority": None if self.priority is None else self.priority.tolist(),
            "info": dict(self.info),
        }

    @classmethod
    def load(cls, path: str | Path) -> Placement:
        """Read a placement file.

        Raises
        ------
        PlacementError
            If the file is missing, truncated, of another format or holds impossible numbers.
        """
        return cls.from_json(read_json(path, "placement", PlacementError), str(path))

    @classmethod
    def from_json(cls, document: object, where: str) -> Placement:
        """Make a placement of what :meth:`to_json` returned.

        Parameters
        ----------
        document : object
            The parsed JSON.
        where : str
            The file, for messages.

        Raises
        ------
        PlacementError
            As :meth:`load`.
        """
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise PlacementError(f"{where}: not a placement file (no format: {FORMAT})")
        if document.get("version") != VERSION:
            raise PlacementError(
                f"{where}: placement version {shown_value(document.get('version'))}, "
                f"this Doppler reads {VERSION}"
            )
        parts = check(_File, document, where, PlacementError)
        try:
            return cls(parts.devices, parts.priority, parts.info)
        except PlacementError as error:
            raise PlacementError(f"{where}: {error}") from None


class _File(Strict):
    format: Literal["doppler-placement"]
    version: int
    devices: list[int]
    priority: list[int] | None = None
    info: dict[str, Any] = Field(default_factory=dict)


def _integers(values: Any, what: str) -> IntArray:
    if isinstance(values, np.ndarray) and values.dtype == object:
        values = values.tolist()
    try:
        array = np.array(values)
    except ValueError:
        array = np.array(None)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
        raise PlacementError(f"placement: {what} must be a list of whole numbers")
    if array.size and (
        array.max() > np.iinfo(np.int32).max or array.min() < np.iinfo(np.int32).min
    ):
        raise PlacementError(f"placement: {what} holds a number that is too large")
    array = array.astype(np.int32)
    array.setflags(write=False)
    return array
