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

from doppler.checks import check_indices, check_type
from doppler.documents.json_text import read_json
from doppler.documents.schema import Strict, check
from doppler.errors import PlacementError
from doppler.files import write_atomic
from doppler.graph import Graph
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
        placed = check_indices(devices, "placement: devices", PlacementError)
        if not placed.size:
            raise PlacementError("placement: the list of devices is empty")
        if placed.min() < 0:
            raise PlacementError(f"placement: op {int(placed.argmin())} has device {placed.min()}")
        order = None
        if priority is not None:
            order = check_indices(priority, "placement: priority", PlacementError)
        if order is not None and order.size != placed.size:
            raise PlacementError(f"placement: {order.size} priorities for {placed.size} devices")
        for array in (placed, order):
            if array is not None:
                array.setflags(write=False)
        object.__setattr__(self, "devices", placed)
        object.__setattr__(self, "priority", order)
        object.__setattr__(self, "info", {} if info is None else info)

    def validate(self, problem: Problem) -> None:
        """Check that the placement suits a problem, memory aside.

        Raises
        ------
        PlacementError
            As :meth:`validate_on`, or if an op is on a device that cannot run it.
        """
        check_type(problem, Problem, "problem")
        self.validate_on(problem.graph, problem.n_devices)
        compute = problem.arrays.compute
        bad = np.flatnonzero(~np.isfinite(compute[np.arange(problem.n_ops), self.devices]))
        if bad.size:
            op = int(bad[0])
            device = problem.cluster.devices[self.devices[op]].name
            raise PlacementError(
                f"placement: op {op} ({problem.graph.names[op]}) cannot run on device {device!r} "
                "(its kind or its colocation group forbids it)"
            )

    def validate_on(self, graph: Graph, n_devices: int) -> None:
        """Check that the placement suits a graph on so many devices, whatever they are.

        Raises
        ------
        PlacementError
            On another number of ops, a missing device, an op on another device than its pin, or a
            colocation group that is split.
        """
        devices = self.devices
        if devices.size != graph.n_ops:
            raise PlacementError(
                f"placement: {devices.size} ops, but graph {graph.name!r} has {graph.n_ops}"
            )
        if devices.max() >= n_devices:
            op = int(devices.argmax())
            raise PlacementError(
                f"placement: op {op} ({graph.names[op]}) is on device {devices[op]}, but the last "
                f"device is {n_devices - 1}"
            )
        astray = np.flatnonzero((graph.pinned >= 0) & (graph.pinned != devices))
        if astray.size:
            op = int(astray[0])
            raise PlacementError(
                f"placement: op {op} ({graph.names[op]}) is on device {devices[op]}, but pinned to "
                f"device {graph.pinned[op]}"
            )
        grouped = np.flatnonzero(graph.colocation >= 0)
        order = grouped[np.argsort(graph.colocation[grouped], kind="stable")]
        group, homes = graph.colocation[order], devices[order]
        split = np.flatnonzero((group[1:] == group[:-1]) & (homes[1:] != homes[:-1]))
        if split.size:
            at = int(split[0])
            op = int(order[at + 1])
            raise PlacementError(
                f"placement: colocation group {group[at]} is split over devices {homes[at]} and "
                f"{homes[at + 1]} (op {op}, {graph.names[op]})"
            )

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
