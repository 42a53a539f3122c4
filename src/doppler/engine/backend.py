"""What the executor asks of a kind of device: three small protocols.

A :class:`Backend` names devices. Opened for a graph it gives a :class:`Deployment`, which lives as
long as the engine and keeps tensors on the devices. Every run is a :class:`Session`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from doppler.engine.plan import ExecutionPlan
from doppler.errors import EngineError
from doppler.graph import Graph

if TYPE_CHECKING:
    from torch import Tensor

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Times:
    """When everything happened, in seconds from the start of the run.

    Attributes
    ----------
    start, end : float64 array, shape [ops]
    sent : list of (op, source, target, channel, start, end)
        Transfers, in any order.
    """

    start: FloatArray
    end: FloatArray
    sent: list[tuple[int, int, int, int, float, float]]


class Session(Protocol):
    """One run.

    Values are whatever the backend computes with. ``launch`` and ``wait`` of a device are called
    in its worker thread only, ``copy`` in the copier thread of the link or, for a small output, in
    the worker thread of the source. ``request`` is called while the executor's lock is held, so in
    the order in which ops end, and must be quick; it is not called for a small output.

    Attributes
    ----------
    held : list of dict, length devices
        The values on each device, by op. The executor adds and removes those of ops; other keys,
        all negative, are the backend's.
    resident : list of float, length devices
        Bytes of the inputs and parameters on each device.
    sizes : list of float, length ops
        Bytes of each output.
    depth : list of int, length devices
        How many ops may be launched on a device before the first of them has ended.
    at_once : float
        Outputs of at most so many bytes are small: the worker copies them itself, for it would take
        longer to wake a copier.
    in_order : bool
        Whether ops of one device may be launched one after another in the thread that called
        ``run``, and only the last be waited for.
    """

    held: list[dict[int, Any]]
    resident: list[float]
    sizes: list[float]
    depth: list[int]
    at_once: float
    in_order: bool

    def on_device(self, device: int) -> AbstractContextManager[object]:
        """Surround everything that a worker thread does."""

    def in_caller(self, device: int) -> AbstractContextManager[object]:
        """Surround a run on one device in the thread that called ``run``, and leave it as it was.

        Called only where ``in_order``.
        """

    def on_link(self, source: int, target: int) -> AbstractContextManager[object]:
        """Surround everything that a copier thread does, given one of its links."""

    def lane(self, source: int, target: int) -> tuple[int, int]:
        """Name the copier of a link, by one of its links; links may share a copier."""

    def begin(self) -> None:
        """Start the clock."""

    def launch(self, op: int, device: int) -> Any:
        """Start an op whose inputs are all in ``held[device]``, and return its value."""

    def wait(self, op: int, device: int, value: Any) -> None:
        """Return when the op has ended."""

    def request(self, op: int, source: int, target: int) -> float:
        """Note that a transfer is wanted, and return when ``copy`` shall be called.

        Returns
        -------
        float
            A time of ``time.perf_counter``, or 0: as soon as the copier is free.
        """

    def copy(self, op: int, source: int, target: int, value: Any) -> Any:
        """Bring a value to another device, and return it when it has arrived."""

    def abort(self) -> None:
        """Unblock whatever waits in this session; from any thread, after a failure."""

    def close(self) -> None:
        """Let go of what the run held; called once, in the thread that called ``run``."""

    def times(self) -> Times:
        """Tell when everything happened, after the last op has ended."""

    def results(self) -> dict[int, Tensor]:
        """Return the outputs of the ops in ``graph.outputs``, after the last op has ended."""


class Deployment(Protocol):
    """A graph on the devices of a backend, kept between runs."""

    def start(self, plan: ExecutionPlan) -> Session:
        """Place inputs and parameters where the plan needs them.

        Raises
        ------
        DeviceMemoryError
            If they do not fit.
        """

    def replace(self, tensors: Mapping[str, Tensor]) -> None:
        """Take other whole tensors from the next run on; all or, if one does not suit, none.

        Raises
        ------
        EngineError
            If the graph has no such tensor, or it is of another shape or dtype.
        """

    def close(self) -> None:
        """Give the memory back."""


class Backend(Protocol):
    """A kind of device."""

    @property
    def name(self) -> str:
        """Label of the traces."""

    @property
    def device_names(self) -> tuple[str, ...]:
        """Name of each device."""

    @property
    def memory(self) -> tuple[float, ...]:
        """Bytes that each device may hold; infinite where it is not limited."""

    def open(
        self,
        graph: Graph,
        tensors: Mapping[str, Tensor] | None,
        seed: int,
        share: bool = False,
    ) -> Deployment:
        """Load a graph.

        Parameters
        ----------
        graph : Graph
        tensors : mapping of str to Tensor, optional
            Whole inputs and parameters; made from the seed where left out.
        seed : int
        share : bool
            Whether what lies on the device where it is needed is used without a copy.

        Raises
        ------
        DopplerError
            If the graph cannot run here.
        """

    def fault(self, error: BaseException) -> type[EngineError] | None:
        """Tell what an exception of ``launch``, ``wait`` or ``copy`` means, if it is known."""
