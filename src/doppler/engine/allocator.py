"""Memory of the host between ops: kept by the process, not given back after every op."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

# From malloc.h of glibc.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_TRIM_BYTES = 2**31 - 1
# The manual, mallopt(3), names the second as the limit; newer versions take the first.
_MMAP_BYTES = (2**30, 2**25)


@cache
def keep_freed_memory() -> None:
    """Let the C library keep what is freed for what is allocated next; for the whole process.

    By default every tensor above some hundred kilobytes is mapped when it is allocated and
    unmapped when it is freed. Then each op waits for the system to clear its pages again, and
    unmapping makes other threads wait: a tenth of the makespan where ops take a millisecond.
    Does nothing where the C library is not glibc.
    """
    libc = _glibc()
    if libc is None:
        return
    # Each alone makes it worse: the other would stay at its default and no longer adapt.
    if any(libc.mallopt(_M_MMAP_THRESHOLD, size) for size in _MMAP_BYTES):
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def return_freed_memory() -> None:
    """Give back to the system what has been kept by now."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None
