"""Let threads change places soon: Python lets a thread that computes run for 5 ms by default."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# A woken worker waits at most about so long for the interpreter while other threads use it.
_SWITCH_SECONDS = 2e-4

_lock = threading.Lock()
_runs = 0
_usual = 0.0


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Shorten the interpreter's switch interval for as long as any run lasts."""
    global _runs, _usual
    with _lock:
        if not _runs:
            _usual = sys.getswitchinterval()
            sys.setswitchinterval(min(_usual, _SWITCH_SECONDS))
        _runs += 1
    try:
        yield
    finally:
        with _lock:
            _runs -= 1
            if not _runs:
                sys.setswitchinterval(_usual)
