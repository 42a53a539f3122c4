"""Devices that work, that fail, and that compute wrong."""

from __future__ import annotations

import pytest

from doppler.engine import CpuBackend
from doppler.graph import execution
from doppler.refinement.health import Health, check_device, health_markdown


@pytest.mark.parametrize("device", [0, 1, None])
def test_devices_that_work(device: int | None) -> None:
    found = check_device(CpuBackend(2), device, timeout=60.0)
    assert found.healthy
    assert found.device == ("all" if device is None else f"cpu{device}")
    assert found.finding == "results are right"
    assert found.seconds > 0


def test_a_device_without_memory_is_unhealthy() -> None:
    found = check_device(CpuBackend(2, memory=10.0), 1, timeout=60.0)
    assert not found.healthy
    assert "cpu1" in found.finding


def test_a_device_that_computes_wrong_is_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    from doppler.refinement import health

    right = execution.run_sequential

    def wrong(graph, tensors):
        return {op: value + 1.0 for op, value in right(graph, tensors).items()}

    monkeypatch.setattr(health, "run_sequential", wrong)
    found = check_device(CpuBackend(1), 0, timeout=60.0)
    assert not found.healthy
    assert found.finding == "computes probabilities wrong, off by up to 1"


def test_the_findings_as_markdown() -> None:
    table = health_markdown(
        [Health("cpu0", True, 0.002, "results are right"), Health("cpu1", False, 0.0, "a|b\nc")]
    )
    assert "| cpu0 | healthy | 2" in table
    assert "| cpu1 | **unhealthy** | " in table
    assert table.endswith("| a\\|b c |")
