"""Files of captured graphs that are malformed or hostile: one clear line each, nothing computed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from aten_graphs import aten_graph, call, calls, ref, result, whole
from torch.utils._python_dispatch import TorchDispatchMode

from doppler import Graph, load_graph
from doppler.engine import CpuBackend, Engine
from doppler.errors import DopplerError
from doppler.graph import TensorSpec
from doppler.graph.execution import make_tensors
from doppler.graph.formats import doppler_json

TERA = 10**12


def captured() -> Graph:
    first = calls(
        call("linear.default", ref(0), ref(1)),
        call("mul.Tensor", ref(2), 2.0),
        call("topk.default", ref(3), 2),
        result(3, (4, 3)),
        result(4, (4, 2), "int64", 1),
    )
    second = calls(
        call("gather.default", ref(0, 0), 1, ref(0, 1)),
        call("sum.dim_IntList", ref(1), (1,), dtype={"dtype": "float32"}),
        result(2, (4,)),
    )
    x, w = whole("x", (4, 6)), whole("w", (3, 6))
    return aten_graph(
        [((x, w), first), ((0,), second)],
        {
            "x": TensorSpec((4, 6), dtype="float32"),
            "w": TensorSpec((3, 6), "parameter", dtype="float32"),
        },
        names=["first", "second"],
    )


DOCUMENT = json.loads(doppler_json.write(captured()))
TENSORS = make_tensors(captured())

FIRST, SECOND = (("specs", "forms", form, "attributes") for form in (0, 1))
LINEAR, MULTIPLY = (*FIRST, "calls", 0), (*FIRST, "calls", 1)
SUM = (*SECOND, "calls", 1)
BIAS = {"op": "aten.add.Tensor", "args": [{"ref": 0}, {"ref": 1}]}

Path_ = tuple[Any, ...]


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def made(op: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """A call in the place of the multiplication."""
    return {"op": op, "args": list(args), "kwargs": kwargs}


X = {"ref": 2}

#: By name: what to put where, and how the message goes on after the file.
CASES: dict[str, tuple[Path_, Any, str]] = {}


def case(name: str, path: Path_, value: Any, message: str) -> None:
    assert name not in CASES
    CASES[name] = path, value, message


name: Any
kind: Any
value: Any
NOT_ATEN = "op 0 (first): call 0: operator {} must be 'aten.NAME.OVERLOAD'"
for name in (
    *("prims.add.default", "quantized.linear.default", "mylib.linear.default", "os.system"),
    *("builtins.eval.default", "aten.linear", "aten.linear.default.out", "aten..default", ""),
    *("torch.ops.aten.linear.default", "ATEN.linear.default", "aten::linear.default"),
    *("aten.linear.default;import os", "aten.lіnear.default", "aten.linear.default ", "aten.1.2"),
    *("__import__('os').system('true')", "aten.linear()", "prim.Print.default"),
):
    case(f"operator {name!r}", (*LINEAR, "op"), name, NOT_ATEN.format(repr(name)))
case("operator with a new line", (*LINEAR, "op"), "aten.mm.default\n", "op 0 (first): call 0: op")
for value in (None, 5, {}):
    case(f"operator {value}", (*LINEAR, "op"), value, NOT_ATEN.format(value))

for name, why in {
    "__class__.default": "has no such operator",
    "__init__.default": "has no such operator",
    "__getattr__.default": "has no such operator",
    "name.default": "has no such operator",
    "nosuch.default": "has no such operator",
    "linear.nosuch": "has no such overload; its overloads are default, out",
    "linear.__class__": "has no such overload",
    "linear._schema": "has no such overload",
    "linear.op": "has no such overload",
    "add_.Tensor": "writes to its arguments",
    "copy_.default": "writes to its arguments",
    "zero_.default": "writes to its arguments",
    "resize_.default": "writes to its arguments",
    "set_.source_Storage": "writes to its arguments",
    "set_data.default": "writes to its arguments",
    "record_stream.default": "writes to its arguments",
    "linear.out": "writes to its arguments",
    "add.out": "writes to its arguments",
    "_no_grad_embedding_renorm_.default": "writes to its arguments",
    "from_file.default": "reads a file",
    "as_strided.default": "depends on how its input lies in memory",
    "_copy_from.default": "is internal to torch",
    "_remove_batch_dim.default": "is internal to torch",
    "_nnpack_spatial_convolution.default": "is internal to torch",
    "_foobar.default": "is internal to torch",
    "item.default": "returns number, must return tensors",
    "size.int": "returns int, must return tensors",
    "is_nonzero.default": "returns bool, must return tensors",
    "equal.default": "returns bool, must return tensors",
    "_assert_async.default": "is internal to torch",
    "quantized_lstm_cell.default": "is for quantized tensors",
    "fbgemm_linear_int8_weight.default": "is for quantized tensors",
    "mkldnn_linear.default": "is for tensors in a layout of a library",
    "to.prim_Device": "is an overload of TorchScript",
}.items():
    start = f"op 0 (first): call 0 (aten.{name}): "
    case(f"aten.{name}", (*LINEAR, "op"), f"aten.{name}", f"{start}~{why}")

AT_0, AT_1 = "op 0 (first): call 0 (aten.linear.default): ", "op 0 (first): call 1 (aten."
ARG_0 = (*LINEAR, "args", 0)

case("no arguments", (*LINEAR, "args"), [], AT_0 + "lacks the argument input")
case("too few", (*LINEAR, "args"), [X | {"ref": 0}], AT_0 + "lacks the argument weight")
case("too many", (*LINEAR, "args"), [{"ref": 0}] * 4, AT_0 + "has 4 arguments, takes at most 3")
case("args a text", (*LINEAR, "args"), "ref", AT_0 + "args is 'ref', must be a list")
case("args a mapping", (*LINEAR, "args"), {"ref": 0}, AT_0 + "args is {'ref': 0}, must be a list")
case("kwargs a list", (*LINEAR, "kwargs"), [1], AT_0 + "kwargs is (1,), must be a map")
case("unknown keyword", (*LINEAR, "kwargs"), {"scale": 1}, AT_0 + "takes no argument 'scale'")
case("keyword twice", (*LINEAR, "kwargs"), {"input": X | {"ref": 0}}, AT_0 + "has argument 'input'")
case(
    "keyword that is code",
    (*LINEAR, "kwargs"),
    {"bias=__import__('os')": None},
    AT_0 + "takes no argument",
)
case("keyword of Python", (*LINEAR, "kwargs"), {"lambda": None}, AT_0 + "takes no argument 'lam")
case("out by keyword", (*LINEAR, "kwargs"), {"out": {"ref": 0}}, AT_0 + "takes no argument 'out'")
for name, value in (
    ("a text", "x"),
    ("a list", [{"ref": 0}]),
    ("a dtype", {"dtype": "float32"}),
    ("nothing", None),
):
    case(f"{name} for a tensor", ARG_0, value, AT_0 + "argument input is ~must be Tensor")
SUMS = "op 1 (second): call 1 (aten.sum.dim_IntList): argument "
for name, value in (("text", "1"), ("float", 1.5), ("bool", True), ("ref", {"ref": 1})):
    case(f"{name} for integers", (*SUM, "args", 1), [value], SUMS + "dim is ~must be Optional[List")
case("int for a bool", (*SUM, "args"), [{"ref": 1}, [1], 1], SUMS + "keepdim is 1, must be bool")
case("text for a bool", (*SUM, "args"), [{"ref": 1}, [1], "no"], SUMS + "keepdim is 'no', must be")
case("text for a dtype", (*SUM, "kwargs", "dtype"), "float32", SUMS + "dtype is 'float32', must be")
case("a layout for a dtype", (*SUM, "kwargs", "dtype"), {"layout": "strided"}, SUMS + "dtype is {")

NAMED = "op 1 (second): call 1 (aten.sum.dim_IntList): argument 'dtype': "
for kind, name in (
    *(("dtype", "float33"), ("dtype", "Tensor"), ("dtype", "quint8"), ("dtype", "__class__")),
    *(("dtype", 5), ("dtype", ["float32"]), ("device", "cuda:0"), ("device", "meta")),
    *(("layout", "sparse_coo"), ("memory_format", "chan"), ("float", "1.0"), ("float", "NaN")),
):
    case(f"{kind} {name}", (*SUM, "kwargs", "dtype"), {kind: name}, NAMED + f"{kind} ~not known")
ODD = "op 0 (first): call 0 (aten.linear.default): argument 0 "
case("an empty mapping", ARG_0, {}, ODD + "is {}, must be a mapping of one of the keys ref, dtype")
case("two kinds", ARG_0, {"dtype": "bool", "layout": "strided"}, ODD + "is {'dtype'~must be a map")
case("an unknown kind", ARG_0, {"storage": "/etc/passwd"}, ODD + "is {'storage'~must be a mapping")
for value in (-1, 2, 3, 10**30, "0", True, 0.0, None, [0]):
    case(f"value {value}", ARG_0, {"ref": value}, ODD + "reads value ~before it are values 0 to 1")
case("a key beside ref", ARG_0, {"ref": 0, "attr": "data"}, ODD + "has the keys ['attr', 'ref']")
for value in (-1, "0", True, 2**64, None):
    case(f"item {value}", ARG_0, {"ref": 0, "item": value}, ODD.rstrip() + ": item is ")
case(
    "an item of one tensor",
    ARG_0,
    {"ref": 0, "item": 0},
    "op 0 (first): reads item 0 of its input 0, which is one tensor",
)
MUL_1 = (*MULTIPLY, "args", 1)
AT_MUL = "op 0 (first): call 1 (aten.mul.Tensor): argument 1"
case("an item of a call of one", MUL_1, {"ref": 2, "item": 0}, "op 0 (first): call 1 (aten.mul.T")
case("an int of 65 bits", MUL_1, 2**64, AT_MUL + " is 18446744073709551616, which does not fit")
case("an int of many digits", MUL_1, 10**4000, AT_MUL + " is ~does not fit in 64 bits")
case("nested lists", MUL_1, deep(3), AT_MUL + ": lists are nested deeper")
case("half a character", MUL_1, "\ud800", "a text holds \\ud800, one half of a surrogate pair")

case("nested too deep to read", MUL_1, deep(700), "~nested")
case("no attributes", FIRST, {}, "op 0 (first): has the attributes [], must have 'calls' and 'res")
case("one attribute more", (*FIRST, "eval"), "1", "op 0 (first): has the attributes ['calls', 'ev")
case("calls a mapping", (*FIRST, "calls"), {"op": "x"}, "op 0 (first): calls is {'op': 'x'}, must")
case("a call a list", LINEAR, ["aten.mm.default"], "op 0 (first): call 0 is ('aten.mm.default',),")
case("a call without operator", LINEAR, {"args": []}, "op 0 (first): call 0 has the keys ['args']")
case("a key of a call", (*LINEAR, "globals"), {}, "op 0 (first): call 0 has the keys ['args', 'glo")
RESULTS, RESULT = (*FIRST, "results"), (*FIRST, "results", 0)
case("no results", RESULTS, [], "op 0 (first): results is (), must be a list of at least 1")
case("a result that is none", RESULT, 5, "op 0 (first): result 0 is 5, must be a mapping")
case("a result without shape", RESULT, {"ref": 3, "dtype": "bool"}, "op 0 (first): result 0 has th")
case("a result of no call", (*RESULT, "ref"), 5, "op 0 (first): result 0 reads value 5; before")
case("a result of several", (*RESULT, "ref"), 4, "op 0 (first): result 0: reads value 4, which is")
case("an item too high", (*RESULTS, 1, "item"), 2, "op 0 (first): result 1: reads item 2 of value")
case("an item of one result", (*RESULT, "item"), 0, "op 0 (first): result 0: reads value 3, which")
for value in ([4, -3], [4, 3.0], [4, "3"], "43", None, [True, 3], [2**64], [1] * 65):
    case(f"shape {value}"[:40], (*RESULT, "shape"), value, "op 0 (first): result 0: shape is ")
case("another shape", (*RESULT, "shape"), [2, 6], "op 0 (first): has shape (4, 3), its first res")
case("a dtype that is none", (*RESULT, "dtype"), "float", "op 0 (first): result 0: dtype 'float'")
case("another size", (*RESULT, "dtype"), "float64", "op 0 (first): output bytes are 112, its re")
case("another dtype", (*RESULT, "dtype"), "int32", "op 0 (first): result 0: has dtype float32, th")
GATHER = (*SECOND, "calls", 0, "args")
case("no such item", (*GATHER, 2, "item"), 2, "op 1 (second): reads its input 0 item 2; that is 2")
case("no item", (*GATHER, 2), {"ref": 0}, "op 1 (second): reads its input 0 without an item; that")
case(
    "the wrong item", (*GATHER, 2, "item"), 0, "op 1 (second): call 0 (aten.gather.default): torch"
)
case(
    "a shape that does not fit", (*LINEAR, "op"), "aten.mm.default", "op 0 (first): call 0 (aten.m"
)
case(
    "an axis too many", (*SUM, "args", 1), [2], "op 1 (second): call 1 (aten.sum.dim_IntList): tor"
)

HUGE = made("aten.full.default", [TERA, 10], 1.0)
case("a huge tensor", MULTIPLY, HUGE, AT_1 + "full.default): gives a tensor of shape ~B of memory")
case(
    "a size without end", MULTIPLY, made("aten.zeros.default", [2**62, 4]), AT_1 + "zeros.default)"
)
case(
    "a size below zero", MULTIPLY, made("aten.zeros.default", [-1]), AT_1 + "zeros.default): torch"
)
case("repeated", MULTIPLY, made("aten.repeat.default", X, [TERA, 1]), AT_1 + "repeat.default): giv")
case("padded", MULTIPLY, made("aten.pad.default", X, [TERA, 0]), AT_1 + "pad.default): gives")
case("counted", MULTIPLY, made("aten.arange.default", TERA * 9), AT_1 + "arange.default): gives")
case(
    "unknown size", MULTIPLY, made("aten.nonzero.default", X), AT_1 + "nonzero.default): torch can"
)
case(
    "by mask", MULTIPLY, made("aten.masked_select.default", X, X), AT_1 + "masked_select.default): "
)
case("sparse", MULTIPLY, made("aten.to_sparse.default", X), AT_1 + "to_sparse.default): ")
case(
    "pinned",
    MULTIPLY,
    made("aten.zeros.default", [4, 3], pin_memory=True),
    AT_1 + "zeros.default): makes",
)
case(
    "no tensor read", MULTIPLY, made("aten.mul.Tensor", 2, 3), AT_1 + "mul.Tensor): reads no tensor"
)
case("nothing stacked", MULTIPLY, made("aten.stack.default", []), AT_1 + "stack.default): reads no")
case(
    "a generator", MULTIPLY, made("aten.rand.generator", [4, 3], generator=1), AT_1 + "rand.genera"
)
STATISTICS = [X, None, None, X, X, True, 0.1, 1e-5]
for name in ("native_batch_norm", "batch_norm"):
    given = [*STATISTICS, *([False] if name == "batch_norm" else [])]
    case(
        name, MULTIPLY, made(f"aten.{name}.default", *given), AT_1 + f"{name}.default): writes to i"
    )

case("a role", ("tensors", "w", "role"), "weights", "tensor 'w': role is 'weights', must be one of")
case("a tensor's dtype", ("tensors", "w", "dtype"), "float", "tensor 'w': dtype is 'float', must b")
case("a tensor's other dtype", ("tensors", "w", "dtype"), "float64", "tensor 'w' has dtype float32")
case("a function", ("specs", "forms", 1, "function"), "exec", "op 1 (second): reads its input")
case(
    "another function", ("specs", "forms", 1, "function"), "relu", "op 1 (second): reads its input"
)
case(
    "a shape of an op", ("specs", "forms", 1, "shape"), [5], "op 1 (second): has shape (5,), its f"
)
case("an output of several", ("outputs",), [[0, "y", [0, 4], [0, 3]]], "op 0 (first): is an output")
case(
    "an output's place", ("outputs",), [[1, "y", [0, 5]]], "op 1 (second): has shape (4,), its til"
)
case("an output's gap", ("outputs",), [[1, "y", [TERA, TERA + 4]]], "the tiles of result 'y' leave")
case(
    "an output below zero", ("outputs",), [[1, "y", [-4, 0]]], "op 1 (second): has shape (4,), its"
)
case("an axis of an output", ("outputs",), [[1, "y"]], "op 1 (second): has shape (4,), its tile is")


class Kernels(TorchDispatchMode):
    """Notes what computes on real tensors, but for the numbers that torch makes of literals."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for value in (*args, *(made if isinstance(made, tuple | list) else (made,))):
            if isinstance(value, torch.Tensor) and not value.is_meta and value.numel() > 1:
                self.ran.append(str(func))
        return made


