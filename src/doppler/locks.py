"""One process at a time: file locks that are free when their holder ends, however it ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from doppler.errors import DopplerError, LockedError


@contextmanager
def hold(path: str | os.PathLike[str], wait: float = 0.0) -> Iterator[None]:
    """Hold a lock for the time of a ``with`` block.

    Any thread may end the block, not only the one that began it.

    Parameters
    ----------
    path : path-like
        File of the lock. It and missing parent directories are made, and stay.
    wait : float
        Seconds to wait for the present holder.

    Raises
    ------
    LockedError
        If another process, or another block of this one, holds the lock all that time.
    DopplerError
        If the file cannot be made or locked.
    """
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, thread_local=False)
        lock.acquire(timeout=wait)
    except Timeout:
        raise LockedError(f"{path}: another process has held this lock for {wait:g} s") from None
    except (OSError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DopplerError(f"{path}: cannot be locked ({reason}); choose another path") from None
    try:
        yield
    finally:
        lock.release()
