from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import pytest
from executable_graphs import layered_graph, random_placement

from doppler import Graph, Placement
from doppler.engine import CpuBackend, Engine, engine
from doppler.engine.executor import Executor
from doppler.graph import OpSpec, TensorSpec, Tile


class WatchedRun(Executor):
    """A run that checks its invariant whenever a thread is about to sleep."""

    slept = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._alarms = [
            WatchedAlarm(self, thread, alarm)  # type: ignore[misc]
            for thread, alarm in enumerate(self._alarms)
        ]

    def check(self, thread: int) -> None:
        with self._lock:
            if not self._asleep[thread]:
                return  # Something came since it looked; the alarm is off already.
            WatchedRun.slept += 1
            n_devices = len(self._heaps)
            todo = [*self._heaps, *self._queues][thread]
            assert not todo, f"thread {thread} sleeps with {todo} to do"
            if thread < n_devices:
                assert self._running[thread] is None


class WatchedAlarm:
    def __init__(self, run: WatchedRun, thread: int, alarm: threading.Lock) -> None:
        self.run = run
        self.thread = thread
        self.alarm = alarm
        self.release = alarm.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if threading.current_thread().name.startswith("doppler"):
            self.run.check(self.thread)
        return self.alarm.acquire(blocking, timeout)


def test_no_thread_sleeps_while_it_has_something_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "Executor", WatchedRun)
    rng = np.random.default_rng(0)
    graph = layered_graph(layers=12, width=8)
    with Engine(graph, CpuBackend(3)) as reused:
        for _ in range(30):
            reused.run(random_placement(graph, 3, rng), timeout=60)
    assert WatchedRun.slept > 100


def star(n_ops: int) -> Graph:
    """Ops that are all ready at once."""
    spec = OpSpec("relu", (Tile("x", ((0, 4),)),), (4,))
    return Graph.build(n_ops, [], [], specs=[spec] * n_ops, tensors={"x": TensorSpec((4,))})


def test_ready_ops_go_by_priority_then_id() -> None:
    priority = [3, -1, 3, 2**31 - 1, -(2**31), 0]
    trace = Engine(star(6), CpuBackend(1)).run(Placement([0] * 6, priority)).trace
    assert trace.op.tolist() == [4, 1, 5, 0, 2, 3]


@pytest.mark.parametrize(
    ("placement", "runtime"),
    [(Placement([0] * 6, [6, 5, 4, 3, 2, 1]), "fifo"), (Placement([0] * 6), "priority")],
)
def test_first_ready_first_run(placement: Placement, runtime: str) -> None:
    trace = Engine(star(6), CpuBackend(1)).run(placement, runtime=runtime).trace
    assert trace.op.tolist() == list(range(6))


def test_the_interpreter_is_as_before_after_a_run() -> None:
    before = sys.getswitchinterval()
    Engine(star(2), CpuBackend(1)).run(Placement([0, 0]))
    assert sys.getswitchinterval() == before
