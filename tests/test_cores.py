"""How many cores a method uses: those that its process may run on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from doppler.cores import core_ids, cores


def test_there_is_at_least_one() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux pins processes")
def test_a_pinned_process_counts_its_own() -> None:
    core = core_ids()[-1]
    code = (
        f"import os; os.sched_setaffinity(0, {{{core}}})\n"
        "from doppler.cores import core_ids, cores; print(cores(), *core_ids())"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", str(core)]
