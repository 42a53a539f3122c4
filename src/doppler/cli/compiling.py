"""Say that kernels are being compiled, which the first run of an installation waits for."""

from __future__ import annotations

import time
from collections.abc import Callable

from numba.core.event import Event, Listener

NOTICE = "compiling kernels (once per installation)..."
# Less than that needs no explanation.
PATIENCE_SECONDS = 2.0


class Compiling(Listener):
    """Says once what takes the time, when compiling has taken a while.

    Loading compiled kernels from the cache raises no event, so that later runs are silent.

    Parameters
    ----------
    say : callable
        Called with the line to show.
    patience : float
        Seconds of compiling before it is said.
    """

    def __init__(self, say: Callable[[str], object], patience: float = PATIENCE_SECONDS) -> None:
        self._say = say
        self._patience = patience
        self._depth = 0
        self._began = 0.0
        self._spent = 0.0
        self._said = False

    def on_start(self, event: Event) -> None:
        """Take note that a kernel is going to be compiled, perhaps for one that calls it."""
        if self._depth == 0:
            self._began = time.monotonic()
        self._depth += 1
        self._notify()

    def on_end(self, event: Event) -> None:
        """Take note that a kernel is compiled."""
        self._notify()
        self._depth -= 1
        if self._depth == 0:
            self._spent += time.monotonic() - self._began

    def _notify(self) -> None:
        spent = self._spent + time.monotonic() - self._began
        if not self._said and spent >= self._patience:
            self._said = True
            self._say(NOTICE)
