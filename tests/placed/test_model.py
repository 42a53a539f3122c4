"""Placed models are called as the model is, and see all that becomes of it."""

from __future__ import annotations

import copy
import math
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from placed_models import Branches, Calling, X, place, total
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils import _pytree as pytree

from doppler.errors import CaptureError, DopplerError, EngineError, OpError
from doppler.placed import PlacedModel


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


def assert_same(model: nn.Module, placed: PlacedModel, *args: Any, **kwargs: Any) -> None:
    with torch.no_grad():
        expected = model(*args, **kwargs)
    found = placed(*args, **kwargs)
    assert_close(pytree.tree_leaves(found), pytree.tree_leaves(expected))
    assert pytree.tree_structure(found) == pytree.tree_structure(expected)


def test_outputs_have_the_structure_of_the_models_own() -> None:
    def compute(model: Calling, x: Tensor, factor: float, flag: bool) -> Any:
        y = x @ model.weight * factor
        return {"pair": Pair(y, y.t()), "rest": [None, 3, flag, (x, model.weight)], "again": y}

    model = Calling(compute)
    placed = place(model, (X, 1.5, True))
    assert_same(model, placed, X + 1, 1.5, True)
    assert not placed(X, 1.5, True)["again"].requires_grad


def test_model_outputs_of_transformers_stay_what_they_are() -> None:
    from transformers.modeling_outputs import BaseModelOutput

    model = Calling(lambda model, x: BaseModelOutput(last_hidden_state=x @ model.weight))
    found = place(model)(X)
    assert isinstance(found, BaseModelOutput)
    assert_close(found.last_hidden_state, model(X).last_hidden_state)


def test_registered_dataclasses_stay_what_they_are() -> None:
    from dataclasses import dataclass

    @dataclass
    class Result:
        value: Tensor
        note: str

    torch.export.register_dataclass(Result, serialized_type_name="doppler.tests.Result")
    found = place(Calling(lambda model, x: Result(x @ model.weight, "kept")))(X)
    assert isinstance(found, Result)
    assert found.note == "kept"


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint16, torch.int8, torch.float16, torch.complex64, torch.float8_e4m3fn],
)
def test_inputs_of_any_dtype_are_taken(dtype: torch.dtype) -> None:
    model = Calling(lambda model, x: (x.reshape(-1), x.to(torch.complex64).real @ model.weight))
    x = torch.ones(4, 8).to(dtype)
    found, expected = place(model, (x,))(x), model(x)
    assert found[0].dtype == dtype
    assert_close(found[1], expected[1])


def test_arguments_that_differ_from_the_captured_ones_are_refused() -> None:
    def compute(model: Calling, x: Tensor, *, scale: Any = None, more: Any = None) -> Tensor:
        return x @ model.weight * scale + more["k"][0]

    given = {"x": X, "scale": math.nan, "more": {"k": [X]}}
    placed = place(Calling(compute), given)
    # The order of keywords has no meaning, and not-a-number is itself.
    assert placed(**dict(reversed(given.items()))).isnan().all()
    for changes, message in {
        ("x", X[:3]): "input 'x' has 3 in dimension 0, was captured with 4",
        ("x", X[0]): "input 'x' has 1 dimensions, was captured with 2",
        ("x", X.double()): "input 'x' is of dtype float64, was captured with float32",
        ("x", X.numpy().tobytes()): "input 'x' is .*, was a tensor",
        ("scale", 2.0): "an argument is 2.0, was nan",
        ("scale", X): "an argument is tensor.*, was nan",
        ("more", (("k", X),)): "called with .*, captured with",
        ("other", 1): r"called with .*, captured with .* \(3 values\); compile it again",
    }.items():
        name, value = changes
        with pytest.raises(CaptureError, match=message) as caught:
            placed(**{**given, name: value})
        assert "\n" not in str(caught.value)
    with pytest.raises(CaptureError, match="called with 1 positional argument"):
        placed(X, scale=math.nan, more={"k": [X]})


def test_one_tensor_given_twice_is_two_inputs() -> None:
    model = Calling(lambda model, x, y: x @ model.weight + 2 * y)
    assert_same(model, place(model, (X, X)), X, X + 1)


