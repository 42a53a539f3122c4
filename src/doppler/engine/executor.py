"""The work-conserving executor: a worker thread per device, a copier thread per link.

Invariant: a worker waits only while its heap of ready ops is empty, and a copier only while
nothing in its queue is due. Both look and fall asleep under the lock of the run, and whoever adds
to an empty heap or queue under that lock wakes its thread. Hence no device idles while an op that
is placed on it is ready, but for the time that the operating system takes to wake a thread. What is
copied faster than a thread wakes, the worker copies itself before it looks for its next op.

All state is guarded by one lock, which is held for some microseconds per op. Values are computed,
copied and freed outside it.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import traceback
from heapq import heappop, heappush
from time import perf_counter
from typing import Any
from weakref import WeakSet

from doppler.engine.backend import Backend, Session
from doppler.engine.faults import label_of, named, too_little_memory
from doppler.engine.plan import ExecutionPlan
from doppler.errors import EngineError, OpError, RunTimeoutError, TransferError
from doppler.graph import Graph

_ID = 0xFFFFFFFF
# After a failure threads end by themselves, or else Python code is interrupted, torch never.
_PATIENCE_SECONDS = 0.05
_GRACE_SECONDS = 0.7
# As the process ends: if the interpreter closed around a call of torch, it would end by SIGABRT.
_EXIT_SECONDS = 10.0
_stuck: WeakSet[threading.Thread] = WeakSet()

# When a transfer is due, the number of its request, the op, source, target and consumers there.
_Request = tuple[float, int, int, int, int, tuple[int, ...]]


class _Stopped(BaseException):
    """Raised inside a thread that does not end by itself after a failure."""


class Executor:
    """One run of a plan on a session of a backend.

    Attributes
    ----------
    peak : list of float, length devices
        Most bytes that each device held at any time.
    """

    def __init__(
        self, graph: Graph, backend: Backend, session: Session, plan: ExecutionPlan
    ) -> None:
        n_devices = len(backend.device_names)
        self._graph = graph
        self._backend = backend
        self._session = session
        self._plan = plan
        self._lock = threading.Lock()
        self._heaps: list[list[int]] = [[] for _ in range(n_devices)]
        self._missing = [len(producers) for producers in plan.producers]
        self._uses: list[dict[int, int]] = [{} for _ in range(n_devices)]
        self._live = list(session.resident)
        self.peak = list(session.resident)
        self._left = graph.n_ops
        self._order = 0
        self._stop = False
        self._error: BaseException | None = None
        self._finished = _taken_lock()
        # What each device and each copier is at, and since when; for the message of a time-out.
        self._running: list[tuple[float, int] | None] = [None] * n_devices
        self._link_of, lanes = _lanes(session, plan)
        self._queues: list[list[_Request]] = [[] for _ in lanes]
        # Last come the copies that workers make themselves.
        self._carried: list[tuple[float, int, int, int] | None] = [None] * (len(lanes) + n_devices)
        self._lanes = lanes
        # Threads: first the workers, then the copiers. Each sleeps on a lock of its own.
        n_threads = n_devices + len(lanes)
        self._asleep = [False] * n_threads
        self._alarms = [_taken_lock() for _ in range(n_threads)]
        self._absent = n_threads
        self._all_there = _taken_lock()

    def execute(self, timeout: float | None) -> None:
        """Run the plan to its end.

        Parameters
        ----------
        timeout : float, optional
            Seconds after which the run is given up.

        Raises
        ------
        EngineError
            If an op or a transfer fails, or the time is up. No thread of the run is left, but
            those that the message names.
        """
        threads = self._threads()
        try:
            self._start(threads)
            self._all_there.acquire()
            self._session.begin()
            self._seed()
            if not self._finished.acquire(True, -1 if timeout is None else timeout):
                self._fail(self._late(timeout or 0.0))
        except BaseException as error:
            self._fail(error)
            self._wind_up(threads)
            self._error = None
            raise
        if self._error is None:
            for thread in threads:
                thread.join()
            return
        stuck = self._wind_up(threads)
        failure, self._error = self._error, None
        if not stuck or not isinstance(failure, EngineError):
            raise failure
        raise type(failure)(
            f"{failure}; {', '.join(stuck)} cannot be interrupted and ends with its current call",
            failure.op,
            failure.device,
        ) from failure.__cause__

    def _start(self, threads: list[threading.Thread]) -> None:
        for thread in threads:
            try:
                thread.start()
            except RuntimeError as error:
                raise EngineError(
                    f"{self._graph.name}: no thread for a device or link: {error}"
                ) from error

    def _threads(self) -> list[threading.Thread]:
        names = self._backend.device_names
        threads = [
            threading.Thread(
                target=self._guard, args=(self._work, d), name=f"doppler {name}", daemon=True
            )
            for d, name in enumerate(names)
        ]
        for index, (source, target) in enumerate(self._lanes):
            label = f"doppler {names[source]} to {names[target]}"
            threads.append(
                threading.Thread(
                    target=self._guard, args=(self._carry, index), name=label, daemon=True
                )
            )
        return threads

    def _seed(self) -> None:
        with self._lock:
            for op, missing in enumerate(self._missing):
                if not missing:
                    self._push(op, self._plan.devices[op])

    def _push(self, op: int, device: int) -> None:
        rank = self._plan.rank
        if rank is None:
            # Ops of one instant come in the order of their ids.
            self._order += 1
            heappush(self._heaps[device], self._order << 32 | op)
        else:
            heappush(self._heaps[device], rank[op])
        if self._asleep[device]:
            self._asleep[device] = False
            self._alarms[device].release()

    def _work(self, device: int) -> None:
        """Run the ops of a device, in the order in which its heap gives them."""
        session = self._session
        lock, alarm, heap = self._lock, self._alarms[device], self._heaps[device]
        launch, wait = session.launch, session.wait
        running, depth = self._running, session.depth[device]
        away, sizes, at_once = self._plan.away, session.sizes, session.at_once
        copies: list[Any] = []
        launched: list[tuple[int, Any]] = []
        garbage: list[Any] = []
        op, value = -1, None
        with session.on_device(device):
            self._arrive_at_start()
            while True:
                with lock:
                    if op >= 0:
                        self._complete(op, device, value, copies, garbage)
                    if self._stop:
                        return
                    if heap:
                        op = heappop(heap) & _ID
                        self._take(device, sizes[op], op)
                        running[device] = (perf_counter(), op)
                    elif launched:
                        op = -1
                    else:
                        op = -1
                        running[device] = None
                        self._asleep[device] = True
                value, copies = None, []
                garbage.clear()
                try:
                    if op >= 0:
                        launched.append((op, launch(op, device)))
                        if len(launched) < depth:
                            op = -1
                            continue
                    if launched:
                        op, value = launched.pop(0)
                        if depth > 1:  # Another one was taken since.
                            running[device] = (perf_counter(), op)
                        wait(op, device, value)
                except BaseException as error:
                    self._fail(self._op_error(error, op, device))
                    return
                if op < 0:
                    alarm.acquire()
                elif away[op] and sizes[op] <= at_once:
                    running[device] = None
                    if not self._copy(op, device, value, copies):
                        return

    def _copy(self, op: int, device: int, value: Any, copies: list[Any]) -> bool:
        """Copy an output to wherever it is needed, in its worker; False if that failed."""
        at = len(self._lanes) + device
        for target, _ in self._plan.away[op]:
            self._carried[at] = (perf_counter(), op, device, target)
            try:
                copies.append(self._session.copy(op, device, target, value))
            except BaseException as error:
                self._fail(self._transfer_error(error, op, device, target))
                return False
        self._carried[at] = None
        return True

    def _complete(
        self, op: int, device: int, value: Any, copies: list[Any], garbage: list[Any]
    ) -> None:
        """Record the end of an op: free its inputs, send its output, wake who waits for it."""
        plan = self._plan
        for producer in plan.producers[op]:
            self._release(producer, device, garbage)
        here, away = plan.here[op], plan.away[op]
        self._session.held[device][op] = value
        self._uses[device][op] = len(here) + len(away) + plan.kept[op]
        missing = self._missing
        for consumer in here:
            missing[consumer] -= 1
            if not missing[consumer]:
                self._push(consumer, device)
        if copies:
            for (target, consumers), copied in zip(away, copies, strict=True):
                self._take(target, self._session.sizes[op], op)
                self._deliver((0.0, 0, op, device, target, consumers), copied, garbage)
            away = ()
        for target, consumers in away:
            due = self._session.request(op, device, target)
            if due:
                # Under way from now on; otherwise room is taken when the copier turns to it.
                self._take(target, self._session.sizes[op], op)
            lane = self._link_of[device, target]
            self._order += 1
            heappush(self._queues[lane], (due, self._order, op, device, target, consumers))
            thread = len(self._heaps) + lane
            if self._asleep[thread]:
                self._asleep[thread] = False
                self._alarms[thread].release()
        self._left -= 1
        if not self._left:
            self._end()

    def _carry(self, lane: int) -> None:
        """Make the transfers of a copier, in the order in which they are due."""
        session, lock, queue = self._session, self._lock, self._queues[lane]
        thread = len(self._heaps) + lane
        alarm = self._alarms[thread]
        garbage: list[Any] = []
        item: _Request | None = None
        value: Any = None
        woken = True
        with session.on_link(*self._lanes[lane]):
            self._arrive_at_start()
            while True:
                pause = -1.0
                with lock:
                    if item is not None:
                        self._deliver(item, value, garbage)
                        item = value = None
                    if not woken and not self._asleep[thread]:
                        alarm.acquire()  # Woken in the moment in which the time was up.
                    self._asleep[thread] = False
                    if self._stop:
                        return
                    self._carried[lane] = None
                    if queue:
                        due = queue[0][0]
                        pause = due - perf_counter() if due else 0.0
                        if pause <= 0:
                            item = heappop(queue)
                            _, _, op, source, target, _ = item
                            self._carried[lane] = (perf_counter(), op, source, target)
                            if not due:
                                self._take(target, session.sizes[op], op)
                            value = session.held[source][op]
                    if item is None:
                        self._asleep[thread] = True
                garbage.clear()
                if item is None:
                    woken = alarm.acquire(True, min(pause, threading.TIMEOUT_MAX))
                    continue
                woken = True
                try:
                    value = session.copy(op, source, target, value)
                except BaseException as error:
                    self._fail(self._transfer_error(error, op, source, target))
                    return

    def _deliver(self, item: _Request, value: Any, garbage: list[Any]) -> None:
        """Record the arrival of a transfer."""
        _, _, op, source, target, consumers = item
        self._release(op, source, garbage)
        self._session.held[target][op] = value
        self._uses[target][op] = len(consumers)
        missing = self._missing
        for consumer in consumers:
            missing[consumer] -= 1
            if not missing[consumer]:
                self._push(consumer, target)

    def _take(self, device: int, size: float, op: int) -> None:
        live = self._live[device] + size
        self._live[device] = live
        if live > self.peak[device]:
            self.peak[device] = live
            limit = self._backend.memory[device]
            if live > limit:
                raise too_little_memory(
                    self._graph, self._backend, op, device, size, limit - live + size
                )

    def _release(self, op: int, device: int, garbage: list[Any]) -> None:
        uses = self._uses[device]
        uses[op] -= 1
        if not uses[op]:
            del uses[op]
            self._live[device] -= self._session.sizes[op]
            # Freed by the caller, outside the lock: that takes long for a large tensor.
            garbage.append(self._session.held[device].pop(op))

    def _arrive_at_start(self) -> None:
        with self._lock:
            self._absent -= 1
            if not self._absent:
                self._all_there.release()

    def _guard(self, body: Any, index: int) -> None:
        try:
            body(index)
        except _Stopped:
            pass
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the run with an error, unless it has one or has ended."""
        with self._lock:
            if self._error is None and self._left:
                self._error = error
            self._end()

    def _end(self) -> None:
        """Let the calling thread and all others go on to their ends. Called under the lock."""
        if self._stop:
            return
        self._stop = True
        self._finished.release()
        for thread, asleep in enumerate(self._asleep):
            if asleep:
                self._asleep[thread] = False
                self._alarms[thread].release()
        if self._absent:
            self._absent = 0
            self._all_there.release()

    def _wind_up(self, threads: list[threading.Thread]) -> list[str]:
        """Wait for the threads of a failed run, interrupt those that go on, name the stuck."""
        self._session.abort()
        for seconds in (_PATIENCE_SECONDS, _GRACE_SECONDS):
            end = perf_counter() + seconds
            for thread in threads:
                if thread.ident is not None:
                    thread.join(max(0.0, end - perf_counter()))
            threads = [thread for thread in threads if thread.is_alive()]
            for thread in threads:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_Stopped)
                )
        for error in (self._error, self._error.__cause__ if self._error else None):
            if error is not None:
                # What the frames of the failed call hold would live as long as the error.
                traceback.clear_frames(error.__traceback__)
        _stuck.update(threads)
        return [f"thread {thread.name!r}" for thread in threads]

    def _op_error(self, error: BaseException, op: int, device: int) -> BaseException:
        return self._named(error, OpError, self._label(op, device), op, device)

    def _transfer_error(
        self, error: BaseException, op: int, source: int, target: int
    ) -> BaseException:
        name = self._backend.device_names[target]
        label = f"{self._label(op, source)}: its transfer to device {name!r}"
        return self._named(error, TransferError, label, op, target)

    def _label(self, op: int, device: int) -> str:
        return label_of(self._graph, self._backend, op, device)

    def _named(
        self, error: BaseException, usual: type[EngineError], label: str, op: int, device: int
    ) -> BaseException:
        if isinstance(error, _Stopped):
            return error
        return named(error, usual, label, self._backend, op, device)

    def _late(self, timeout: float) -> RunTimeoutError:
        """Name what the run was waiting for the longest when its time was up."""
        names = self._backend.device_names
        after = f"the run took longer than {timeout:g} s"
        with self._lock:
            ops = [(*at, d) for d, at in enumerate(self._running) if at is not None]
            sent = [at for at in self._carried if at is not None]
            if not (ops or sent):  # Nothing but transfers that arrive later.
                sent = [queue[0][:1] + queue[0][2:5] for queue in self._queues if queue]
        if sent and (not ops or min(sent) < min(ops)):
            _, op, source, target = min(sent)
            return RunTimeoutError(
                f"{self._label(op, source)}: {after} and waits for the transfer to device "
                f"{names[target]!r}",
                op,
                names[target],
            )
        if ops:
            _, op, device = min(ops)
            return RunTimeoutError(
                f"{self._label(op, device)}: {after} and waits for this op", op, names[device]
            )
        return RunTimeoutError(f"{self._graph.name}: {after}")


@atexit.register
def _await_stuck() -> None:
    end = perf_counter() + _EXIT_SECONDS
    for thread in list(_stuck):
        thread.join(max(0.0, end - perf_counter()))


def _taken_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def _lanes(
    session: Session, plan: ExecutionPlan
) -> tuple[dict[tuple[int, int], int], list[tuple[int, int]]]:
    """Give numbers to the copiers that a plan needs, and tell which one serves each link."""
    numbers: dict[tuple[int, int], int] = {}
    link_of: dict[tuple[int, int], int] = {}
    for home, away, size in zip(plan.devices, plan.away, session.sizes, strict=True):
        for target, _ in away:
            if size > session.at_once and (home, target) not in link_of:
                lane = session.lane(home, target)
                link_of[home, target] = numbers.setdefault(lane, len(numbers))
    return link_of, list(numbers)
