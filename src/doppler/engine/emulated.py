"""Devices that sleep for the modeled time: real concurrency for any cluster on any machine.

Every device and every channel has a clock of its own: an op starts when the one before it has
ended and its inputs have arrived, and the thread sleeps until the moment at which the op ends by
that clock. The trace holds the times of these clocks. So neither the overshoot of a sleep nor the
time that Python takes adds up from op to op; they do delay the moment in which the next op is
chosen, and so may change the choice.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from doppler.checks import check_jitter, check_number, check_seed, check_type
from doppler.engine.backend import Times
from doppler.engine.plan import ExecutionPlan
from doppler.errors import DeviceMemoryError, EngineError
from doppler.graph import Graph
from doppler.placement import Placement
from doppler.problem import Problem, resident_bytes

if TYPE_CHECKING:
    from torch import Tensor

_ONLY_LANE = (0, 0)


class EmulatedBackend:
    """Devices of a problem's cluster, which sleep for as long as its ops would take.

    Parameters
    ----------
    problem : Problem
        The times of ops and transfers; its graph is the only one that can run here.
    jitter : float
        Standard deviation of the logarithm of every duration, whose mean is kept. Every run draws
        anew.
    seed : int
        Of the jitter.
    time_scale : float
        How long a modeled second lasts, in seconds. Times are reported in modeled seconds.

    Raises
    ------
    ParamsError
        If a number is out of range.
    """

    name = "emulated"

    def __init__(
        self, problem: Problem, *, jitter: float = 0.0, seed: int = 0, time_scale: float = 1.0
    ) -> None:
        self.problem = check_type(problem, Problem, "problem")
        self.jitter = check_jitter(jitter)
        self.seed = check_seed(seed)
        self.time_scale = check_number(time_scale, "time_scale", above=True)
        self.device_names = tuple(device.name for device in problem.cluster.devices)
        self.memory = tuple(device.memory for device in problem.cluster.devices)
        self._runs = count()

    def open(
        self,
        graph: Graph,
        tensors: Mapping[str, Tensor] | None,
        seed: int,
        share: bool = False,
    ) -> EmulatedDeployment:
        """Check that the graph is the problem's; tensors are not used."""
        known = self.problem.graph
        same = graph is known or (
            graph.n_ops == known.n_ops
            and np.array_equal(graph.src, known.src)
            and np.array_equal(graph.dst, known.dst)
        )
        if not same:
            raise EngineError(
                f"emulated backend: was made for graph {known.name!r}, not for {graph.name!r}"
            )
        return EmulatedDeployment(self)

    def fault(self, error: BaseException) -> type[EngineError] | None:
        """Recognize nothing: sleeping does not fail."""
        return None

    def draw(self, plan: ExecutionPlan) -> tuple[list[float], dict[tuple[int, int], float]]:
        """Draw the durations of the next run, in modeled seconds.

        Returns
        -------
        ops : list of float, length ops
        transfers : dict
            By op and target.
        """
        arrays = self.problem.arrays
        devices = np.array(plan.devices)
        ops = arrays.compute[np.arange(len(devices)), devices]
        sent = [(op, target) for op, away in enumerate(plan.away) for target, _ in away]
        pairs = np.array(sent, np.int64).reshape(-1, 2)
        source, target = devices[pairs[:, 0]], pairs[:, 1]
        moved = arrays.latency[source, target] + (
            arrays.volume[pairs[:, 0]] * arrays.factor[source, target]
        )
        # The number of the run is part of the seed: runs may be made by several threads.
        rng = np.random.default_rng((self.seed, next(self._runs)))
        if self.jitter > 0:
            shift = -0.5 * self.jitter**2
            ops = ops * np.exp(shift + self.jitter * rng.standard_normal(ops.size))
            moved = moved * np.exp(shift + self.jitter * rng.standard_normal(moved.size))
        return ops.tolist(), dict(zip(sent, moved.tolist(), strict=True))