def test_inputs_may_lie_in_memory_in_any_way() -> None:
    placed, model = place(Branches()), Branches()
    for x in (torch.randn(8, 4).t(), torch.randn(1, 8).expand(4, 8), torch.randn(8, 16)[::2, ::2]):
        assert_same(model, placed, x)
    with torch.inference_mode():
        assert_same(model, placed, torch.randn(4, 8))


def test_the_mode_of_the_capture_is_kept_and_checked() -> None:
    inner = nn.Sequential(nn.Dropout(0.5))
    model = nn.Sequential(nn.Linear(8, 8), inner).eval()
    placed = place(model)
    model.train()
    with pytest.raises(CaptureError, match=r"with model in eval mode, .* call model.eval\(\)"):
        placed(X)
    model.eval()
    inner[0].train()
    with pytest.raises(CaptureError, match=r"with model.1.0 in eval mode, .* model.1.0.eval\(\)"):
        placed(X)
    model.eval()
    assert_same(model, placed, X)
    inner[0] = nn.Identity()
    with pytest.raises(CaptureError, match=r"its module '1.0' was replaced"):
        placed(X)


def test_autocast_of_the_capture_is_kept_and_checked() -> None:
    model = Branches()
    with torch.autocast("cpu", torch.bfloat16):
        placed = place(model)
        found = placed(X)
        assert found.dtype == torch.bfloat16
        assert_close(found, model(X).detach())
    with pytest.raises(CaptureError, match="autocast cpu bfloat16, and it is off now"):
        placed(X)
    plain = place(model)
    with (
        pytest.raises(CaptureError, match="autocast off, and it is cpu bfloat16 now"),
        torch.autocast("cpu", torch.bfloat16),
    ):
        plain(X)


def test_changed_parameters_are_seen_in_whatever_way_they_change() -> None:
    model = nn.Linear(8, 8)
    placed = place(model)

    def in_place() -> None:
        with torch.no_grad():
            model.weight.add_(1)

    def optimizer() -> None:
        step = torch.optim.SGD(model.parameters(), lr=0.1)
        model(X).sum().backward()
        step.step()

    def loaded(assign: bool) -> None:
        state = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
        model.load_state_dict(state, assign=assign)

    def replaced() -> None:
        # Twice, so that the second may have the address of the first.
        for _ in range(2):
            model.weight = nn.Parameter(torch.randn(8, 8))

    def data() -> None:
        model.weight.data = torch.randn(8, 8)

    changes: list[Callable[[], None]] = [in_place, optimizer, data, *[replaced] * 20]
    changes += [lambda: loaded(False), lambda: loaded(True)]
    for change in changes:
        change()
        assert_same(model, placed, X)


def test_parameters_that_cannot_stand_in_are_refused_and_can_be_put_back() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    placed, weight = place(model), model[0].weight
    other = nn.Parameter(torch.randn(9, 8))
    model[0].weight = model[1].weight = other
    with pytest.raises(EngineError, match=r"'0.weight' has shape \(9, 8\), the graph says \(8, 8"):
        placed(X)
    model[0].weight = model[1].weight = nn.Parameter(torch.randn(8, 8, dtype=torch.float64))
    with pytest.raises(EngineError, match=r"'0.weight' has dtype float64, the graph says float32"):
        placed(X)
    model[0].weight = weight
    with pytest.raises(CaptureError, match=r"'1.weight' and '0.weight' were one tensor"):
        placed(X)
    model[1].weight = weight
    assert_same(model, placed, X)
    del model[0].bias
    with pytest.raises(CaptureError, match=r"lost its parameter or buffer '0.bias'"):
        placed(X)


def test_buffers_are_written_back() -> None:
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), spectral)
    twin = copy.deepcopy(model)
    placed = place(model)
    assert_close(list(model.buffers()), list(twin.buffers()))
    for step in range(3):
        assert_same(twin, placed, X + step)
        assert_close(list(model.buffers()), list(twin.buffers()))


def test_a_buffer_that_is_written_to_can_be_returned() -> None:
    def counting(model: Calling, x: Tensor) -> Any:
        model.get_buffer("count").add_(1)
        return model.get_buffer("count"), x @ model.weight

    model = Calling(counting)
    placed = place(model)
    for step in (1, 2):
        assert placed(X)[0] == step
        assert model.get_buffer("count") == step


