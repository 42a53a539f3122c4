"""Processes that are pinned to one core each, so that work beside other work is timed fairly."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import SimpleQueue
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from doppler.cores import core_ids

P = ParamSpec("P")
R = TypeVar("R")


class PinnedProcesses:
    """One process per core of this one, each pinned to its core.

    Where a system cannot pin a process there is one process with every core, so that what runs in
    it still has the machine for itself. A context manager: leaving it ends the processes, at once
    if it is left by an exception. They also end if this process does, however that happens.

    Parameters
    ----------
    prepare : callable
        Run in each process before anything else, in one at a time: what the first compiles, the
        others load from the cache.
    whole : bool
        One process with every core instead, for what needs the machine for itself.
    """

    def __init__(self, prepare: Callable[[], object], *, whole: bool = False) -> None:
        self._prepare = prepare
        # Not forked: a fork would copy the locks that other threads of this process hold.
        self._context = get_context("spawn")
        # Nothing is ever sent. This process alone holds the end that writes, so the other end
        # reports its death to the workers, or that they are no longer wanted.
        self._watched, self._lifeline = self._context.Pipe(duplex=False)
        self._preparing = threading.Lock()
        self._pools: dict[int | None, ProcessPoolExecutor] = {}
        self._free: SimpleQueue[int | None] = SimpleQueue()
        self._ended = False
        for core in (() if whole else core_ids()) or (None,):
            self._free.put(core)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended = True
        if kind is not None:
            self._lifeline.close()
        for pool in list(self._pools.values()):
            pool.shutdown()
        self._lifeline.close()

    def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function in a process of its own core; may be called from several threads.

        Waits for a free core. A process that dies is replaced for the next call.

        Parameters
        ----------
        function : callable
            Of a module, as are its arguments and its result: they are sent to the process.

        Raises
        ------
        BrokenProcessPool
            If the process died.
        CancelledError
            If this object was left before the function returned.
        Exception
            What the function raised.
        """
        core = self._free.get()
        try:
            if self._ended:
                raise CancelledError("called off: the processes were ended")
            pool = self._pools.get(core) or self._start(core)
            return pool.submit(function, *args, **kwargs).result()
        except BrokenProcessPool:
            self._pools.pop(core, None)
            if self._ended:
                raise CancelledError("called off: the processes were ended") from None
            raise
        finally:
            self._free.put(core)

    def _start(self, core: int | None) -> ProcessPoolExecutor:
        pool = ProcessPoolExecutor(
            1, mp_context=self._context, initializer=_begin, initargs=(core, self._watched)
        )
        try:
            # The process itself starts beside others.
            with _pinned(core):
                started = pool.submit(os.getpid)
            started.result()
            with self._preparing:
                pool.submit(self._prepare).result()
        except BaseException:
            pool.shutdown()
            raise
        self._pools[core] = pool
        return pool


@contextmanager
def _pinned(core: int | None) -> Iterator[None]:
    """Pin this thread, and with it the processes that it starts, to a core for a while.

    A process that was pinned only after it had loaded its libraries would have as many threads of
    theirs as there are cores, all waiting for each other on its one core: numpy's products of small
    matrices then take fifty times as long.
    """
    if core is None or sys.platform != "linux":
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _begin(core: int | None, lifeline: Connection) -> None:
    # Ctrl-C reaches every process of a terminal; the parent decides what becomes of this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    if core is not None:
        import torch

        torch.set_num_threads(1)


def _end_with(lifeline: Connection) -> None:
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)