class EmulatedDeployment:
    """A graph on emulated devices."""

    def __init__(self, backend: EmulatedBackend) -> None:
        self._backend = backend

    def start(self, plan: ExecutionPlan) -> EmulatedSession:
        """Draw the durations of a run.

        Raises
        ------
        PlacementError
            If an op is on a device that cannot run it.
        DeviceMemoryError
            If the parameters of its ops do not fit on a device.
        """
        problem = self._backend.problem
        Placement(np.array(plan.devices, np.int32)).validate(problem)
        session = EmulatedSession(self._backend, plan)
        for device, (held, room) in enumerate(
            zip(session.resident, self._backend.memory, strict=True)
        ):
            if held > room:
                name = self._backend.device_names[device]
                raise DeviceMemoryError(
                    f"{problem.graph.name}: device {name!r}: the parameters of its ops take "
                    f"{held:.0f} B, but it has {room:.0f} B",
                    device=name,
                )
        return session

    def replace(self, tensors: Mapping[str, Tensor]) -> None:
        """Do nothing: tensors are not used."""

    def close(self) -> None:
        """Do nothing: there are no tensors."""


class EmulatedSession:
    """One run on emulated devices; see :class:`doppler.engine.backend.Session`.

    A value is the modeled second at which it is there.
    """

    def __init__(self, backend: EmulatedBackend, plan: ExecutionPlan) -> None:
        arrays = backend.problem.arrays
        n_ops, n_devices = arrays.compute.shape
        self.held: list[dict[int, float]] = [{} for _ in range(n_devices)]
        held = np.empty(n_devices)
        lies = np.empty((len(arrays.tile_bytes), n_devices), np.bool_)
        resident_bytes(arrays, np.array(plan.devices, np.int32), held, lies)
        self.resident = held.tolist()
        self.sizes = arrays.output_bytes.tolist()
        self.depth = [1] * n_devices
        self.at_once = -1.0
        self.in_order = False
        self._seconds, self._moving = backend.draw(plan)
        self._producers = plan.producers
        self._channel = arrays.channel.tolist()
        self._channel_free = [0.0] * arrays.n_channels
        self._device_free = [0.0] * n_devices
        self._start = [0.0] * n_ops
        self._end = [0.0] * n_ops
        self._arrival: dict[tuple[int, int], float] = {}
        self._sent: list[tuple[int, int, int, int, float, float]] = []
        self._scale = backend.time_scale
        self._zero = 0.0
        # A sleep is the vain attempt to take a lock, which a failure of the run frees.
        self._sleeping = [threading.Lock() for _ in range(n_devices)]
        for lock in self._sleeping:
            lock.acquire()
        self._aborted = False

    def on_device(self, device: int) -> AbstractContextManager[object]:
        """Need nothing."""
        return nullcontext()

    def in_caller(self, device: int) -> AbstractContextManager[object]:
        """Need nothing."""
        return nullcontext()

    def on_link(self, source: int, target: int) -> AbstractContextManager[object]:
        """Need nothing."""
        return nullcontext()

    def lane(self, source: int, target: int) -> tuple[int, int]:
        """One thread delivers everything, at the times that ``request`` names."""
        return _ONLY_LANE

    def begin(self) -> None:
        """Start all clocks."""
        self._zero = perf_counter()

    def launch(self, op: int, device: int) -> float:
        """Set the end of an op by the device's clock."""
        held = self.held[device]
        start = self._device_free[device]
        for producer in self._producers[op]:
            start = max(start, held[producer])
        end = start + self._seconds[op]
        self._start[op], self._end[op], self._device_free[device] = start, end, end
        return end

    def wait(self, op: int, device: int, value: float) -> None:
        """Sleep until the op has ended."""
        pause = self._zero + value * self._scale - perf_counter()
        if pause > 0:
            self._sleeping[device].acquire(True, min(pause, threading.TIMEOUT_MAX))

    def request(self, op: int, source: int, target: int) -> float:
        """Take a turn on the channel, in the order in which ops end."""
        start, seconds = self._end[op], self._moving[op, target]
        channel = self._channel[source][target]
        if channel >= 0:
            start = max(start, self._channel_free[channel])
            self._channel_free[channel] = start + seconds
        end = start + seconds
        self._arrival[op, target] = end
        self._sent.append((op, source, target, channel, start, end))
        return self._zero + end * self._scale

    def copy(self, op: int, source: int, target: int, value: float) -> float:
        """Deliver what has arrived by now."""
        return self._arrival[op, target]

    def abort(self) -> None:
        """Wake every device."""
        if not self._aborted:
            self._aborted = True
            for lock in self._sleeping:
                lock.release()

    def close(self) -> None:
        """Do nothing: there are no tensors."""

    def times(self) -> Times:
        """Modeled seconds since the start."""
        return Times(np.array(self._start), np.array(self._end), self._sent)

    def results(self) -> dict[int, Tensor]:
        """Compute nothing."""
        return {}
