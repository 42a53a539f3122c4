"""How many cores there are to compute with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def core_ids() -> tuple[int, ...]:
    """Cores that this process may run on; empty where the system cannot tell."""
    if sys.platform == "linux":
        return tuple(sorted(os.sched_getaffinity(0)))
    return ()


def cores(root: Path = Path("/")) -> int:
    """Count the cores that this process may use, at least one.

    A process that was pinned to some cores (``taskset``, a batch system) counts only those, and one
    whose control group has a quota of CPU time (a container) as many as that pays for.

    Parameters
    ----------
    root : Path
        Of the file system that tells of control groups.
    """
    allowed = len(core_ids()) or os.cpu_count() or 1
    return max(1, min([allowed, *_quotas(root)]))


def _quotas(root: Path) -> Iterator[int]:
    """Yield the whole cores that the control groups of this process, of either version, allow."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            mount = root / "sys/fs/cgroup"
            if controllers:
                mount /= "cpu"
            if controllers and "cpu" not in controllers.split(","):
                continue
            group = mount / name.lstrip("/")
            # A group has no more time than those that it lies in; a container sees its own as root.
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError, ZeroDivisionError):
                    if controllers:
                        quota = (folder / "cpu.cfs_quota_us").read_text()
                        period = (folder / "cpu.cfs_period_us").read_text()
                    else:
                        quota, period = (folder / "cpu.max").read_text().split()
                    # Without a limit the quota is -1, or the word "max", which is no number.
                    if int(quota) > 0:
                        yield int(quota) // int(period)
                if folder == mount:
                    break
