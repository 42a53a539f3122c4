from __future__ import annotations

import gc
import math
import os
import signal
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from executable_graphs import assert_equals_sequential, layered_graph
from faults import FaultyBackend, no_fault

from doppler import Cluster, Graph, Placement, Problem
from doppler.engine import CpuBackend, EmulatedBackend, Engine
from doppler.errors import (
    DeviceLostError,
    DeviceMemoryError,
    EngineError,
    OpError,
    RunTimeoutError,
    TransferError,
)

GRAPH = layered_graph(layers=6, width=4)
# Every layer on both devices, so that both work and both copy.
PLACEMENT = Placement([op % 2 for op in range(GRAPH.n_ops)])
FAULTY_OP = 9
# Who copies: the copiers all outputs, or the workers.
COPIERS, WORKERS = -1.0, math.inf
# Ops whose output is moved.
SENT = [u for u in range(4, 20) if any((v - u) % 2 for v in GRAPH.dst[GRAPH.src == u].tolist())]


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("doppler")}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    assert not threads()
    yield
    assert not threads()


@pytest.fixture(params=[COPIERS, WORKERS], ids=["copiers", "workers"])
def backend(request: pytest.FixtureRequest) -> FaultyBackend:
    return FaultyBackend(CpuBackend(2), at_once=request.param)


@pytest.fixture
def engine(backend: FaultyBackend) -> Iterator[Engine]:
    with Engine(GRAPH, backend) as engine:
        yield engine


def at(wanted: int, fault: Callable[[], object]) -> Callable[..., None]:
    def strike(op: int, *devices: int) -> None:
        if op == wanted:
            fault()

    return strike


def raising(kind: type[BaseException], *arguments: object) -> Callable[[], None]:
    def fault() -> None:
        raise kind(*arguments)

    return fault


def hang_in_python() -> None:
    while True:
        time.sleep(1e-3)


def hang_in_native_code() -> None:
    time.sleep(1.5)


def fill_memory() -> None:
    torch.empty(2**60)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)


@pytest.fixture
def heeding_interrupts() -> Iterator[None]:
    # A process that a shell started in the background ignores them.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def assert_works(engine: Engine, backend: FaultyBackend) -> None:
    backend.at_op = backend.at_transfer = no_fault
    assert_equals_sequential(GRAPH, engine.run(PLACEMENT, timeout=60))


def test_an_op_that_raises_is_named(engine: Engine, backend: FaultyBackend) -> None:
    backend.at_op = at(FAULTY_OP, raising(ZeroDivisionError, "no\nway"))
    with pytest.raises(OpError) as caught:
        engine.run(PLACEMENT)
    assert str(caught.value) == (
        "layered: op 9 (op9) on device 'cpu1' failed: ZeroDivisionError: no way"
    )
    assert (caught.value.op, caught.value.device) == (9, "cpu1")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert_works(engine, backend)


def test_a_copier_that_fails_is_named(engine: Engine, backend: FaultyBackend) -> None:
    backend.at_transfer = at(FAULTY_OP, raising(OSError, 5, "link down"))
    message = (
        r"layered: op 9 \(op9\) on device 'cpu1': its transfer to device 'cpu0' failed: "
        r"OSError: \[Errno 5\] link down"
    )
    with pytest.raises(TransferError, match=message) as caught:
        engine.run(PLACEMENT)
    assert (caught.value.op, caught.value.device) == (9, "cpu0")
    assert_works(engine, backend)


def test_an_op_that_hangs_in_python_is_interrupted(engine: Engine, backend: FaultyBackend) -> None:
    backend.at_op = at(FAULTY_OP, hang_in_python)
    message = (
        r"layered: op 9 \(op9\) on device 'cpu1': the run took longer than 0.1 s and waits for "
        "this op$"
    )
    with pytest.raises(RunTimeoutError, match=message):
        engine.run(PLACEMENT, timeout=0.1)
    assert_works(engine, backend)


def test_an_op_that_hangs_in_native_code_is_left_behind_and_said(
    engine: Engine, backend: FaultyBackend
) -> None:
    backend.at_op = at(FAULTY_OP, hang_in_native_code)
    message = "; thread 'doppler cpu1' cannot be interrupted and ends with its current call$"
    with pytest.raises(RunTimeoutError, match=message) as caught:
        engine.run(PLACEMENT, timeout=0.1)
    assert (caught.value.op, caught.value.device) == (9, "cpu1")
    assert threads() == {"doppler cpu1"}
    assert_works(engine, backend)
    left = [thread for thread in threading.enumerate() if thread.name == "doppler cpu1"]
    for thread in left:
        thread.join(30)


def test_a_transfer_that_hangs_is_named(engine: Engine, backend: FaultyBackend) -> None:
    backend.at_transfer = at(FAULTY_OP, hang_in_python)
    message = r"op 9 \(op9\) on device 'cpu1': .* waits for the transfer to device 'cpu0'$"
    with pytest.raises(RunTimeoutError, match=message):
        engine.run(PLACEMENT, timeout=0.1)
    assert_works(engine, backend)


def test_too_little_memory_for_torch_is_named(engine: Engine, backend: FaultyBackend) -> None:
    backend.at_op = at(FAULTY_OP, fill_memory)
    with pytest.raises(DeviceMemoryError, match=r"op 9 \(op9\) on device 'cpu1' failed: Runtime"):
        engine.run(PLACEMENT)
    backend.at_op, backend.at_transfer = no_fault, at(FAULTY_OP, fill_memory)
    with pytest.raises(DeviceMemoryError, match="its transfer to device 'cpu0' failed: Runtime"):
        engine.run(PLACEMENT)
    assert_works(engine, backend)


