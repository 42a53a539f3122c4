"""The cuda backend; most of it needs a GPU, without one it says so."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from executable_graphs import SMALL, layered_graph, random_placement, small_workload

from doppler import Placement, execute
from doppler.engine import CudaBackend, Engine, compare_outputs, make_backend
from doppler.errors import DeviceLostError, DeviceMemoryError, EngineError
from doppler.graph.execution import make_tensors, run_sequential

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_machine_without_a_gpu_says_so_in_one_line() -> None:
    message = "^cuda backend: torch finds no GPU on this machine; use the cpu or the emulated"
    graph = layered_graph()
    with pytest.raises(EngineError, match=message):
        CudaBackend()
    with pytest.raises(EngineError, match=message):
        execute(graph, Placement([0] * graph.n_ops), "cuda")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA out of memory. Tried to allocate 20.00 GiB.", DeviceMemoryError),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`", DeviceMemoryError),
        ("CUDA error: an illegal memory access was encountered", DeviceLostError),
        ("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate", DeviceMemoryError),
        ("mat1 and mat2 shapes cannot be multiplied", None),
    ],
)
def test_errors_of_the_run_time_are_known(text: str, kind: type[EngineError] | None) -> None:
    backend = object.__new__(CudaBackend)
    assert backend.fault(RuntimeError(text)) is kind


@needs_gpu
def test_only_devices_of_this_machine_are_taken() -> None:
    with pytest.raises(EngineError, match="no device 'cuda:99'; this machine has cuda:0"):
        CudaBackend(("cuda:99",))
    with pytest.raises(EngineError, match="none, or repeated"):
        CudaBackend(("cpu", "cpu"))
    with pytest.raises(EngineError, match="99 devices are named"):
        make_backend("cuda", 99)


@needs_gpu
@pytest.mark.parametrize("name", sorted(SMALL))
def test_every_workload_equals_the_sequential_run(name: str) -> None:
    graph = small_workload(name)
    rng = np.random.default_rng(0)
    reference = run_sequential(graph, make_tensors(graph))
    for devices in (("cuda:0",), ("cuda:0", "cpu")):
        with Engine(graph, CudaBackend(devices)) as engine:
            for _ in range(5):
                placement = random_placement(graph, len(devices), rng)
                result = engine.run(placement, timeout=60)
                assert compare_outputs(graph, result.outputs, reference).equal
                assert result.trace.label == "cuda"
