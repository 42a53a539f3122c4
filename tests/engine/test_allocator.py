from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import resource
import numpy as np
from doppler import Placement
from doppler.engine import CpuBackend, Engine
from doppler.graph.workloads import make

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

graph = make("ffnn", batch=1024, inputs=512, hidden=2048, outputs=512, tiles=2)
placement = Placement(np.zeros(graph.n_ops, int))
with Engine(graph, CpuBackend(1)) as engine:
    for _ in range(3):
        engine.run(placement)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        engine.run(placement)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 5)
    held = resident()
print(held - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the C library is not glibc")
def test_memory_is_reused_from_run_to_run_and_given_back_at_the_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=True
    )
    page_faults, given_back = map(int, done.stdout.split())
    # The outputs of a run are 40 MB, ten thousand pages. A run's thread does not always get the
    # memory of the thread before it.
    assert page_faults < 5000
    assert given_back > 5_000_000
