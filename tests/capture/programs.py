"""Programs for tests: captured, or written call by call, and run one call after the other."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from doppler.capture.export import Exported, TensorName, export
from doppler.capture.fx import meta_of
from doppler.capture.operators import overload
from doppler.capture.program import (
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
from doppler.capture.schemas import ResultShapes
from doppler.capture.simplify import simplify

Tensors = dict[str, torch.Tensor]


def captured(model: torch.nn.Module, *args: Any, **kwargs: Any) -> tuple[Program, Tensors]:
    """The program of a model in eval mode, and its tensors by the names of their sources."""
    return with_tensors(export(model.eval(), args, kwargs), model, args, kwargs)


def with_tensors(
    exported: Exported, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Program, Tensors]:
    """What was captured of a model, simplified, and its tensors."""
    program, constants = simplify(exported.program, exported.constants)
    tensors = {**model.state_dict(), **constants}
    tensors |= dict(model.named_buffers())
    leaves = pytree.tree_leaves((args, kwargs))
    for name, leaf in zip(exported.signature.inputs, leaves, strict=True):
        if isinstance(name, TensorName):
            tensors[name.name] = leaf
    return program, tensors


class Builder:
    """Writes a program call by call; its tensors are filled as they are asked for."""

    def __init__(self, seed: int = 0) -> None:
        self.sources: dict[str, Source] = {}
        self.inputs: list[Input] = []
        self.calls: list[Call] = []
        self.tensors: Tensors = {}
        self.shapes = ResultShapes()
        self.generator = torch.Generator().manual_seed(seed)

    def source(self, shape: tuple[int, ...], role: str = "parameter") -> Ref:
        assert not self.calls, "inputs come first"
        name = f"{role}{len(self.inputs)}"
        meta = TensorMeta(shape, "float32")
        self.sources[name] = Source(role, meta)
        self.inputs.append(Input(name, whole(shape), meta))
        self.tensors[name] = torch.randn(shape, generator=self.generator) / 2
        return Ref(len(self.inputs) - 1)

    def meta(self, ref: Ref) -> TensorMeta:
        return self.program().meta(ref)

    def call(self, op: str, *args: Any, **kwargs: Any) -> Ref:
        """Add a call of one result; torch must take it."""
        call = Call(f"aten.{op}", args, kwargs, (), False, f"call{len(self.calls)}")
        asked = call.with_refs(self.meta)
        results = self.shapes.find(asked.op, asked.args, asked.kwargs)
        assert results is not None, asked
        several = op.split(".")[0] in ("split", "chunk")
        self.calls.append(Call(call.op, args, kwargs, results, several, call.name))
        return Ref(len(self.inputs) + len(self.calls) - 1)

    def program(self, *outputs: Ref) -> Program:
        program = Program("built", self.sources, tuple(self.inputs), tuple(self.calls))
        returned = tuple(
            Output(f"output{number}", program.meta(ref), ((ref, whole(program.meta(ref).shape)),))
            for number, ref in enumerate(outputs)
        )
        return Program("built", self.sources, program.inputs, program.calls, returned)


def run(program: Program, tensors: Tensors) -> list[torch.Tensor]:
    """The outputs of a program, whole; every result must have the shape that it states."""
    values: list[Any] = [
        tensors[read.source][tuple(slice(*part) for part in read.slices)] for read in program.inputs
    ]

    def find(argument: Any) -> Any:
        if isinstance(argument, tuple):
            return [find(entry) for entry in argument]
        if isinstance(argument, Ref):
            value = values[argument.value]
            return value if argument.item < 0 else value[argument.item]
        if isinstance(argument, Constant):
            return "cpu" if argument.kind == "device" else getattr(torch, argument.name)
        return argument

    with torch.no_grad():
        for call in program.calls:
            function = overload(call.op)
            value = function(*map(find, call.args), **{k: find(v) for k, v in call.kwargs.items()})
            found = value if call.several else (value,)
            assert tuple(map(meta_of, found)) == call.results, call
            values.append(value)
    outputs = []
    for output in program.outputs:
        result = torch.full(output.meta.shape, -77, dtype=getattr(torch, output.meta.dtype))
        for ref, slices in output.pieces:
            result[tuple(slice(*part) for part in slices)] = find(ref)
        outputs.append(result)
    return outputs


def listing(program: Program) -> str:
    """A program as text, to read where a test fails."""
    count = len(program.inputs)

    def show(ref: Ref) -> str:
        if ref.value < count:
            read = program.inputs[ref.value]
            return f"{read.source}{list(read.slices)}"
        tail = f".{ref.item}" if ref.item >= 0 else ""
        return f"%{program.calls[ref.value - count].name}{tail}"

    return "\n".join(
        f"{call.name} = {call.op}{call.with_refs(show).args} {dict(call.kwargs)} "
        f"-> {[meta and meta.shape for meta in call.results]} {call.meta_op} {call.tile}"
        for call in program.calls
    )
