"""Modules that are kept whole, whatever they do inside."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import doppler
from doppler import region
from doppler.capture.capture import capture
from doppler.errors import CaptureError, DopplerError, OpError
from doppler.placed import PlacedModel

X = torch.linspace(0.5, 2.0, 32).reshape(4, 8)


class Router(nn.Module):
    """What it does depends on the values of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.positive = nn.Linear(8, 8)
        self.negative = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.positive if x.sum() > 0 else self.negative
        result: Tensor = chosen(x)
        return result


class Caller(nn.Module):
    def __init__(self, inner: nn.Module, call: Any) -> None:
        super().__init__()
        self.inner = region(inner)
        self.call = call

    def forward(self, x: Tensor) -> Any:
        return self.call(self.inner, x)


def place(model: nn.Module, **settings: Any) -> PlacedModel:
    quick = {"budget": 0, "method": "critical_path", "shard": None, "devices": ["cpu:0", "cpu:1"]}
    return doppler.compile(model, (X,), **{**quick, **settings})


def assert_same(model: nn.Module, placed: PlacedModel, x: Tensor) -> None:
    with torch.no_grad():
        assert_close(placed(x), model(x))


def test_a_module_that_depends_on_data_runs_as_one_op() -> None:
    model = nn.Sequential(region(Router()), nn.Linear(8, 8))
    placed = place(model)
    for x in (X, -X):
        assert_same(model, placed, x)
    # Its parameters go where it goes: the op that calls it reads them.
    (reader,) = {
        op
        for op, spec in enumerate(placed.graph.specs or ())
        for source in spec.inputs
        if getattr(source, "tensor", "").startswith("0.inner.")
    }
    names = {getattr(each, "tensor", "") for each in (placed.graph.specs or ())[reader].inputs}
    assert {f"0.inner.{name}" for name, _ in Router().named_parameters()} <= names
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    assert_same(model, placed, X)


def test_without_a_region_the_message_names_the_line_and_the_way_out() -> None:
    with pytest.raises(CaptureError, match=r"x.sum\(\) > 0.*: what .*doppler.region"):
        capture(Router(), (X,))


def test_an_operator_without_a_fake_implementation_runs_in_a_region() -> None:
    @torch.library.custom_op("doppler_tests::double", mutates_args=())
    def double(x: Tensor) -> Tensor:
        return x * 2

    class Double(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = double(x)
            return result

    with pytest.raises(CaptureError, match=r"fake impl.*doppler.region"):
        capture(Double(), (X,))
    model = nn.Sequential(region(Double()))
    assert_same(model, place(model), X)


def test_structures_and_plain_values_go_in_and_come_out() -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor, other: Tensor | None = None, factor: int = 2) -> Any:
            if other is None:
                return x[:2], None, factor
            return {"sum": x + other * factor, "given": x}

    def call(inner: nn.Module, x: Tensor) -> Any:
        part, nothing, factor = inner(x)
        both = inner(x, other=x, factor=3)
        return part * factor, nothing, both["sum"], both["given"]

    model = Caller(Inner(), call)
    placed = place(model)
    assert_same(model, placed, X)
    # Calls in between, of any form, leave the captured ones alone.
    model.inner(X, X, factor=7)
    assert_same(model, placed, -X)


def test_a_region_is_the_module_itself_outside_of_a_capture() -> None:
    router = Router()
    model = nn.Sequential(region(router))
    model(X).sum().backward()
    assert router.positive.weight.grad is not None
    assert_close(pickle.loads(pickle.dumps(model))(X), router(X))


def test_a_copy_is_a_region_of_its_own() -> None:
    model = nn.Sequential(region(Router()))
    twin = copy.deepcopy(model)
    placed = place(twin)
    del model
    gc.collect()
    assert_same(twin, placed, X)
    nested = nn.Sequential(region(twin))
    assert_same(nested, place(nested), X)


def test_batches_are_sharded_around_a_region() -> None:
    class Positive(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu()

    model = nn.Sequential(nn.Linear(8, 8), region(Positive()), nn.Linear(8, 8))
    assert_same(model, place(model, shard={"batch": 2}), X)


@pytest.mark.parametrize("given", [None, 5, nn.Linear])
def test_only_modules_can_be_regions(given: Any) -> None:
    with pytest.raises(CaptureError, match=r"region: module is .*, must be a Module"):
        region(given)


def test_a_training_step_cannot_contain_one_that_gradients_pass() -> None:
    model = nn.Sequential(nn.Linear(8, 8), region(Router()))
    with pytest.raises(CaptureError, match="has no gradient, so that a training step cannot"):
        capture(model, (X,), training=True, loss=torch.sum)


def test_what_a_region_may_not_do_is_refused() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.add_(1)

    class Varies(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[: 2 + int((x > 0).all())]

    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 0:
                raise ValueError("too\nmuch")
            return x + 1

    for inner, message in (
        (Writes(), "writes to argument 0"),
        (nn.BatchNorm1d(8), "writes to num_batches_tracked.* eval mode"),
        (Varies(), r"returns float32\[3, 8\], and returned float32\[2, 8\] for zeros"),
        (Raises(), "ValueError: too much"),
    ):
        with pytest.raises(OpError, match=message) as caught:
            place(nn.Sequential(nn.Identity(), region(inner)))
        assert "\n" not in str(caught.value)


def test_a_region_that_is_gone_is_missed() -> None:
    model = nn.Sequential(region(Router()))
    captured = capture(model, (X,))
    del model
    gc.collect()
    tensors = {**dict(Router().named_parameters()), "input": X}
    given = {name: tensors[name.removeprefix("0.inner.")] for name in captured.graph.tensors}
    with pytest.raises(DopplerError, match=r"'Router-.*' is not in this process: capture the"):
        doppler.execute(
            captured.graph, doppler.Placement([0] * captured.graph.n_ops), "cpu", tensors=given
        )


def test_a_region_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(DopplerError, match=r"doppler.region.default, which no file may"):
        place(nn.Sequential(region(Router()))).save(tmp_path / "placed")


def test_the_name_of_the_function_loads_no_torch() -> None:
    code = "import sys, doppler; doppler.region; sys.exit('torch' in sys.modules)"
    assert not subprocess.run([sys.executable, "-c", code], check=False).returncode
