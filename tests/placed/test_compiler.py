"""Compiling: what is tried and kept, what is checked, and what is refused in one line."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from placed_models import DEVICES, Branches, Calling, X, place, total
from torch import Tensor, nn
from torch.testing import assert_close

import doppler
from doppler.errors import CaptureError, DopplerError, EngineError, OpError
from doppler.placed.checking import compare_with_eager
from doppler.placement import Placement

BAD = "é\n"


class Mixing(nn.Module):
    """Reads the whole batch for each of its samples."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x - x.mean(0))
        return result


def test_shards_by_rule_keep_the_outputs() -> None:
    model = nn.Sequential(nn.Linear(8, 512), nn.ReLU(), nn.Linear(512, 8))
    x = torch.randn(64, 8)
    expected = model(x).detach()
    whole = place(model, (x,), fusion=0)
    for shard in ({"batch": 2}, {"tensor": 2}, {"batch": 2, "tensor": 2}):
        placed = place(model, (x,), shard=shard, fusion=0)
        # Tensors stay whole where parts of them would be too small.
        assert placed.graph.n_ops > whole.graph.n_ops or "batch" not in shard
        assert_close(placed(x), expected)
    auto = place(model, (x,), shard="auto")
    assert_close(auto(x), expected)
    assert auto.measured["placed"] <= auto.measured["one device"]


def test_a_model_that_mixes_the_batch_is_sharded_in_another_way() -> None:
    model = Mixing()
    assert_close(place(model, shard="auto")(X), model(X).detach())
    with pytest.raises(CaptureError, match="output0 differs from the model's own by"):
        place(model, shard={"batch": 2})


def test_the_check_sees_what_computes_something_else() -> None:
    model, other = Branches(), Branches()
    with torch.no_grad():
        other.out.weight.add_(1)
    placed = place(model)
    compare_with_eager(placed, model, (X,), {}, None, False)
    with pytest.raises(CaptureError, match="output0 differs from the model's own by"):
        compare_with_eager(placed, other, (X,), {}, None, False)


def test_the_check_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(5)
    place(model, training=True, loss=total)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), after)
    assert_close(dict(model.state_dict()), before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_state_that_is_no_tensor_is_found_by_the_check() -> None:
    def counting(model: Any, x: Tensor) -> Tensor:
        model.calls = getattr(model, "calls", 0) + 1
        result: Tensor = x @ model.weight * model.calls
        return result

    with pytest.raises(CaptureError, match="keeps state that cannot be captured"):
        place(Calling(counting))
    assert place(Calling(counting), check=False)(X).shape == (4, 8)


def test_a_model_that_fails_itself_says_so() -> None:
    model = Calling(lambda model, at: model.weight[at])
    with pytest.raises(OpError, match="index 99 is out of bounds"):
        place(model, (torch.tensor([99]),))


def test_for_a_cluster_alone_nothing_is_computed() -> None:
    placed = place(Branches().to("meta"), (X.to("meta"),), None, cluster="a100x4", shard="auto")
    assert placed.makespan > 0
    assert placed.measured["placed"] > 0
    with pytest.raises(EngineError, match=r"'a100x4', not on devices of this .* compile it with"):
        placed(X)
    huge = (torch.empty(10**12, 8, device="meta"),)
    with pytest.raises(DopplerError, match="does not fit in memory"):
        place(Branches().to("meta"), huge, None, cluster="a100x4")


def test_parametrized_lazy_and_wrapped_models_are_taken() -> None:
    shared = nn.Linear(8, 8)
    models: list[Callable[[], Any]] = [
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))),
        lambda: nn.Sequential(shared, nn.ReLU(), shared),
        lambda: nn.Sequential(nn.LazyLinear(8), nn.LazyLinear(4)),
        lambda: nn.DataParallel(Branches()),
        lambda: torch.compile(Branches(), backend="eager"),
        _with_hooks,
        lambda: nn.Identity(),
        lambda: Calling(lambda model, x: (torch.ones(3), model.weight)),
    ]
    for make in models:
        model = make()
        placed = place(model)
        assert_close(placed(X), torch.utils._pytree.tree_map(Tensor.detach, model(X)))


