"""How busy the machine is with other work than ours."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
# user, nice, system; irq, softirq, steal come after idle and iowait. Guests count as user already.
_BUSY = (0, 1, 2, 5, 6, 7)


class OtherLoad:
    """Cores that other processes keep busy, from one look to the next.

    Where the system does not tell, every answer is 0.
    """

    def __init__(self) -> None:
        self._last = self._read()

    def look(self) -> float:
        """Return the mean number of cores that others used since the last look, at least 0.

        Exact to about a hundredth of a second of a core.
        """
        wall, busy, own = self._last
        self._last = self._read()
        elapsed = self._last[0] - wall
        if elapsed <= 0:
            return 0.0
        return max(0.0, (self._last[1] - busy) - (self._last[2] - own)) / elapsed

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """Read the wall clock, the busy seconds of all cores, and those of this process."""
        try:
            ticks = _STAT.read_text("utf-8").split("\n", 1)[0].split()[1:]
            busy = sum(int(ticks[place]) for place in _BUSY) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return 0.0, 0.0, 0.0
        return time.perf_counter(), busy, time.process_time()