def test_a_device_that_is_lost_is_named(engine: Engine, backend: FaultyBackend) -> None:
    backend.at_op = at(FAULTY_OP, raising(DeviceLostError, "it does not answer"))
    message = r"layered: op 9 \(op9\) on device 'cpu1' failed: it does not answer"
    with pytest.raises(DeviceLostError, match=message) as caught:
        engine.run(PLACEMENT)
    assert (caught.value.op, caught.value.device) == (9, "cpu1")
    assert_works(engine, backend)


@pytest.mark.usefixtures("heeding_interrupts")
def test_an_interrupt_ends_the_run(engine: Engine, backend: FaultyBackend) -> None:
    backend.at_op = at(FAULTY_OP, interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.run(PLACEMENT)
    assert not threads()
    assert_works(engine, backend)


def test_a_thread_that_cannot_prepare_ends_the_run(
    engine: Engine, backend: FaultyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch, "no_grad", raising(RuntimeError, "no"))
        with pytest.raises(RuntimeError, match="no"):
            engine.run(PLACEMENT)
    assert_works(engine, backend)


def test_a_thread_that_does_not_start_ends_the_run(
    engine: Engine, backend: FaultyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def refuse_the_second(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_the_second)
        with pytest.raises(EngineError, match="layered: no thread for a device or link: can't"):
            engine.run(PLACEMENT)
    assert_works(engine, backend)


def test_an_emulated_run_past_its_time_ends_at_once() -> None:
    graph = Graph.from_arrays([0], [1], [1.0, 1e6], [1e6, 1.0], names=["a", "b"])
    backend = EmulatedBackend(Problem(graph, Cluster.uniform(2)), time_scale=1e-3)
    with Engine(graph, backend) as engine:
        with pytest.raises(RunTimeoutError, match=r"op 1 \(b\) on device 'gpu0': .* this op"):
            engine.run(Placement([0, 0]), timeout=0.05)
        with pytest.raises(RunTimeoutError, match=r"op 0 \(a\) .* transfer to device 'gpu1'$"):
            engine.run(Placement([0, 1]), timeout=0.05)


def test_an_emulated_device_has_the_memory_of_its_cluster() -> None:
    graph = Graph.from_arrays([0], [1], [1.0] * 2, [1.0] * 2, output_bytes=[6, 6], name="big")
    problem = Problem(graph, Cluster.uniform(2, memory=10))
    with Engine(graph, EmulatedBackend(problem, time_scale=1e-4)) as engine:
        with pytest.raises(DeviceMemoryError, match=r"big: op 1 \(op1\) on device 'gpu0'"):
            engine.run(Placement([0, 0]))
        with pytest.raises(DeviceMemoryError, match=r"big: op 1 \(op1\) on device 'gpu1'"):
            engine.run(Placement([0, 1]))


FAULTS: list[tuple[str, Callable[[], object], type[BaseException], float | None]] = [
    ("at_op", raising(ValueError, "bad"), OpError, None),
    ("at_op", raising(DeviceLostError, "gone"), DeviceLostError, None),
    ("at_op", fill_memory, DeviceMemoryError, None),
    ("at_op", interrupt, KeyboardInterrupt, None),
    ("at_op", hang_in_python, RunTimeoutError, 0.02),
    ("at_transfer", raising(ValueError, "bad"), TransferError, None),
    ("at_transfer", fill_memory, DeviceMemoryError, None),
    ("at_transfer", hang_in_python, RunTimeoutError, 0.02),
]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").is_dir() else 0


def tensors() -> int:
    return sum(type(each) is torch.Tensor for each in gc.get_objects())


@pytest.mark.slow
@pytest.mark.usefixtures("heeding_interrupts")
def test_two_hundred_faulty_runs_in_a_row_leave_nothing_behind(
    engine: Engine, backend: FaultyBackend
) -> None:
    def run(number: int) -> None:
        where, fault, expected, timeout = FAULTS[number % len(FAULTS)]
        struck = SENT[number % len(SENT)]
        setattr(backend, where, at(struck, fault))
        with pytest.raises(expected):
            engine.run(PLACEMENT, timeout=timeout)
        assert not threads()
        backend.at_op = backend.at_transfer = no_fault

    for number in range(16):  # What is made once has been made then.
        run(number)
    tracemalloc.start()
    try:
        gc.collect()
        before = (open_files(), tensors())
        memory = tracemalloc.get_traced_memory()[0]
        for number in range(200):
            run(number)
        gc.collect()
        assert (open_files(), tensors()) == before
        assert tracemalloc.get_traced_memory()[0] - memory < 50_000
    finally:
        tracemalloc.stop()
    assert_works(engine, backend)


def test_an_error_keeps_no_tensor_alive(engine: Engine, backend: FaultyBackend) -> None:
    big: list[weakref.ref[torch.Tensor]] = []

    def fault() -> None:
        local = torch.zeros(1000)
        big.append(weakref.ref(local))
        raise ValueError("bad")

    backend.at_op = at(FAULTY_OP, fault)
    with pytest.raises(OpError) as caught:
        engine.run(PLACEMENT)
    assert caught.value.__cause__ is not None
    assert big[0]() is None


def test_runs_of_two_threads_take_turns() -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            for _ in range(5):
                assert_equals_sequential(GRAPH, engine.run(PLACEMENT, timeout=60))  # type: ignore[attr-defined]
        except BaseException as error:
            errors.append(error)

    with Engine(GRAPH, CpuBackend(2)) as engine:
        callers = [threading.Thread(target=run) for _ in range(2)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert not errors
