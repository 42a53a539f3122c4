"""FX graphs of functional calls, as export and aot_autograd make them, as programs."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from doppler.capture.operators import is_check
from doppler.capture.program import (
    WIDTHS,
    Argument,
    Call,
    Constant,
    Input,
    Output,
    Program,
    Ref,
    Source,
    TensorMeta,
    whole,
)
from doppler.errors import CaptureError

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.fx import Graph, GraphModule, Node

DEPENDS_ON_DATA = (
    "what happens next depends on the values of a tensor, and that cannot be captured; use "
    "torch.where or a mask instead, or keep the module whole with doppler.region"
)
_VARIABLE = re.compile(r"^L\['\w+'\]\.?")


@dataclass(frozen=True, slots=True)
class Placeholder:
    """What a placeholder of an FX graph stands for.

    Attributes
    ----------
    name : str
        Of the source.
    role : {"input", "parameter", "buffer", "constant"}
    """

    name: str
    role: str


def read_fx(
    module: GraphModule,
    placeholders: Sequence[Placeholder],
    outputs: Sequence[str | None],
    name: str,
) -> tuple[Program, dict[str, Tensor]]:
    """Make a program of an FX graph.

    Parameters
    ----------
    module : torch.fx.GraphModule
        Its calls are functional: none writes to its arguments. Every node has its ``val``.
    placeholders : sequence of Placeholder
        One for each placeholder, in order. Two of one name are one tensor.
    outputs : sequence of (str or None)
        Name of each output, in order; None for one that is not wanted.
    name : str
        Of the program.

    Returns
    -------
    program : Program
    constants : dict of str to Tensor
        Values of its constants, on the CPU where they are not on the meta device.

    Raises
    ------
    CaptureError
        If something in the graph is no call of an operator on tensors of known shape; the message
        names the line of the user's code.
    """
    return _Reader(module, name).read(placeholders, outputs)


def meta_of(tensor: Tensor) -> TensorMeta:
    """Shape and dtype of a tensor, as plain data."""
    return TensorMeta(tuple(map(int, tensor.shape)), str(tensor.dtype).removeprefix("torch."))


def user_line(trace: str | None) -> str:
    """Return the last line of a stack trace that is a line of code: ``"model.py:12: x.item()"``."""
    lines = (trace or "").strip().splitlines()
    for at in range(len(lines) - 1, -1, -1):
        parts = lines[at].strip().split('"')
        if parts[0] == "File " and len(parts) == 3 and not parts[1].startswith("<"):
            number = parts[2].split(",")[1].strip().removeprefix("line ")
            code = lines[at + 1].strip().rstrip(":") if at + 1 < len(lines) else ""
            return f"{parts[1]}:{number}: {code}"
    return ""


class _Reader:
    def __init__(self, module: GraphModule, name: str) -> None:
        self.module = module
        self.name = name
        self.sources: dict[str, Source] = {}
        self.inputs: list[Input] = []
        self.calls: list[Call] = []
        self.constants: dict[str, Tensor] = {}
        # What every node stands for: a tensor, several, or a plain value.
        self.values: dict[Node, Argument] = {}
        self.names: dict[str, int] = {}

    def read(
        self, placeholders: Sequence[Placeholder], outputs: Sequence[str | None]
    ) -> tuple[Program, dict[str, Tensor]]:
        graph: Graph = self.module.graph
        waiting = iter(placeholders)
        returned: Sequence[Argument] = ()
        for node in graph.nodes:
            if node.op == "placeholder":
                self.place(node, next(waiting))
            elif node.op == "get_attr":
                self.attribute(node)
        for node in graph.nodes:
            if node.op == "call_function":
                self.call(node)
            elif node.op == "output":
                (arguments,) = node.args
                returned = [self.argument(each, node) for each in arguments]
            elif node.op not in ("placeholder", "get_attr"):
                raise self.refused(node, f"a node of kind {node.op}")
        program = Program(self.name, self.sources, tuple(self.inputs), tuple(self.calls))
        results = []
        for label, value in zip(outputs, returned, strict=True):
            if label is not None and isinstance(value, Ref):
                meta = program.meta(value)
                results.append(Output(label, meta, ((value, whole(meta.shape)),)))
        return (
            Program(self.name, self.sources, program.inputs, program.calls, tuple(results)),
            self.constants,
        )

    def place(self, node: Node, placeholder: Placeholder) -> None:
        value: Any = node.meta.get("val")
        if not _is_tensor(value):
            self.values[node] = value
            return
        meta = self.meta(value, node)
        if placeholder.name not in self.sources:
            self.sources[placeholder.name] = Source(placeholder.role, meta)
        self.values[node] = self.input(placeholder.name)

    def attribute(self, node: Node) -> None:
        value: Any = self.module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not _is_tensor(value):
            return  # A submodule of a higher-order call, which is refused where it is called.
        name = f"constant.{node.target}"
        self.sources[name] = Source("constant", self.meta(value, node))
        self.constants[name] = value.detach()
        self.values[node] = self.input(name)

    def input(self, source: str) -> Ref:
        for number, known in enumerate(self.inputs):
            if known.source == source:
                return Ref(number)
        meta = self.sources[source].meta
        self.inputs.append(Input(source, whole(meta.shape), meta))
        return Ref(len(self.inputs) - 1)

    def call(self, node: Node) -> None:
        import torch

        target = node.target
        if target is operator.getitem:
            of, item = node.args
            tensors = self.argument(of, node)
            self.values[node] = (
                Ref(tensors.value, int(item)) if isinstance(tensors, Ref) else tensors[item]  # type: ignore[arg-type]
            )
            return
        if not isinstance(target, torch._ops.OpOverload):
            raise self.refused(node, f"a call of {getattr(target, '__name__', target)}")
        op = str(target)
        if is_check(op):
            return
        if target._schema.is_mutable:
            raise self.refused(node, f"{op}, which writes to its arguments")
        value: Any = node.meta.get("val")
        several = isinstance(value, tuple | list)
        entries = list(value) if several else [value]
        if not any(map(_is_tensor, entries)):
            if isinstance(value, bool | int | float | str) or value is None:
                self.values[node] = value
                return
            where = user_line(node.meta.get("stack_trace")) or self.name
            raise CaptureError(f"{where}: {DEPENDS_ON_DATA}")
        results = tuple(self.meta(each, node) if _is_tensor(each) else None for each in entries)
        # A call of the backward pass has the module of the call whose gradient it is.
        stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
        module = next((path for path, _ in reversed(stack.values())), "")
        # Dynamo names the model first, as the variable that holds it.
        module = _VARIABLE.sub("", module)
        self.calls.append(
            Call(
                op,
                tuple(self.argument(each, node) for each in node.args),
                {key: self.argument(each, node) for key, each in node.kwargs.items()},
                results,
                several,
                self.label(module, target),
                module,
            )
        )
        self.values[node] = Ref(len(self.inputs) + len(self.calls) - 1)

    def label(self, module: str, target: torch._ops.OpOverload) -> str:
        name = target._schema.name.split("::")[1]
        name = f"{module}.{name}" if module else name
        count = self.names[name] = self.names.get(name, 0) + 1
        return name if count == 1 else f"{name}_{count}"

    def meta(self, tensor: Tensor, node: Node) -> TensorMeta:
        for extent in tensor.shape:
            if type(extent) is not int:
                raise self.refused(node, "a tensor whose shape depends on data")
        meta = meta_of(tensor)
        if meta.dtype not in WIDTHS:
            raise self.refused(node, f"a tensor of dtype {meta.dtype}")
        return meta

    def argument(self, value: Any, node: Node) -> Argument:
        import torch

        if isinstance(value, torch.fx.Node):
            if value not in self.values:
                raise self.refused(node, f"the result of {value.target}")
            return self.values[value]
        if isinstance(value, tuple | list):
            return tuple(self.argument(each, node) for each in value)
        for kind, type_ in (
            ("dtype", torch.dtype),
            ("layout", torch.layout),
            ("memory_format", torch.memory_format),
        ):
            if isinstance(value, type_):
                return Constant(kind, str(value).removeprefix("torch."))
        if isinstance(value, torch.device):
            return Constant("device", "here")
        if value is None or type(value) in (bool, int, float, str):
            return value
        raise self.refused(node, f"an argument of type {type(value).__name__}")

    def refused(self, node: Node, what: str) -> CaptureError:
        where = user_line(node.meta.get("stack_trace"))
        return CaptureError(
            f"{where or self.name}: {what} cannot be captured; keep the module that does it whole "
            "with doppler.region"
        )


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)
