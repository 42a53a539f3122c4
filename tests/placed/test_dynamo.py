"""The Dynamo backend: what it computes is what eager computes, however Dynamo cuts the model up."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from doppler.engine import Engine
from doppler.placed.dynamo import dynamo_backend
from doppler.placement import Placement

TWO = ["cpu:0", "cpu:1"]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Place ops in turns, so that values move between the devices."""

    def in_turns(engine: Engine, options: Any) -> Placement:
        devices = len(engine.backend.device_names)
        return Placement([op % devices for op in range(engine.graph.n_ops)])

    monkeypatch.setattr("doppler.placed.dynamo.choose_placement", in_turns)


def compiled(model: nn.Module, **options: Any) -> Callable[..., Any]:
    given = {"devices": TWO, "budget": 0.0, "threads": 1, "fusion": 0.0, **options}
    return torch.compile(model, backend=dynamo_backend, options=given)


def assert_same(model: nn.Module, *calls: tuple[Any, ...], **options: Any) -> None:
    """Hold outputs, gradients and buffers against those of a copy that runs eagerly."""
    twin = deepcopy(model)
    run = compiled(model, **options)
    for args in calls:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="doppler")
            output = run(*args)
            output.square().mean().backward()
        expected = twin(*args)
        torch.testing.assert_close(output, expected)
        expected.square().mean().backward()
        assert_same_gradients(model, twin)
    for buffer, other in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(buffer, other)


def assert_same_gradients(model: nn.Module, twin: nn.Module) -> None:
    for (name, parameter), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-4, atol=1e-6, msg=name)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


class Broken(nn.Module):
    """Asks for a number in the middle, which breaks the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 4)

    def forward(self, given: Tensor) -> Tensor:
        hidden = F.relu(self.first(given))
        if hidden.sum().item() < 0:
            hidden = -hidden
        return self.second(hidden) * 2


@pytest.mark.parametrize("fusion", [0.0, 0.002])
def test_placed_by_search(fusion: float) -> None:
    given = torch.randn(6, 8)
    assert_same(perceptron(), (given,), (given,), method="critical_path", fusion=fusion)


@pytest.mark.usefixtures("spread")
@pytest.mark.parametrize("devices", [TWO[:1], TWO, [*TWO, "cpu:2"]])
def test_perceptron(devices: list[str]) -> None:
    assert_same(perceptron(), (torch.randn(6, 8),), (torch.randn(6, 8),), devices=devices)


@pytest.mark.usefixtures("spread")
def test_running_statistics() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU())
    assert_same(model, (torch.randn(2, 3, 8, 8),), (torch.randn(2, 3, 8, 8),))


@pytest.mark.usefixtures("spread")
def test_graph_break() -> None:
    assert_same(Broken(), (torch.randn(6, 8),), (torch.randn(6, 8),))


@pytest.mark.usefixtures("spread")
def test_shapes() -> None:
    # Of the second on Dynamo gives graphs of symbolic shapes.
    assert_same(perceptron(), *((torch.randn(rows, 8),) for rows in (6, 3, 5, 3)))


@pytest.mark.usefixtures("spread")
def test_training_with_an_optimizer() -> None:
    model, given, target = perceptron(), torch.randn(6, 8), torch.randn(6, 4)
    twin = deepcopy(model)
    run = compiled(model)
    one = torch.optim.AdamW(model.parameters(), lr=0.1)
    other = torch.optim.AdamW(twin.parameters(), lr=0.1)
    for _ in range(3):
        for optimizer, forward in ((one, run), (other, twin)):
            optimizer.zero_grad()
            F.mse_loss(forward(given), target).backward()
            optimizer.step()
    for parameter, expected in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("spread")
def test_changed_parameters_are_seen_without_gradients() -> None:
    model, given = perceptron().eval(), torch.randn(6, 8)
    run = compiled(model)
    with torch.no_grad():
        before = run(given)
        model.load_state_dict({name: 2 * value for name, value in model.state_dict().items()})
        after = run(given)
        torch.testing.assert_close(after, model(given))
    assert not torch.equal(before, after)


@pytest.mark.usefixtures("spread")
def test_activations_are_freed() -> None:
    model = perceptron()
    run = compiled(model)
    kept = []
    for _ in range(2):
        given = torch.randn(6, 8)
        kept.append(ref(given))
        run(given).sum().backward()
        del given
    assert [each() for each in kept] == [None, None]


@pytest.mark.usefixtures("spread")
def test_outputs_share_memory_only_where_eager_does() -> None:
    class Returns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, given: Tensor) -> tuple[Any, ...]:
            out = self.linear(given)
            return out, out.clone(), given.clone(), self.linear.weight.t(), out.detach(), 3, None

    model, given = Returns(), torch.randn(3, 4)
    with torch.no_grad():
        outputs, expected = compiled(model)(given), model(given)
        for output, wanted in zip(outputs, expected, strict=True):
            if isinstance(wanted, Tensor):
                torch.testing.assert_close(output, wanted)
            else:
                assert output == wanted
        kept = outputs[0].clone(), given.clone()
        outputs[1].zero_()
        outputs[2].zero_()
        assert torch.equal(outputs[0], kept[0])
        assert torch.equal(given, kept[1])


@pytest.mark.usefixtures("spread")
def test_dropout_is_drawn_once() -> None:
    dropout = nn.Dropout(0.5)
    given = torch.ones(1000, requires_grad=True)
    output = compiled(dropout)(given)
    output.sum().backward()
    assert torch.equal(output.detach(), given.grad)
    assert set(given.grad.tolist()) == {0.0, 2.0}


@pytest.mark.usefixtures("spread")
def test_bert() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=60,
        num_hidden_layers=2,
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = transformers.BertForSequenceClassification(config)
    twin = deepcopy(model)
    inputs = {"input_ids": torch.randint(60, (4, 8)), "labels": torch.tensor([0, 1, 1, 0])}
    result, expected = compiled(model)(**inputs), twin(**inputs)
    torch.testing.assert_close(result.loss, expected.loss)
    torch.testing.assert_close(result.logits, expected.logits)
    result.loss.backward()
    expected.loss.backward()
    assert_same_gradients(model, twin)


@pytest.mark.usefixtures("spread")
def test_what_cannot_be_captured_runs_as_it_is() -> None:
    class Branches(nn.Module):
        def forward(self, given: Tensor) -> Tensor:
            return torch.cond(given.sum() > 0, torch.sin, torch.cos, (given,)) + 1

    given = torch.ones(3)
    run = compiled(Branches())
    with pytest.warns(UserWarning, match=r"runs on one device .*test_dynamo\.py:\d+.*cond"):
        output = run(given)
    torch.testing.assert_close(output, given.sin() + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(run(-given), given.cos() + 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": TWO}, "devices"),
        ({"devices": ["tpu:0"]}, "tpu:0"),
        ({"budget": -1.0}, "budget"),
        ({"shard": {"batch": 2}}, r"use doppler\.compile"),
        ({"method": "magic"}, "magic"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        compiled(perceptron(), **options)(torch.randn(6, 8))


def test_too_little_memory() -> None:
    with pytest.raises(Exception, match=r"memory|hold|enough"):
        compiled(perceptron(), memory=100.0)(torch.randn(6, 8))


def test_is_registered() -> None:
    text = Path(__file__).parents[2].joinpath("pyproject.toml").read_text(encoding="utf-8")
    points = tomllib.loads(text)["project"]["entry-points"]["torch_dynamo_backends"]
    module, _, name = points["doppler"].partition(":")
    assert getattr(import_module(module), name) is dynamo_backend
