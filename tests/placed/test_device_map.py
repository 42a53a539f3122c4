"""Placements by whole modules, as accelerate takes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from placed_models import Branches, Calling, X
from torch import Tensor, nn

from doppler.capture.capture import capture
from doppler.graph import Tile
from doppler.placed.device_map import device_map
from doppler.placement import Placement

check_device_map = pytest.importorskip("accelerate.utils.modeling").check_device_map


class Blocks(nn.Module):
    """Blocks with a parameter of their own, a buffer, an unused module and a tied one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.second = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8, bias=False))
        self.unused = nn.Linear(3, 3)
        self.table = nn.Module()
        self.table.register_buffer("entries", torch.ones(8))
        self.tied = nn.Linear(8, 8, bias=False)
        second = self.second[1]
        assert isinstance(second, nn.Linear)
        self.tied.weight = second.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x))
        result: Tensor = self.tied(x + self.table.get_buffer("entries"))
        return result


def mapped(model: nn.Module, device_of: Callable[[str], int]) -> dict[str, str] | None:
    """Place each op by the first parameter that it reads."""
    graph = capture(model.eval(), (X,), fusion=0).graph
    devices = []
    for spec in graph.specs or ():
        read = [each.tensor for each in spec.inputs if isinstance(each, Tile)]
        devices.append(device_of(next((name for name in read if name != "x"), "")))
    return device_map(graph, Placement(devices), ["cuda:0", "cuda:1"], model)


def test_a_model_on_one_device_is_one_entry() -> None:
    for model in (Branches(), Blocks()):
        found = mapped(model, lambda name: 1)
        assert found == {"": "cuda:1"}
        check_device_map(model, found)


def test_modules_on_their_devices_cover_every_tensor() -> None:
    model = Blocks()
    found = mapped(model, lambda name: int(not name.startswith("first")))
    assert found is not None
    check_device_map(model, found)
    assert found["first"] == "cuda:0"
    assert found["second"] == found["tied"] == found["table"] == "cuda:1"
    found = mapped(Branches(), lambda name: int(name.startswith("out")))
    assert found == {"left": "cuda:0", "right": "cuda:0", "out": "cuda:1"}


def test_a_module_inside_another_may_lie_elsewhere() -> None:
    model = Calling(lambda model, x: model.inner(x @ model.weight), inner=nn.Linear(8, 8))
    found = mapped(model, lambda name: int(name.startswith("inner")))
    assert found == {"inner": "cuda:1", "": "cuda:0"}
    check_device_map(model, found)


def test_a_module_that_is_split_has_none() -> None:
    model = Blocks().eval()
    graph = capture(model, (X,), fusion=0).graph
    # The tied weight is read by both.
    placement = Placement([int(name.startswith("tied")) for name in graph.names])
    assert device_map(graph, placement, ["cpu", "cpu"], model) is None
    graph = capture(Branches(), (X,), shard={"batch": 2}, fusion=0).graph
    placement = Placement([int(name.endswith("[1]")) for name in graph.names])
    assert device_map(graph, placement, ["cpu", "cpu"], Branches()) is None


def test_a_model_without_parameters_has_none() -> None:
    assert mapped(nn.ReLU(), lambda name: 0) is None
