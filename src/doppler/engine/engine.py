"""Run a graph on real devices, once or again and again."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from doppler.checks import check_name, check_number, check_seed, check_type
from doppler.engine.backend import Backend, Deployment, Times
from doppler.engine.executor import Executor
from doppler.engine.plan import ExecutionPlan, Neighbors, make_execution_plan
from doppler.engine.single import Course, make_course, run_course
from doppler.engine.switch_interval import short_switch_interval
from doppler.errors import EngineError, UnknownNameError
from doppler.graph import Graph
from doppler.messages import shown, shown_value
from doppler.placement import Placement
from doppler.trace import Trace

if TYPE_CHECKING:
    from torch import Tensor

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Execution:
    """Outcome of one measured run.

    Attributes
    ----------
    makespan : float
        Seconds from the start of the run to the end of the last op.
    trace : Trace
        Its label is the backend's name.
    outputs : dict of int to Tensor
        Outputs of the ops in ``graph.outputs``, each on its device; empty where no tensors are
        computed.
    peak_memory : float64 array, shape [devices]
        Most bytes of inputs, parameters and outputs that each device held at any time.
    backend : str
        Name of the backend.
    """

    makespan: float
    trace: Trace
    outputs: dict[int, Tensor]
    peak_memory: FloatArray
    backend: str


class Engine:
    """A graph on the devices of a backend, ready to run under one placement after another.

    What the ops compute is looked up once, and the inputs and parameters that a placement brings
    to a device stay there for the next. Close the engine, or use it as a context manager, to give
    their memory back. Runs of several threads take turns.

    Parameters
    ----------
    graph : Graph
    backend : Backend
    tensors : mapping of str to Tensor, optional
        Whole inputs and parameters; by default synthetic ones, made from ``seed``.
    seed : int
        Of the synthetic tensors.
    share : bool
        Whether tensors that lie where they are needed (on the CPU for devices of the CPU, on
        ``cuda:0`` for that) are used as they are. By default they are copied, and what becomes of
        them afterwards is not seen. No op writes to them; a result may be a view of one.

    Raises
    ------
    DopplerError
        If the graph cannot run on the backend.
    """

    def __init__(
        self,
        graph: Graph,
        backend: Backend,
        *,
        tensors: Mapping[str, Tensor] | None = None,
        seed: int = 0,
        share: bool = False,
    ) -> None:
        self.graph = check_type(graph, Graph, "graph")
        self.backend = backend
        if not callable(getattr(backend, "open", None)):
            raise EngineError(f"backend is {shown_value(backend)}, must be a Backend")
        check_seed(seed)
        self._edges = Neighbors(graph)
        self._deployment: Deployment | None = backend.open(graph, tensors, seed, share)
        self._turn = threading.Lock()
        self._released: set[str] = set()
        # Of the last placement: it is often run again.
        self._prepared: tuple[Placement, str, ExecutionPlan, Course | None] | None = None

    def run(
        self,
        placement: Placement,
        *,
        tensors: Mapping[str, Tensor] | None = None,
        runtime: str = "priority",
        timeout: float | None = None,
    ) -> Execution:
        """Run the graph once.

        Where all ops lie on one device and there is no timeout, they run in the calling thread.

        Parameters
        ----------
        placement : Placement
        tensors : mapping of str to Tensor, optional
            Whole tensors that take the place of the engine's from this run on: new inputs, changed
            parameters. All others stay where they are.
        runtime : {"priority", "fifo"}
            Whether ready ops go by the placement's priority, or first ready, first run.
        timeout : float, optional
            Seconds after which the run is given up.

        Returns
        -------
        Execution

        Raises
        ------
        PlacementError
            If the placement does not suit the graph and the devices.
        UnknownNameError
            If the graph has no tensor of a name.
        EngineError
            If a tensor is of another shape or dtype; then none has taken its place.
            If an op or a transfer fails, memory does not suffice, a device is lost or the time is
            up: OpError, TransferError, DeviceMemoryError, DeviceLostError, RunTimeoutError. The
            message names the op and the device. The engine can be used again.
        """
        if timeout is not None:
            timeout = check_number(timeout, "timeout", 0, threading.TIMEOUT_MAX, above=True)
        plan, course = self._prepare(placement, runtime)
        with self._turn:
            if self._deployment is None:
                raise EngineError(f"{self.graph.name}: the engine is closed; make another")
            if self._released and (missing := self._released.difference(tensors or ())):
                raise EngineError(
                    f"{self.graph.name}: tensor {shown(min(missing))!r} was released; give it anew"
                )
            if tensors:
                self._deployment.replace(tensors)
                self._released.difference_update(tensors)
            session = self._deployment.start(plan)
            try:
                if course is not None and timeout is None and session.in_order:
                    peak = run_course(self.graph, self.backend, session, course)
                else:
                    run = Executor(self.graph, self.backend, session, plan)
                    with short_switch_interval():
                        run.execute(timeout)
                    peak = run.peak
                trace = _trace(session.times(), plan, self.backend)
                outputs = session.results()
            finally:
                session.close()
        return Execution(trace.makespan, trace, outputs, np.array(peak), self.backend.name)

    def release(self, names: Iterable[str]) -> None:
        """Let go of whole tensors, that their memory can be freed; the next run must be given them.

        Parameters
        ----------
        names : iterable of str
            Of tensors whose dtype the graph says.

        Raises
        ------
        UnknownNameError
            If the graph has no tensor of a name.
        """
        import torch

        # What stands for them meanwhile takes the memory of one element.
        stand_ins = {}
        for name in names:
            check_name(name, f"tensor of {self.graph.name}", self.graph.tensors)
            spec = self.graph.tensors[name]
            one = torch.zeros((), dtype=getattr(torch, spec.dtype or "float32"))
            stand_ins[name] = one.expand(spec.shape)
        with self._turn:
            if self._deployment is not None:
                self._deployment.replace(stand_ins)
                self._released.update(stand_ins)

    def _prepare(self, placement: Placement, runtime: str) -> tuple[ExecutionPlan, Course | None]:
        known = self._prepared
        if known is None or known[0] is not placement or known[1] != runtime:
            check_type(placement, Placement, "placement")
            placement.validate_on(self.graph, len(self.backend.device_names))
            plan = make_execution_plan(self._edges, placement, runtime)
            known = self._prepared = placement, runtime, plan, make_course(plan)
        return known[2], known[3]

    def close(self) -> None:
        """Give the memory on the devices back; the engine cannot run any more."""
        with self._turn:
            if self._deployment is not None:
                self._deployment.close()
                self._deployment = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def execute(
    graph: Graph,
    placement: Placement,
    backend: Backend | str,
    *,
    tensors: Mapping[str, Tensor] | None = None,
    seed: int = 0,
    runtime: str = "priority",
    timeout: float | None = None,
) -> Execution:
    """Run a graph once on real devices.

    Parameters
    ----------
    graph : Graph
    placement : Placement
    backend : Backend or {"cpu", "cuda"}
        A name stands for as many devices as the placement names.
    tensors : mapping of str to Tensor, optional
        Whole inputs and parameters; by default synthetic ones, made from ``seed``.
    seed : int
        Of the synthetic tensors.
    runtime : {"priority", "fifo"}
        Whether ready ops go by the placement's priority, or first ready, first run.
    timeout : float, optional
        Seconds after which the run is given up.

    Returns
    -------
    Execution

    Raises
    ------
    DopplerError
        As :class:`Engine` and :meth:`Engine.run`.
    """
    check_type(placement, Placement, "placement")
    if isinstance(backend, str):
        backend = make_backend(backend, int(placement.devices.max()) + 1)
    with Engine(graph, backend, tensors=tensors, seed=seed) as engine:
        return engine.run(placement, runtime=runtime, timeout=timeout)


def make_backend(name: str, n_devices: int) -> Backend:
    """Make a backend of as many devices as are needed.

    Raises
    ------
    UnknownNameError
        If it is not known by its name alone.
    EngineError
        If this machine does not have it.
    """
    from doppler.engine.cpu import CpuBackend

    if name == "cpu":
        return CpuBackend(n_devices)
    if name == "cuda":
        from doppler.engine.cuda import CudaBackend, local_devices

        return CudaBackend(local_devices(n_devices))
    raise UnknownNameError("backend", name, ("cpu", "cuda"))


def _trace(times: Times, plan: ExecutionPlan, backend: Backend) -> Trace:
    # Of what starts at one instant, that which takes no time came first.
    order = np.lexsort((times.end, times.start)).astype(np.int32)
    sent = sorted(times.sent, key=lambda transfer: transfer[4:])
    names = np.array([transfer[:4] for transfer in sent], np.int32).reshape(-1, 4)
    moments = np.array([transfer[4:] for transfer in sent], np.float64).reshape(-1, 2)
    return Trace(
        op=order,
        device=np.array(plan.devices, np.int32)[order],
        start=times.start[order],
        end=times.end[order],
        transfer_op=names[:, 0].copy(),
        transfer_source=names[:, 1].copy(),
        transfer_target=names[:, 2].copy(),
        transfer_start=moments[:, 0].copy(),
        transfer_end=moments[:, 1].copy(),
        transfer_channel=names[:, 3].copy(),
        device_names=backend.device_names,
        label=backend.name,
    )
