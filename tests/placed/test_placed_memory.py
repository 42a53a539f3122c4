"""Memory of placed models: within the capacities, and by how much not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from placed_models import DEVICES, place
from torch import nn
from torch.testing import assert_close

from doppler import load_placed
from doppler.errors import DeviceMemoryError, MemoryLimitError

WIDTH, LAYERS = 256, 8
BYTES = 4 * WIDTH * WIDTH * LAYERS


def tower() -> nn.Module:
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])


@pytest.mark.parametrize("training", [False, True])
def test_a_model_too_large_for_one_device_runs_on_two(training: bool) -> None:
    model, x = tower(), torch.randn(4, WIDTH)
    step: dict[str, Any] = {"training": True, "loss": lambda y: y.square().sum()}
    # Gradients take as much again.
    most = BYTES * (0.7 + training * 0.8)
    placed = place(model, (x,), fusion=0, memory=most, **(step if training else {}))
    assert "one device" not in placed.measured or training
    assert_close(placed(x), model(x).detach())
    peak = placed.execution.peak_memory
    assert np.all(peak <= most)
    assert peak.sum() >= BYTES
    if not training:
        assert peak.max() < BYTES


def test_a_model_too_large_for_all_devices_says_by_how_much_and_what_helps() -> None:
    x = torch.randn(4, WIDTH)
    for devices, memory in ((DEVICES, BYTES // 4), (("cpu:0",), BYTES // 2)):
        with pytest.raises(
            MemoryLimitError,
            match=r"device 'cpu\d' lacks .* too little: give more devices, a smaller dtype",
        ) as caught:
            place(tower(), (x,), devices, memory=memory, shard="auto")
        assert "\n" not in str(caught.value)


def test_activations_count_too() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    with pytest.raises((MemoryLimitError, DeviceMemoryError), match="lacks"):
        place(model, (torch.randn(10_000, 8),), memory=330_000.0, fusion=0)


def test_a_loaded_model_keeps_to_the_memory_that_is_given(tmp_path: object) -> None:
    model, x = tower(), torch.randn(4, WIDTH)
    place(model, (x,), fusion=0).save(str(tmp_path))
    placed = load_placed(str(tmp_path), model, DEVICES, memory=1e5)
    with pytest.raises(DeviceMemoryError, match=r"on device 'cpu\d'"):
        placed(x)