def refused(path: Path) -> str:
    """Open a file as ``doppler run`` does, and return the error; nothing may compute."""
    with Kernels() as kernels:
        with pytest.raises(DopplerError) as caught:
            Engine(load_graph(path), CpuBackend(2), tensors=TENSORS).close()
        assert not kernels.ran
    return str(caught.value)


def changed(path: Path_, value: Any) -> Any:
    document = copy.deepcopy(DOCUMENT)
    at = document
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return document


def test_the_file_itself_runs(tmp_path: Path) -> None:
    path = tmp_path / "captured.json"
    path.write_text(json.dumps(DOCUMENT))
    Engine(load_graph(path), CpuBackend(2), tensors=TENSORS).close()


@pytest.mark.parametrize("name", CASES)
def test_one_clear_line_and_nothing_computed(name: str, tmp_path: Path) -> None:
    where, value, expected = CASES[name]
    path = tmp_path / "captured.json"
    path.write_text(json.dumps(changed(where, value)))
    message = refused(path)
    assert "\n" not in message
    assert message.isprintable()
    assert len(message) < 700
    start, *rest = expected.split("~")
    assert message.startswith(f"{path}: {start}"), message
    assert all(part in message for part in rest), message


TEXTS: dict[str, tuple[Callable[[str], str], str]] = {
    "NaN": (lambda text: text.replace("2.0", "NaN", 1), "argument 1 is nan, must be a finite"),
    "Infinity": (lambda text: text.replace("2.0", "-Infinity", 1), "argument 1 is -inf, must be"),
    "a float without end": (
        lambda text: text.replace("2.0", "1e999", 1),
        "argument 1 is inf, must",
    ),
    "an int without end": (lambda text: text.replace("2.0", "9" * 5000, 1), "too many digits"),
    "lists without end": (
        lambda text: text.replace("2.0", "[" * 10**5 + "]" * 10**5, 1),
        "nested too deep",
    ),
    "mappings without end": (
        lambda text: text.replace("2.0", '{"a":' * 10**5 + "1" + "}" * 10**5, 1),
        "nested too deep",
    ),
    "a key twice": (
        lambda text: text.replace('"op":', '"op":"aten.mm.default","op":', 1),
        "key 'op' is given twice",
    ),
    "half a character": (lambda text: text.replace("2.0", r'"\udfff"', 1), "half of a surrogate"),
    "cut short": (lambda text: text[: len(text) // 2], "not valid JSON"),
    "Python": (lambda text: text.replace("2.0", "__import__('os')", 1), "not valid JSON"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_odd_text_is_refused(name: str, tmp_path: Path) -> None:
    change, expected = TEXTS[name]
    text = json.dumps(DOCUMENT)
    assert change(text) != text
    path = tmp_path / "captured.json"
    path.write_text(change(text))
    message = refused(path)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    assert expected in message
