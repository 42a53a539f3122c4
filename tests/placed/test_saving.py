"""Placed models on disk: what comes back, and that damaged and hostile files do nothing."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from placed_models import DEVICES, Branches, Calling, X, place, total
from torch import Tensor, nn
from torch.testing import assert_close

from doppler import load_placed
from doppler.errors import CaptureError, DopplerError, EngineError
from doppler.placed import PlacedModel

FILES = ("graph.json", "cluster.yaml", "placement.json", "constants.safetensors", "model.json")
TABLE = torch.arange(8, dtype=torch.bfloat16)


def compute(model: Calling, x: Tensor, *, scale: float, extra: dict[str, Tensor]) -> Any:
    y = x @ model.weight * scale + TABLE.float()
    return OrderedDict(y=y, pair=(y + extra["e"], None), table=TABLE + 1)


GIVEN: dict[str, Any] = {"x": X, "scale": 2.0, "extra": {"e": X + 1}}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Calling]]:
    model = Calling(compute)
    with place(model, GIVEN) as placed:
        yield placed.save(tmp_path_factory.mktemp("placed") / "new" / "model"), model


@pytest.fixture
def damaged(saved: tuple[Path, Calling], tmp_path: Path) -> tuple[Path, Calling]:
    folder, model = saved
    for name in FILES:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    return tmp_path, model


def change(folder: Path, name: str, **values: Any) -> None:
    document = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**document, **values}))


def assert_refused(folder: Path, model: nn.Module, message: str | None = None) -> None:
    before = set(sys.modules)
    with pytest.raises(DopplerError, match=message) as caught:
        load_placed(folder, model, DEVICES)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700
    assert not {name for name in set(sys.modules) - before if name in ("this", "antigravity")}


def test_a_loaded_model_is_called_as_the_saved_one(saved: tuple[Path, Calling]) -> None:
    folder, model = saved
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.weight.add_(1)
    with load_placed(folder, twin, DEVICES) as placed:
        found, expected = placed(**GIVEN), twin(**GIVEN)
        assert type(found) is OrderedDict
        assert_close(dict(found), dict(expected), check_stride=False)
        assert placed.measured["placed"] > 0
        assert_close(placed.save(folder.parent / "again") and placed(**GIVEN)["y"], found["y"])
    for name in FILES:
        assert (folder.parent / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_without_devices_it_can_be_looked_at(saved: tuple[Path, Calling]) -> None:
    folder, model = saved
    placed = load_placed(folder, model)
    assert placed.makespan > 0
    with pytest.raises(EngineError, match="not on devices of this machine"):
        placed(**GIVEN)
    with pytest.raises(DopplerError, match="was placed on 2 devices, and 1 are given"):
        load_placed(folder, model, ["cpu:0"])


def test_training_autocast_ties_and_modes_come_back(tmp_path: Path) -> None:
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    model = nn.Sequential(first, nn.Dropout(0.0).eval(), second)
    with torch.autocast("cpu", torch.bfloat16):
        place(model, training=True, loss=total, check=False).save(tmp_path)
    twin = copy.deepcopy(model)
    placed = load_placed(tmp_path, model, DEVICES)
    with pytest.raises(CaptureError, match="autocast cpu bfloat16"):
        placed(X)
    with torch.autocast("cpu", torch.bfloat16):
        placed(X)
        total(twin(X)).backward()
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert_close(mine.grad, other.grad, rtol=0.1, atol=0.1)
    model[1].train()
    assert_refused(tmp_path, model, "module '1' is in another mode")
    model[1].eval()
    second.weight = nn.Parameter(first.weight.detach().clone())
    assert_refused(tmp_path, model, "'2.weight' and '0.weight' are one tensor in the placed model")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Branches(), "Branches: has no parameter or buffer 'weight'"),
        (Calling(compute).double(), "weight has shape .* and dtype float64 in the model"),
        (None, "model is None, must be a Module"),
    ],
)
def test_another_model_is_refused(
    saved: tuple[Path, Calling], model: nn.Module, message: str
) -> None:
    assert_refused(saved[0], model, message)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_missing_cut_or_another_is_refused(
    damaged: tuple[Path, Calling], name: str
) -> None:
    folder, model = damaged
    path = folder / name
    content = path.read_bytes()
    path.unlink()
    assert_refused(folder, model, name)
    path.mkdir()
    assert_refused(folder, model, name)
    path.rmdir()
    bomb = pickle.dumps(Path(__file__))
    for other in (b"", content[: len(content) // 2], b"\xff\x00" + content, b"[]", b"{}", bomb):
        path.write_bytes(other)
        assert_refused(folder, model, name)
    for another in FILES:
        if another != name:
            path.write_bytes((folder / another).read_bytes())
            assert_refused(folder, model, name)


def test_files_of_two_models_are_not_mixed(damaged: tuple[Path, Calling], tmp_path: Path) -> None:
    folder, model = damaged
    other = place(Calling(compute), {**GIVEN, "extra": {"e": X[:1]}}, shard={"batch": 2})
    elsewhere = other.save(tmp_path / "other")
    for name in ("graph.json", "placement.json"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes((elsewhere / name).read_bytes())
        assert_refused(folder, model)
        (folder / name).write_bytes(content)
    load_placed(folder, model)


def _spec(kind: str | None, context: Any, *inside: Any) -> dict[str, Any]:
    return {"type": kind, "context": context, "children_spec": list(inside)}


LEAF = _spec(None, None)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            _spec(
                "collections.defaultdict",
                {
                    "default_factory_module": "antigravity",
                    "default_factory_name": "geohash",
                    "dict_context": ["y"],
                },
                LEAF,
            ),
            "a defaultdict names a function to import",
        ),
        (
            _spec("builtins.dict", '[{"__enum__": true, "fqn": "this:s", "name": "x"}]', LEAF),
            "an enum names a module to import",
        ),
        (
            _spec("builtins.dict", '[{"\\u005f_enum__": true, "fqn": "this:s"}]', LEAF),
            "an enum names a module to import",
        ),
        (_spec("builtins.dict", '["a", "b"]', LEAF), "a dict of 2 keys and 1 values"),
        (_spec("os.system", "null", LEAF), "os.system"),
        (_spec("builtins.tuple", "null", *[LEAF] * 9), "outputs are 4, must be 9"),
        ({"type": None}, "structure cannot be read"),
        (7, "structure cannot be read"),
    ],
)
def test_structures_that_name_what_is_to_be_run_are_refused(
    damaged: tuple[Path, Calling], spec: Any, message: str
) -> None:
    folder, model = damaged
    change(folder, "model.json", results=json.dumps([1, spec]))
    assert_refused(folder, model, message)
    change(folder, "model.json", arguments=json.dumps([1, spec]))
    assert_refused(folder, model, "model.json: arguments")


def test_structures_of_any_depth_and_text_are_refused(damaged: tuple[Path, Calling]) -> None:
    folder, model = damaged
    deep = '[1, {"type": "builtins.list", "context": "null", "children_spec": [' * 5000
    for text in ("", "[]", "[99, {}]", "null", deep, "[1, [1, 2]]"):
        change(folder, "model.json", results=text)
        assert_refused(folder, model, "results: the structure cannot be read")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"version": 2}, "version"),
        ({"format": "doppler-graph"}, "format"),
        ({"more": 1}, "more"),
        ({"measured": {}}, "measured lacks 'placed'"),
        ({"measured": {"placed": "fast"}}, "measured"),
        ({"autocast": [["cpu"]]}, "autocast"),
        ({"training": 1}, "training"),
        ({"exceptions": ["weight"]}, "'weight' is in another mode"),
        ({"tied": {"a": "weight"}}, "'a' and 'weight' are one tensor"),
        ({"inputs": [{"tensor": "weight"}, 2.0, {"tensor": "extra_e"}]}, "input '(weight|x)' is"),
        ({"inputs": [{"tensor": 5}, 2.0, {"tensor": "extra_e"}]}, "must be a value"),
        ({"inputs": []}, "inputs are 0, must be 3"),
        ({"outputs": [{"tensor": "output7"}] * 4}, "output 'output7' is not in the graph"),
    ],
)
def test_a_description_that_does_not_suit_is_refused(
    damaged: tuple[Path, Calling], values: dict[str, Any], message: str
) -> None:
    folder, model = damaged
    change(folder, "model.json", **values)
    assert_refused(folder, model, message)


def test_constants_that_do_not_suit_are_refused(damaged: tuple[Path, Calling]) -> None:
    from doppler.torch_tensors import load_torch_tensors, save_torch_tensors

    folder, model = damaged
    path = folder / "constants.safetensors"
    constants = load_torch_tensors(path)
    assert {value.dtype for value in constants.values()} >= {torch.bfloat16}
    name = next(iter(constants))
    changed: list[dict[str, Tensor]] = [
        {},
        {**constants, name: constants[name].double()},
        {**constants, name: constants[name][:2].clone()},
    ]
    for other in changed:
        save_torch_tensors(path, other)
        assert_refused(folder, model, "lacks the constant")
    save_torch_tensors(path, {**constants, "weight": X})
    assert_refused(folder, model, "'weight' is no constant of graph.json")


def test_what_cannot_be_written_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    class Kind(Enum):
        A = "a"

    outputs: tuple[Callable[[Tensor], Any], ...] = (
        lambda y: defaultdict(list, y=y),
        lambda y: {Kind.A: y},
    )
    for number, output in enumerate(outputs):
        placed = _returning(output)
        with pytest.raises(CaptureError, match="cannot be written"):
            placed.save(tmp_path / str(number))
        assert not (tmp_path / str(number)).exists()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", 5, None):
        with pytest.raises(DopplerError):
            placed.save(path)  # type: ignore[arg-type]


def _returning(output: Callable[[Tensor], Any]) -> PlacedModel:
    return place(Calling(lambda model, x: output(x @ model.weight)), check=False)
