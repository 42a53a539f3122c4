"""The example models: they export, give what they say, and take no memory in full size."""

from __future__ import annotations

import warnings
from importlib import import_module

import pytest
import torch

from examples import EXAMPLES
from examples.building import Example, build, sized
from examples.experts import Experts

pytest.importorskip("transformers", reason="the extra `examples` is not installed")

# Billions of parameters in full size, and the shape of the first output in tiny size.
STATED = {
    "mlp:model": (0.780, (8, 10)),
    "inception:model": (0.024, (2, 10)),
    "bert:model": (0.335, (2, 2)),
    "gpt2:model": (1.558, (2, 16, 128)),
    "llama:model": (6.738, (4, 16, 128)),
    "mixtral:model": (5.936, (2, 16, 128)),
    "experts:model": (0.940, (2, 8, 32)),
    "t5:model": (0.738, (2, 8, 128)),
    "two_tower:model": (10.243, (8,)),
    "unet:model": (0.031, (2, 3, 16, 16)),
    "lstm:model": (0.271, (2, 10)),
    "lstm:layers": (0.271, (2, 10)),
}


def called(example: Example) -> list[torch.Tensor]:
    """Run a model on its example inputs; its outputs, flat."""
    model, inputs = example
    with torch.no_grad():
        given = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    return [given] if isinstance(given, torch.Tensor) else [*given.values()]


def test_every_example_is_stated() -> None:
    assert set(STATED) == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_exports_and_gives_its_outputs(name: str) -> None:
    model, inputs = build(name)
    expected = called((model, inputs))
    assert expected[0].shape == STATED[name][1]
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    with warnings.catch_warnings():
        # torch warns of the flat weights of nn.LSTM, which are parameters all the same.
        warnings.simplefilter("ignore")
        exported = torch.export.export(model, args, kwargs, strict=False)
    found = exported.module()(*args, **kwargs)
    flat = torch.utils._pytree.tree_leaves(found)
    for one, other in zip(flat, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_the_same_each_time(name: str) -> None:
    state = torch.random.get_rng_state()
    first, second = (called(build(name)) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("name", EXAMPLES)
def test_full_size_allocates_nothing(name: str) -> None:
    model, inputs = build(name, "full")
    given = inputs.values() if isinstance(inputs, dict) else inputs
    assert all(each.is_meta for each in (*model.parameters(), *model.buffers(), *given))
    billions = sum(each.numel() for each in model.parameters()) / 1e9
    assert billions == pytest.approx(STATED[name][0], abs=5e-4)


def test_the_function_for_the_command_line_is_that_of_full_size() -> None:
    model, _ = import_module("examples.mlp").full()
    assert next(model.parameters()).is_meta


def test_experts_give_what_routing_to_the_best_gives() -> None:
    torch.manual_seed(0)
    layer = Experts(8, 16, experts=4)
    x = torch.randn(2, 5, 8)
    expected = x.clone()
    with torch.no_grad():
        for row, token in ((row, token) for row in range(2) for token in range(5)):
            normed = layer.norm(x[row, token])
            best, chosen = layer.router(normed).topk(2)
            for weight, index in zip(best.softmax(0), chosen.tolist(), strict=True):
                expected[row, token] += weight * layer.experts[index](normed)
        torch.testing.assert_close(layer(x), expected)


def test_numbers_of_a_size_can_be_changed() -> None:
    assert called(build("gpt2:model", n_layer=1, batch=3))[0].shape == (3, 16, 128)


@pytest.mark.parametrize(
    ("size", "changes", "message"),
    [
        ("huge", {}, "size is 'huge', must be one of tiny"),
        ("tiny", {"bach": 2}, "'bach' is no number of it: batch"),
    ],
)
def test_another_size_or_number_is_refused(
    size: str, changes: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        sized({"tiny": {"batch": 1}}, size, changes)