def test_results_can_be_written_to_without_a_trace() -> None:
    def copies(model: Calling, x: Tensor) -> Any:
        y = x @ model.weight
        return [torch.ones(3), model.weight.clone(), x.clone(), torch.cat([model.weight]), y, +y]

    model, x = Calling(copies), X.clone()
    placed = place(model)
    for result in placed(x):
        result.add_(5)
    assert_close(x, X)
    assert_same(model, placed, X)


def test_inputs_that_the_model_writes_to_are_written_to() -> None:
    model = Calling(lambda model, x: x.add_(1) @ model.weight)
    example = X.clone()
    placed = place(model, (example,))
    assert_close(example, X)
    x, twin = torch.zeros(8, 4).t(), torch.zeros(4, 8)
    assert_close(placed(x), model(twin).detach())
    assert_close(x, twin)
    with pytest.raises(EngineError, match=r"writes to its input .* give a copy"):
        placed(torch.zeros(1, 8).expand(4, 8))


def test_dropout_is_drawn_anew_in_each_call() -> None:
    placed = place(nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5)))
    one, two = placed(X), placed(X)
    assert 0.2 < float((one == 0).float().mean()) < 0.8
    assert not torch.equal(one, two)


def test_threads_take_turns() -> None:
    model = Branches()
    placed, other = place(model), place(model, (X[:2],))
    wrong: list[float] = []

    def call(number: int) -> None:
        for step in range(8):
            x = torch.full((4, 8), number + step / 8)
            with torch.no_grad():
                same = torch.allclose(placed(x), model(x), atol=1e-4)
                same &= torch.allclose(other(x[:2]), model(x[:2]), atol=1e-4)
            if not same:
                wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_closed_model_says_so_and_can_still_be_looked_at() -> None:
    with place(Branches()) as placed:
        placed(X)
    placed.close()
    with pytest.raises(EngineError, match="or closed; compile it with devices="):
        placed(X)
    with pytest.raises(EngineError, match="closed"):
        placed.refine(2)
    assert placed.execution.makespan > 0
    assert placed.makespan > 0
    assert "Branches" in repr(placed)


def test_closing_ends_calls_and_refinements_of_other_threads() -> None:
    placed = place(Branches())
    said: list[str] = []

    def go_on(run: Callable[[], Any]) -> None:
        try:
            while True:
                run()
        except EngineError as error:
            said.append(str(error))

    runs: list[Callable[[], Any]] = [lambda: placed(X), lambda: placed.refine(10_000)]
    threads = [threading.Thread(target=go_on, args=(run,), daemon=True) for run in runs]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    placed.close()
    for thread in threads:
        thread.join(20)
    assert len(said) == 2
    assert all("or closed" in message for message in said)


def test_copies_and_pickles_are_refused() -> None:
    placed = place(Branches())
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(CaptureError, match="cannot be copied or pickled; save"):
            copied(placed)


def test_a_failure_in_a_run_leaves_the_model_usable() -> None:
    model = Calling(lambda model, at: model.weight[at].tanh())
    placed = place(model, (torch.tensor([0, 1]),))
    with pytest.raises(OpError, match="index 99 is out of bounds") as caught:
        placed(torch.tensor([0, 99]))
    assert "\n" not in str(caught.value)
    assert_same(model, placed, torch.tensor([1, 2]))


