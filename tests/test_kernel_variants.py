"""How often each kernel is compiled, which is what the first run of an installation waits for.

numba compiles a kernel anew for every combination of types: an array that is read-only is of
another type than one that is writable, a constant in a call of another kernel is of a type of its
own, and int32 is not int64.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_variants import crowded, plain

from doppler import Cluster, Graph, Problem, workloads

SCRIPT = Path(__file__).with_name("kernel_variants.py")
# Ops are uint32 in the simulator's heaps and int32 in everybody else's.
TWICE = {"_before", "heap_push", "heap_pop"}


@pytest.mark.slow
def test_kernels_are_compiled_for_one_set_of_types(tmp_path: Path) -> None:
    # Without a cache: of a kernel that comes from there, nothing is known about what it calls.
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, SCRIPT], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    variants = json.loads(done.stdout)
    assert len(variants) > 50
    for kernel, signatures in variants.items():
        most = 2 if kernel.rpartition(".")[2] in TWICE else 1
        assert 1 <= len(signatures) <= most, "\n".join([kernel, *signatures])


def assert_uniform(problem: Problem) -> None:
    for name, value in problem.arrays._asdict().items():
        if isinstance(value, np.ndarray):
            assert value.flags.c_contiguous, name
            assert not value.flags.writeable, name
            assert value.dtype in (np.float64, np.int32), name
        else:
            assert type(value) is int, name


def test_arrays_have_one_type() -> None:
    for problem in (plain(), crowded()):
        assert_uniform(problem)
    for name in ("chainmm", "moe_layer"):
        assert_uniform(Problem(workloads.make(name), Cluster.load("p100x4")))


@given(st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_arrays_have_one_type_whatever_they_are_made_of(
    n_ops: int, n_devices: int, strided: bool
) -> None:
    costs = np.arange(1, 2 * n_ops + 1)
    costs = costs[::2] if strided else costs[:n_ops].astype(np.float32)
    src = np.arange(n_ops - 1)
    graph = Graph.from_arrays(src, src + 1, costs, costs[::-1])
    assert_uniform(Problem(graph, Cluster.uniform(n_devices)))
