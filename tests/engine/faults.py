"""A backend around another one, in which something goes wrong at a given op or transfer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from doppler import Graph
from doppler.engine import Backend, CpuBackend, Deployment, Session
from doppler.engine.plan import ExecutionPlan
from doppler.errors import EngineError

#: Called with an op and a device, before the op runs there.
OpFault = Callable[[int, int], object]
#: Called with an op, source and target, before the output moves.
TransferFault = Callable[[int, int, int], object]


def no_fault(*where: int) -> None:
    pass


class FaultyBackend:
    """Calls ``at_op`` and ``at_transfer`` first; they may be replaced between runs.

    ``at_once`` takes the place of the backend's own: the size up to which workers copy themselves.
    """

    def __init__(self, backend: Backend | None = None, at_once: float | None = None) -> None:
        self.backend = backend or CpuBackend(2)
        self.at_op: OpFault = no_fault
        self.at_transfer: TransferFault = no_fault
        self.at_once = at_once
        self.name = self.backend.name
        self.device_names = self.backend.device_names
        self.memory = self.backend.memory

    def open(
        self,
        graph: Graph,
        tensors: Mapping[str, Tensor] | None,
        seed: int,
        share: bool = False,
    ) -> FaultyDeployment:
        return FaultyDeployment(self, self.backend.open(graph, tensors, seed, share))

    def fault(self, error: BaseException) -> type[EngineError] | None:
        return self.backend.fault(error)


class FaultyDeployment:
    def __init__(self, backend: FaultyBackend, deployment: Deployment) -> None:
        self.backend = backend
        self.deployment = deployment
        self.close = deployment.close
        self.replace = deployment.replace

    def start(self, plan: ExecutionPlan) -> Session:
        session: Any = self.deployment.start(plan)
        launch, copy = session.launch, session.copy

        def faulty_launch(op: int, device: int) -> Any:
            self.backend.at_op(op, device)
            return launch(op, device)

        def faulty_copy(op: int, source: int, target: int, value: Any) -> Any:
            self.backend.at_transfer(op, source, target)
            return copy(op, source, target, value)

        if self.backend.at_once is not None:
            session.at_once = self.backend.at_once
        session.launch, session.copy = faulty_launch, faulty_copy
        faulty: Session = session
        return faulty
