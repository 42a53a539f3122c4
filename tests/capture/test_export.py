"""What export finds out: tensors by their names, how a model is called, and what it cannot take."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from running import assert_as_eager, assert_equal, run_captured
from torch import Tensor, nn
from torch.library import custom_op

from doppler.capture.export import TensorName, export, split_inputs
from doppler.errors import CaptureError

HERE = Path(__file__)


class Model(nn.Module):
    """A forward pass, with the modules that it uses."""

    def __init__(self, function: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(8, 4)


X = torch.linspace(-1, 1, 32).reshape(4, 8)


def roles(program: Any) -> dict[str, str]:
    return {name: source.role for name, source in program.sources.items()}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight
        self.shift: Tensor
        self.register_buffer("shift", torch.ones(4), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens) + self.shift) + torch.tensor([2.0])


def test_tensors_have_the_names_that_the_model_gives_them() -> None:
    exported = export(Tied(), (torch.tensor([[1, 2]]),))
    (constant,) = exported.constants
    assert roles(exported.program) == {
        "embedding.weight": "parameter",
        "shift": "buffer",
        "tokens": "input",
        constant: "constant",
    }
    assert exported.constants[constant].tolist() == [2.0]
    assert exported.program.name == "Tied"
    assert export(Tied(), (torch.tensor([[1, 2]]),), name="mine").program.name == "mine"
    assert_as_eager(Tied(), (torch.tensor([[1, 2]]),))


def test_calls_are_functional_and_as_large_as_torch_has_them() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.first(x)
        y.add_(1)
        y[:, 0] = 0
        y[1].mul_(2)
        return y

    model = Model(forward, first=linear())
    ops = [call.op for call in export(model, (X,)).program.calls]
    assert "aten.linear.default" in ops
    assert not [op for op in ops if op.split(".")[1].endswith("_")]
    assert_as_eager(model, (X,))


def test_calls_know_their_module() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.Sequential(nn.ReLU()))
    calls = export(model, (X,)).program.calls
    assert [(call.name, call.module) for call in calls] == [("0.linear", "0"), ("1.0.relu", "1.0")]


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(x.sum(0))
        return x * self.seen


def test_buffers_that_change_are_outputs() -> None:
    model = Counting()
    ran = run_captured(model, (X,))
    assert model.seen.tolist() == [0.0] * 8
    expected = model(X)
    assert_equal(ran.result, expected)
    assert_equal(ran.outputs["buffer:seen"], model.seen)


def test_batch_normalization_in_training_gives_new_statistics() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).train()
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    ran = run_captured(model, (images,))
    assert_equal(ran.result, model(images).detach())
    for name, buffer in model.named_buffers():
        assert_equal(ran.outputs[f"buffer:{name}"], buffer)
    assert "buffer:1.running_mean" in ran.outputs
    assert not [name for name in run_captured(model.eval(), (images,)).outputs if ":" in name]


def test_dropout_draws_in_training_and_is_gone_in_evaluation() -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5))
    trained = run_captured(model.train(), (X,))
    assert 0.2 < float((trained.result == 0).float().mean()) < 0.8
    ran = assert_as_eager(model.eval(), (X,))
    specs = ran.captured.graph.specs
    assert specs is not None
    assert [call["op"] for call in specs[0].attributes["calls"]] == ["aten.linear.default"]


class Options(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = linear()

    def forward(
        self,
        x: Tensor,
        scale: float = 1.0,
        mask: Tensor | None = None,
        flag: bool = False,
        times: int = 2,
        extra: dict[str, Any] | None = None,
    ) -> Tensor:
        y: Tensor = self.first(x) * scale
        if mask is not None:
            y = y.masked_fill(mask, 0.0)
        if flag:
            y = y + times
        return y if extra is None else y * extra["by"][0]


MASK = torch.tensor([True, False, False, True])


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((X, 2.0, None, True), {}),
        ((X,), {"flag": True, "mask": MASK, "times": 5}),
        ((), {"mask": MASK, "x": X}),
        ((X,), {"extra": {"by": (torch.full((4,), 3.0), "label")}, "mask": MASK}),
    ],
)
def test_arguments_may_be_optional_scalar_boolean_and_by_keyword(args, kwargs) -> None:
    ran = assert_as_eager(Options(), args, kwargs)
    inputs = {n for n, t in ran.captured.graph.tensors.items() if t.role == "input"}
    assert {label.name for label in ran.captured.signature.inputs if isinstance(label, TensorName)}
    assert inputs <= {"x", "mask", "extra_by_0"}


def test_one_tensor_given_twice_is_two_inputs() -> None:
    first = linear()
    model = Model(lambda self, x, y, w: (x - 2 * y) @ w.t(), first=first)
    other = first.weight.detach() * 2
    ran = run_captured(model, (X, X, first.weight), given=((X, X + 1, other), {}))
    assert_equal(ran.result, (X - 2 * (X + 1)) @ other.t())


def test_plain_arguments_are_part_of_the_program() -> None:
    signature = export(Options(), (X, 2.0), {"flag": True}).signature
    assert signature.inputs == (TensorName("x"), 2.0, True)


def test_whole_numbers_and_booleans_are_tensors_like_others() -> None:
    def forward(_: Any, i: Tensor, b: Tensor) -> Any:
        return i + 1, b & True, i.float().mean(), torch.where(b, i, -i), i % 3, (i > 2).sum()

    ran = assert_as_eager(Model(forward), (torch.arange(4), MASK))
    assert {t.dtype for t in ran.captured.graph.tensors.values()} == {"int64", "bool"}


@dataclass
class Result:
    logits: Tensor
    count: int
    nothing: Tensor | None = None


torch.export.register_dataclass(Result, serialized_type_name="tests.capture.Result")


@pytest.mark.parametrize(
    "shape",
    [
        lambda y: {"a": y, "none": None, "whole": 3, "float": 0.5, "true": True, "text": "x"},
        lambda y: [(y, {"deep": (y + 1,)}), None],
        lambda y: (y, y, y.view(-1)),
        lambda y: Result(y, 3),
        lambda y: tuple(y.max(1)),
        lambda y: list(y.split(1, 1)),
    ],
)
def test_results_keep_their_structure(shape) -> None:
    ran = assert_as_eager(Model(lambda self, x: shape(self.first(x)), first=linear()), (X,))
    assert type(ran.result) is type(shape(X))


def test_an_input_or_a_parameter_can_be_returned() -> None:
    ran = run_captured(Model(lambda self, x: (x, self.first.weight), first=linear()), (X,))
    assert_equal(ran.result, (X, linear().weight.detach()))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_a_model_keeps_its_dtype(kind) -> None:
    model = nn.Sequential(linear(), nn.GELU(), nn.LayerNorm(4)).to(kind)
    ran = assert_as_eager(model, (X.to(kind),))
    assert ran.result.dtype == kind


def test_autocast_of_the_caller_and_of_the_model_is_kept() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y: Tensor = self.first(x)
        return y

    assert assert_as_eager(Model(forward, first=linear()), (X,)).result.dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert assert_as_eager(linear(), (X,)).result.dtype == torch.bfloat16
    assert assert_as_eager(linear(), (X,)).result.dtype == torch.float32


def test_a_model_on_the_meta_device_has_a_graph() -> None:
    with torch.device("meta"):
        exported = export(nn.Linear(10**6, 10**6), (torch.empty(2, 10**6),))
    assert exported.program.calls[0].results[0].shape == (2, 10**6)


def test_special_numbers_among_arguments() -> None:
    def forward(_: Any, x: Tensor) -> Any:
        masked = x.masked_fill(x > 0.5, float("-inf"))
        return masked.softmax(-1), torch.full_like(x, float("nan")), x.clamp(max=float("inf"))

    assert_as_eager(Model(forward), (X,))


@custom_op("doppler_tests::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


class Container:
    """A container that export does not know."""


def depends(_: Any, x: Tensor) -> Tensor:
    if x.sum() > 0:  # the branch
        return x + 1
    return x - 1


def reads(_: Any, x: Tensor) -> Tensor:
    return x[:, : int(x.argmax().item())]  # the value


def custom(_: Any, x: Tensor) -> Tensor:
    return twice(x)  # the operator


def fails(_: Any, x: Tensor) -> Tensor:
    return x @ x  # the shape


@pytest.mark.parametrize(
    ("forward", "line", "message"),
    [
        (depends, "the branch", "depends on the values of a tensor"),
        (reads, "the value", "depends on the values of a tensor"),
        (custom, "the operator", "torch.library.register_fake"),
        (fails, "the shape", "a and b must have same reduction dim"),
    ],
)
def test_what_cannot_be_captured_names_the_line(forward, line, message) -> None:
    with pytest.raises(CaptureError) as error:
        export(Model(forward), (X,))
    lines = HERE.read_text().splitlines()
    number = next(n for n, text in enumerate(lines, 1) if text.endswith(f"# {line}"))
    text = str(error.value)
    assert text.startswith(f"{HERE}:{number}: ")
    assert message in text
    assert "doppler.region" in text
    assert "\n" not in text


def test_a_write_past_autograd_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"writes to the \.data of a tensor"):
        export(Model(lambda _, x: x.data.add_(1) * 0 + x), (X.clone(),))


def test_a_shape_that_depends_on_data_is_refused() -> None:
    with pytest.raises(CaptureError, match="shape depends on data"):
        export(Model(lambda _, x: x[x > 0]), (X,))


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((X, X), {}, "too many positional arguments"),
        ((X,), {"other": 1}, "unexpected keyword argument 'other'"),
        ((Container(),), {}, "Container"),
    ],
)
def test_wrong_arguments_are_one_line_about_the_model(args, kwargs, message) -> None:
    with pytest.raises(CaptureError) as error:
        export(linear(), args, kwargs)
    assert str(error.value).startswith("Linear: ")
    assert message in str(error.value)


def test_a_cache_among_the_results_is_told_with_the_way_out() -> None:
    class DynamicCache:
        pass

    with pytest.raises(CaptureError, match="DynamicCache; call the model with use_cache=False"):
        export(Model(lambda _, x: (x + 1, DynamicCache())), (X,))
    with pytest.raises(CaptureError, match="register it by torch"):
        export(Model(lambda _, x: (x + 1, Container())), (X,))


def test_what_torch_says_about_it_is_not_repeated(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CaptureError):
        export(Model(depends), (X,))
    with pytest.raises(CaptureError):
        export(Model(custom), (X,))
    assert capfd.readouterr().err == ""
    assert logging.root.manager.disable == logging.NOTSET


def test_only_models_are_captured() -> None:
    with pytest.raises(CaptureError, match="must be a Module"):
        export(lambda x: x, (X,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "kwargs", "expected"),
    [
        (X, None, 1),
        ((X, 1), {"a": 2}, 3),
        ([X], {}, 1),
        ({"x": X}, None, 1),
    ],
)
def test_inputs_are_told_apart(given, kwargs, expected) -> None:
    args, named = split_inputs(given, kwargs)
    assert len(args) + len(named) == expected


@pytest.mark.parametrize(
    ("given", "kwargs", "message"),
    [
        (3, None, "example_inputs is 3, must be a tuple"),
        ({1: X}, None, "keys of keyword arguments must be strings"),
        ((X,), 3, "kwargs is 3, must be a dict"),
        ({"x": X}, {"y": X}, "must be a tuple"),
    ],
)
def test_other_inputs_are_refused(given, kwargs, message) -> None:
    with pytest.raises(CaptureError, match=message):
        split_inputs(given, kwargs)


def test_tensors_that_a_module_keeps_on_itself_stay_real() -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.last = torch.zeros(2, 4)

        def forward(self, x: Tensor) -> Tensor:
            self.last = self.linear(x)
            self.first = x
            return self.last.relu()

    model, x = Keeping(), torch.ones(2, 4)
    export(model, (x,))
    assert torch.equal(model.last, torch.zeros(2, 4))
    assert not hasattr(model, "first")
