"""Training steps as graphs: loss, outputs, gradients and buffers as eager's, and what cannot be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from doppler import Placement, execute
from doppler.capture.capture import Captured, capture
from doppler.capture.costs import flops
from doppler.capture.export import TensorName
from doppler.capture.simplify import simplify
from doppler.capture.training import export_step
from doppler.errors import CaptureError, DopplerError, UnknownNameError
from doppler.graph.execution import assemble

Inputs = tuple[Any, ...] | dict[str, Any]


def mean_square(output: Any) -> Tensor:
    tensors = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    return torch.stack([tensor.float().square().mean() for tensor in tensors]).sum()


def tensors_of(model: nn.Module, inputs: Inputs, captured: Captured) -> dict[str, Tensor]:
    """What the graph reads: the model's own tensors, the inputs and the constants."""
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    tensors |= captured.constants
    leaves = pytree.tree_leaves((args, kwargs))
    for leaf, label in zip(leaves, captured.signature.inputs, strict=True):
        if isinstance(label, TensorName):
            tensors[label.name] = leaf
    return {name: tensors[name].detach() for name in captured.graph.tensors}


def run(model: nn.Module, inputs: Inputs, captured: Captured, seed: int = 0) -> dict[str, Tensor]:
    """Run a captured step on two devices under a random placement."""
    devices = np.random.default_rng(seed).integers(2, size=captured.graph.n_ops)
    devices[:2] = 0, 1
    tensors = tensors_of(model, inputs, captured)
    result = execute(captured.graph, Placement(devices), "cpu", tensors=tensors)
    return assemble(captured.graph, result.outputs)


def eager(
    model: nn.Module, inputs: Inputs, loss: Callable[[Any], Tensor]
) -> tuple[dict[str, Tensor], nn.Module]:
    """What eager gives, by the names of the outputs of a step."""
    model = deepcopy(model)
    output = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    value = loss(output)
    value.backward()
    leaves = pytree.tree_leaves(output)
    found = {f"output{number}": leaf.detach() for number, leaf in enumerate(leaves)}
    found["loss"] = value.detach()
    found |= {f"buffer:{name}": buffer for name, buffer in model.named_buffers()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found[f"grad:{name}"] = parameter.grad
    return found, model


def assert_step(
    model: nn.Module,
    inputs: Inputs,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    take: Callable[[Any], Tensor] | None = None,
    **options: Any,
) -> Captured:
    captured = capture(model, inputs, training=True, loss=loss, **options)
    results = run(model, inputs, captured)
    expected, _ = eager(model, inputs, take or loss or (lambda output: output["loss"]))
    gradients = {name for name in expected if name.startswith("grad:")}
    assert gradients == {name for name in results if name.startswith("grad:")}
    assert captured.loss in results
    torch.testing.assert_close(results[captured.loss], expected["loss"], rtol=1e-4, atol=1e-6)
    for name, result in results.items():
        want = expected[name]
        scale = max(float(want.abs().max()), 1e-6)
        torch.testing.assert_close(result, want, rtol=0.0, atol=1e-3 * scale, msg=name)
    return captured


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8))