def _with_hooks() -> nn.Module:
    model = Branches()
    model.register_buffer("nothing", None)
    model.left.register_forward_hook(lambda module, args, output: output * 2)
    model.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return model


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": math.nan}, "budget is nan"),
        ({"budget": -1}, "budget is -1"),
        ({"budget": "1"}, "budget is '1'"),
        ({"devices": []}, r"devices is \[\]"),
        ({"devices": 5}, "devices is 5"),
        ({"devices": iter(["cpu:0"])}, "devices is <list_iterator"),
        ({"devices": "cpu:0"}, "devices is 'cpu:0'"),
        ({"devices": [1]}, r"devices is \[1\]"),
        ({"devices": ["cpu:0", "cpu:0"]}, "each at most once"),
        ({"devices": ["gpu:0"]}, "'gpu:0' is none"),
        ({"devices": [BAD]}, r"devices: 'é\\n' is none"),
        ({"cluster": "a100x"}, "did you mean 'a100x[48]'"),
        ({"cluster": 5}, "cluster is 5"),
        ({"cluster": "a100x4"}, "has 4 devices, and 2 are given"),
        ({"shard": "batch"}, "shard is 'batch'"),
        ({"shard": {"batch": 3}}, "a batch of 4 cannot be cut into 3"),
        ({"shard": {"batch": True}}, "batch is True"),
        ({"shard": {"rows": 2}}, "unknown kind of shards 'rows'"),
        ({"shard": [2]}, r"shard is \[2\]"),
        ({"training": "yes"}, "training is 'yes'"),
        ({"loss": total}, "loss is for a training step"),
        ({"training": True}, r"the loss has shape \(4, 4\)"),
        ({"training": True, "loss": 5}, "loss is 5, must be callable"),
        ({"reduction": "max"}, "did you mean 'mean'"),
        ({"method": "nope"}, "unknown method 'nope'"),
        ({"method": "doppler", "policy": "none.safetensors"}, "none.safetensors"),
        ({"seed": -1}, "seed is -1"),
        ({"threads": 0}, "threads is 0"),
        ({"threads": 1.5}, "threads is 1.5"),
        ({"memory": math.nan}, "memory is nan"),
        ({"memory": "1GB"}, "memory is '1GB'"),
        ({"memory": 0}, "memory is 0"),
        ({"fusion": 2}, "fusion is 2"),
        ({"name": BAD}, r"name is 'é\\n'"),
        ({"name": None}, "name is None"),
        ({"model": None}, "model is None"),
        ({"model": Branches}, "model is <class"),
        ({"model": torch.nn.functional.relu}, "model is <function"),
        ({"example_inputs": None}, "example_inputs is None"),
        ({"example_inputs": ()}, "missing a required argument: 'x'"),
        ({"example_inputs": (X, X)}, "too many positional arguments"),
        ({"example_inputs": {"y": X}}, "missing a required argument: 'x'"),
        ({"example_inputs": {1: X}}, "must be strings"),
        ({"example_inputs": (None,)}, "NoneType"),
        ({"example_inputs": (X.numpy(),)}, "numpy.ndarray"),
        ({"example_inputs": (X[:0],)}, "every axis needs at least one element"),
        ({"example_inputs": (X.to("meta"),)}, "meta"),
        ({"example_inputs": (X.to_sparse(),)}, "spars"),
        ({"model": Branches().to("meta")}, "meta"),
    ],
)
def test_bad_settings_are_refused_in_one_line(settings: dict[str, Any], message: str) -> None:
    usual = {"model": Branches(), "example_inputs": (X,), "devices": DEVICES, "budget": 0}
    quick = {"method": "critical_path", "shard": None}
    with pytest.raises(DopplerError, match=message) as caught:
        doppler.compile(**{**usual, **quick, **settings})
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_models_that_cannot_be_captured_say_why() -> None:
    def written(model: Calling, x: Tensor) -> Tensor:
        with torch.no_grad():
            model.weight.add_(1)
        result: Tensor = x @ model.weight
        return result

    sparse = Calling(lambda model, x: torch.sparse.mm(model.weight, x.t()))
    sparse.weight = nn.Parameter(torch.eye(8).to_sparse())
    for model, message in (
        (Calling(written), "writes to its parameter 'weight'"),
        (Calling(lambda model, x: x * x.sum().item()), "doppler.region"),
        (Calling(lambda model, x: None), "computes nothing"),
        (torch.jit.script(nn.Linear(8, 8)), "ScriptModule"),
        (sparse, "is sparse or has no values"),
    ):
        with pytest.raises(DopplerError, match=message) as caught:
            place(model)
        assert "\n" not in str(caught.value)


def test_threads_can_compile_one_model_at_once() -> None:
    model = Branches()
    found: list[Tensor] = []
    threads = [threading.Thread(target=lambda: found.append(place(model)(X))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_close(found, [model(X).detach()] * 3)


def test_the_placement_is_of_the_devices() -> None:
    placed = place(Branches())
    assert isinstance(placed.placement, Placement)
    assert set(placed.placement.devices.tolist()) <= {0, 1}
    assert [device.name for device in placed.cluster.devices] == ["cpu0", "cpu1"]
