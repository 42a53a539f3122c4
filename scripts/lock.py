"""Turn pip's installation report into a lock file: one ``name==version`` a line, sorted.

Used by ``make lock``. Local version labels (``2.13.0+cpu``) are dropped, so that the lock names the
release and each machine takes the build that suits it; no index or address is written.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

# Which of these exist, and at which version, depends on the build of torch: torch itself pins them.
OF_THE_TORCH_BUILD = ("nvidia-", "cuda-", "triton")

HEADER = """\
# Every package of Doppler with the extras bench, exact, examples, pipeline, docs and dev, pinned.
# Made by `make lock`.
# Install:
#   pip install -r requirements.lock && pip install --no-deps -e .
"""


def lock(report: Path, target: Path, project: str = "doppler") -> None:
    """Write to ``target`` a pin of every package in ``report`` but ``project`` itself."""
    pins = {}
    for package in json.loads(report.read_text())["install"]:
        name = re.sub(r"[-_.]+", "-", package["metadata"]["name"]).lower()
        if name != project and not name.startswith(OF_THE_TORCH_BUILD):
            pins[name] = package["metadata"]["version"].partition("+")[0]
    target.write_text(HEADER + "".join(f"{name}=={pins[name]}\n" for name in sorted(pins)))


if __name__ == "__main__":
    lock(Path(sys.argv[1]), Path(sys.argv[2]))
