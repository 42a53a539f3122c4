"""How much memory there is to compute in."""

from __future__ import annotations

import os
from pathlib import Path


def installed_memory() -> float:
    """Bytes of memory that this machine has, or this container was given."""
    installed = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    # A container may have been given less than the machine has.
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            installed = min(installed, float(Path("/sys/fs/cgroup", name).read_text("utf-8")))
        except (OSError, ValueError):
            continue
    return installed
