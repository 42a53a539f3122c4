"""How many cores there are to compute with."""

from __future__ import annotations

import os
import sys


def core_ids() -> tuple[int, ...]:
    """Cores that this process may run on; empty where the system cannot tell."""
    if sys.platform == "linux":
        return tuple(sorted(os.sched_getaffinity(0)))
    return ()


def cores() -> int:
    """Count the cores that this process may run on, at least one.

    A process that was pinned to some cores (``taskset``, a batch system, a container) counts only
    those.
    """
    return len(core_ids()) or os.cpu_count() or 1