def test_an_interrupted_call_leaves_the_model_usable() -> None:
    model = nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(8)])
    x = torch.randn(512, 256)
    placed = place(model, (x,), check=False, shard={"batch": 2})

    def call_on_and_on() -> None:
        for _ in range(100_000):
            placed(x)

    # A shell that starts the tests in the background lets them ignore interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            call_on_and_on()
    finally:
        signal.signal(signal.SIGINT, before)
    assert_same(model, placed, x)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_can_call_it() -> None:
    model = Branches()
    placed = place(model)
    expected = placed(X)
    child = os.fork()
    if not child:
        signal.alarm(30)
        os._exit(0 if torch.allclose(placed(X), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.fixture(scope="module")
def trained() -> Iterator[tuple[nn.Module, PlacedModel]]:
    model = Branches()
    with place(model, training=True, loss=total) as placed:
        yield model, placed


class TestTrainingSteps:
    def test_gradients_are_added_and_the_optimizer_is_the_users(
        self, trained: tuple[nn.Module, PlacedModel]
    ) -> None:
        model, placed = trained
        twin = copy.deepcopy(model)
        optimizers = [torch.optim.Adam(each.parameters(), lr=0.1) for each in (model, twin)]
        for step in range(2):
            for part in (X + step, X - step):
                assert_close(placed(part), twin(part).detach())
                total(twin(part)).backward()
            for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
                assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-4)
                other.grad = mine.grad.clone()  # Adam makes much of small gradients.
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    def test_inference_mode_leaves_gradients_that_can_be_written_to(
        self, trained: tuple[nn.Module, PlacedModel]
    ) -> None:
        model, placed = trained
        model.zero_grad()
        with torch.inference_mode():
            placed(X)
        placed(X)
        model.zero_grad(set_to_none=False)

    def test_what_would_be_another_step_is_refused(
        self, trained: tuple[nn.Module, PlacedModel]
    ) -> None:
        model, placed = trained
        with pytest.raises(CaptureError, match="input 'x' requires a gradient"):
            placed(X.clone().requires_grad_())
        model.left.requires_grad_(False)
        with pytest.raises(CaptureError, match=r"'left.weight' was trained .* no gradient now"):
            placed(X)
        model.left.requires_grad_(True)

    def test_hooks_on_gradients_are_refused(self) -> None:
        model = Branches()
        handle = model.left.weight.register_hook(lambda gradient: gradient * 2)
        with pytest.raises(CaptureError, match=r"left.weight has a hook on its gradient"):
            place(model, training=True, loss=total)
        handle.remove()
        model.right.register_full_backward_hook(lambda *_: None)
        with pytest.raises(CaptureError, match="right has a hook on its gradient"):
            place(model, training=True, loss=total)

    def test_tied_and_parametrized_weights_have_the_gradients_of_eager(self) -> None:
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
        model[1].weight = model[0].weight
        nn.utils.parametrizations.weight_norm(model[2])
        twin = copy.deepcopy(model)
        place(model, training=True, loss=total)(X)
        total(twin(X)).backward()
        for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
            assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_refining_keeps_the_model_right_and_goes_on_from_a_directory(tmp_path: Any) -> None:
    model = Branches()
    placed = place(model)
    for _ in range(2):
        found = placed.refine(20, directory=tmp_path)
        assert found.runs == 20
        assert found.before > 0
        assert found.after > 0
        assert_same(model, placed, X)
    # As another process would, that compiles the model anew.
    again = place(model)
    assert again.refine(2, directory=tmp_path).before > 0
    assert_same(model, again, X)
    with pytest.raises(DopplerError, match=r"ops"):
        place(nn.Linear(8, 8)).refine(2, directory=tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"runs": 0}, "runs is 0"),
        ({"runs": 1.5}, "runs is 1.5"),
        ({"runs": 2, "seed": -1}, "seed is -1"),
        ({"runs": 2, "directory": 5}, "directory is 5"),
    ],
)
def test_bad_settings_of_a_refinement_are_refused(
    trained: tuple[nn.Module, PlacedModel], settings: Any, message: str
) -> None:
    _, placed = trained
    with pytest.raises(DopplerError, match=message):
        placed.refine(**settings)


def test_nothing_has_run_before_the_first_call() -> None:
    with pytest.raises(EngineError, match="has not run yet; call it first"):
        _ = place(Branches(), check=False).execution


def test_outputs_share_no_memory_with_the_model_or_the_inputs() -> None:
    class Copies(nn.Module):
        factor: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("factor", torch.ones(4))

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = self.linear(x)
            return x.clone(), self.factor.clone(), y, y.clone()

    model, x = Copies(), torch.zeros(4, 4)
    with place(model, (x,), shard=None) as placed:
        inputs, scale, first, second = placed(x)
        for output in (inputs, scale, first):
            output.add_(1.0)
        assert not x.any()
        assert model.factor.sum() == 4
        assert_same(model, placed, x)
        assert torch.equal(second, model.linear(x).detach())