def convolutions() -> nn.Module:
    return nn.Sequential(
        # With a bias its gradient would be naught but rounding.
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, groups=2, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


class Language(nn.Module):
    """Embeddings tied to the head, an unused and a frozen layer, a part without gradients."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.mixer = nn.Linear(16, 16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
        hidden = F.silu(self.mixer(self.embedding(tokens)))
        with torch.no_grad():
            scale = hidden.square().mean(-1, keepdim=True)
        hidden = self.dropout(self.frozen(hidden * scale) + hidden.detach())
        logits = self.head(hidden)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def sentences(rows: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randint(20, (rows, 6)), torch.randint(20, (rows, 6))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("fusion", [0.0, 0.002])
def test_perceptron(ways: int, fusion: float) -> None:
    inputs = (torch.randn(8, 16),)
    captured = assert_step(
        classifier(), inputs, loss=mean_square, shard={"batch": ways}, fusion=fusion
    )
    assert captured.loss == "loss"


def test_sum_over_batch() -> None:
    inputs = (torch.randn(8, 16),)
    assert_step(
        classifier(),
        inputs,
        loss=lambda output: output.square().sum(),
        shard={"batch": 4},
        reduction="sum",
    )


def test_running_statistics() -> None:
    captured = assert_step(convolutions(), (torch.randn(4, 3, 16, 16),), loss=mean_square)
    outputs = {tile.tensor for tile in captured.graph.outputs.values()}
    assert {"buffer:1.running_mean", "buffer:1.running_var"} <= outputs


def test_statistics_of_batch_refuse_shards() -> None:
    with pytest.raises(CaptureError, match="normalized over the batch"):
        capture(
            convolutions(),
            (torch.randn(4, 3, 16, 16),),
            training=True,
            loss=mean_square,
            shard={"batch": 2},
        )


@pytest.mark.parametrize("ways", [1, 2])
def test_tied_frozen_and_unused(ways: int) -> None:
    model = Language()
    captured = assert_step(model, sentences(), shard={"batch": ways})
    outputs = {tile.tensor for tile in captured.graph.outputs.values()}
    assert {name for name in outputs if name.startswith("grad:")} == {
        "grad:embedding.weight",
        "grad:mixer.weight",
        "grad:mixer.bias",
    }
    assert captured.loss == "output0"


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama"])
@pytest.mark.parametrize("ways", [1, 2])
def test_transformers(kind: str, ways: int) -> None:
    transformers = pytest.importorskip("transformers")
    sizes: dict[str, Any] = {"vocab_size": 60}
    tokens = torch.randint(60, (4, 8))
    inputs: dict[str, Any] = {"input_ids": tokens}
    if kind == "gpt2":
        config = transformers.GPT2Config(
            n_layer=2, n_embd=32, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **sizes
        )
        model = transformers.GPT2LMHeadModel(config)
        inputs |= {"labels": tokens, "use_cache": False}
    else:
        sizes |= {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64}
        sizes |= {"num_attention_heads": 4}
        if kind == "bert":
            config = transformers.BertConfig(
                hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **sizes
            )
            model = transformers.BertForSequenceClassification(config)
            inputs |= {"labels": torch.tensor([0, 1, 1, 0])}
        else:
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
            inputs |= {"labels": tokens, "use_cache": False}
    assert_step(model.train(), inputs, shard={"batch": ways})


def test_dropout_is_drawn_once() -> None:
    # Of a sum of what dropout leaves, the gradient is the mask, scaled.
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(500))

        def forward(self) -> tuple[Tensor, Tensor]:
            kept = F.dropout(self.weight, 0.5, self.training)
            return kept.sum(), kept

    model = Masked()
    captured = capture(model, (), training=True)
    results = [run(model, (), captured, seed) for seed in range(2)]
    for result in results:
        assert torch.equal(result["grad:weight"], result["output1"])
        assert set(result["output1"].unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(results[0]["output1"], results[1]["output1"])


def test_modules_of_backward_pass() -> None:
    step = export_step(Language(), sentences())
    backward = [call for call in step.program.calls if "backward" in call.op]
    modules = {call.op.split(".")[1]: call.module for call in backward}
    assert modules["embedding_dense_backward"] == "embedding"
    mixing = [call for call in step.program.calls if call.module == "mixer"]
    # One product forward, one for the gradient of the weight and one for that of its input.
    assert sum(call.op.split(".")[1] in ("mm", "addmm") for call in mixing) == 3


def layer() -> nn.Module:
    return nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)


def upsampling() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ConvTranspose2d(8, 4, 3, stride=2))


# What torch's counter does not know: the attention kernel of the CPU, here of 4 heads of 8.
HEADS = (2, 4, 12, 8)
ATTENTION = sdpa_flop_count(HEADS, HEADS, HEADS) + sdpa_backward_flop_count(
    HEADS, HEADS, HEADS, HEADS
)


@pytest.mark.parametrize(
    ("make", "shape", "more"),
    [
        (classifier, (8, 16), 0),
        (upsampling, (2, 3, 16, 16), 0),
        (layer, (2, 12, 32), ATTENTION),
    ],
)
def test_flops(make: Callable[[], nn.Module], shape: tuple[int, ...], more: int) -> None:
    model, given = make(), torch.randn(shape)
    step = export_step(model, (given,), loss=mean_square)
    program, _ = simplify(step.program, step.constants)
    stated = sum(flops(call, program) for call in program.calls if _is_counted(call.op))
    with FlopCounterMode(display=False) as counter:
        mean_square(model(given)).backward()
    assert stated == pytest.approx(counter.get_total_flops() + more, rel=0.03)


def _is_counted(op: str) -> bool:
    # torch's counter counts products of matrices, convolutions and attention alone.
    return any(name in op for name in ("mm", "convolution", "attention"))


class Returns(nn.Module):
    def __init__(self, result: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.result = result

    def forward(self, given: Tensor) -> Any:
        return self.result(self.linear(given))


def frozen() -> nn.Module:
    return nn.Linear(4, 4).requires_grad_(False)


TARGET = torch.ones(2, 4)
REFUSED: Mapping[str, tuple[Callable[[], nn.Module], dict[str, Any], str]] = {
    "nothing to train": (frozen, {}, "no parameter requires a gradient"),
    "no scalar": (lambda: nn.Linear(4, 4), {}, r"the loss has shape \(2, 4\), must be one number"),
    "no loss": (lambda: Returns(lambda out: {"logits": out}), {}, "no loss in what the model"),
    "no tensor": (
        lambda: Returns(lambda out: {"logits": out}),
        {"loss": lambda output: 3.0},
        "no loss in what the model",
    ),
    "detached": (
        lambda: Returns(lambda out: out.detach().sum()),
        {},
        "depends on no parameter that requires a gradient",
    ),
    "broken": (
        lambda: Returns(lambda out: out.sum()),
        {"loss": lambda output: output.nothing},
        "cannot be captured",
    ),
    "hidden target": (
        lambda: nn.Linear(4, 4),
        {"loss": lambda output: F.mse_loss(output, TARGET)},
        "make it an input of the model",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind: str) -> None:
    make, options, message = REFUSED[kind]
    with pytest.raises(CaptureError, match=message) as caught:
        capture(make(), (torch.randn(2, 4),), training=True, **options)
    assert "\n" not in str(caught.value)


def test_loss_without_training_is_refused() -> None:
    with pytest.raises(CaptureError, match="training"):
        capture(classifier(), (torch.randn(8, 16),), loss=mean_square)


def test_unknown_reduction() -> None:
    with pytest.raises(UnknownNameError, match="reduction"):
        capture(classifier(), (torch.randn(8, 16),), training=True, reduction="max")
    assert issubclass(UnknownNameError, DopplerError)
