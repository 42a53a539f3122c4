"""Programs as graphs: every group of calls an executable op."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from doppler.capture.costs import flops, traffic
from doppler.capture.fusion import FUSE, Group, Views, fuse
from doppler.capture.program import Argument, Call, Constant, Program, Ref
from doppler.errors import CaptureError
from doppler.graph import Graph, OpSpec, TensorSpec, Tile
from doppler.graph.calls import OwnCalls

if TYPE_CHECKING:
    from torch import Tensor

# Constants of at most so many entries are written into the graph itself.
_INLINE = 4096
_STD = 0.02


def lower(
    program: Program,
    constants: Mapping[str, Tensor],
    *,
    fusion: float = FUSE,
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> Graph:
    """Make a graph of a program.

    An op is a group of calls, with the views of its inputs that they read. Its costs are those of
    all its calls: what passes between two of them is written and read again.

    Parameters
    ----------
    program : Program
    constants : mapping of str to Tensor
        Values of its constants. Small ones become part of the graph.
    fusion : float
        Share of the longest path below which a call is fused, see
        :func:`doppler.capture.fusion.fuse`.
    ranges : mapping of str to (int, int), optional
        Least and largest value of inputs of whole numbers, for runs with synthetic data.

    Returns
    -------
    Graph
        Its tensors are the sources of the program, its outputs those of the program.

    Raises
    ------
    CaptureError
        If the program computes nothing.
    """
    views = Views(program)
    ops = _Ops(program, views, fuse(program, views, least=fusion))
    if not ops.specs:
        raise CaptureError(f"{program.name}: the model computes nothing that could be placed")
    return ops.graph(constants, ranges or {})


@dataclass
class _Body:
    """The calls of an op as they are put together: its inputs, then its calls, have numbers."""

    inputs: list[int | Tile] = field(default_factory=list)
    number_of: dict[int, int] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)


class _Ops:
    def __init__(self, program: Program, views: Views, groups: list[Group]) -> None:
        self.program = program
        self.views = views
        self.n_inputs = len(program.inputs)
        self.specs: list[OpSpec] = []
        self.rows: list[dict[str, Any]] = []
        self.outputs: dict[int, Tile] = {}
        # The op that holds each call's results, and where they are among its own.
        self.op_of: dict[int, int] = {}
        self.place: dict[int, dict[int, int]] = {}
        self.shards: dict[str, int] = {}
        self.used = self._used(groups)
        self.ends = self._ends(groups)
        for group in groups:
            self._emit(group)
        self._emit_outputs()

    def _used(self, groups: list[Group]) -> dict[int, list[int]]:
        """List which results of the last call of each group others read."""
        lasts = {group.last for group in groups}
        own = {call: group.last for group in groups for call in group.calls}
        used: dict[int, set[int]] = {last: set() for last in lasts}
        for number, call in enumerate(self.program.calls):
            if self.views.is_view[number]:
                continue
            for ref in call.refs():
                self._note(ref, used, own.get(number))
        for output in self.program.outputs:
            for ref, _ in output.pieces:
                self._note(ref, used, None)
        return {last: sorted(items) for last, items in used.items()}

    def _note(self, ref: Ref, used: dict[int, set[int]], reader: int | None) -> None:
        base = self.views.base(ref)
        number = base.value - self.n_inputs
        if number in used and number != reader:
            used[number].add(base.item)

    def _ends(self, groups: list[Group]) -> dict[int, Ref]:
        """Find groups that end with a view that is an output, and that nobody else reads."""
        readers: dict[int, int] = {}
        for number, call in enumerate(self.program.calls):
            if not self.views.is_view[number]:
                for value in {self.views.base(ref).value for ref in call.refs()}:
                    readers[value] = readers.get(value, 0) + 1
        pieces = [ref for output in self.program.outputs for ref, _ in output.pieces]
        count: dict[int, int] = {}
        for ref in pieces:
            value = self.views.base(ref).value
            count[value] = count.get(value, 0) + 1
        ends = {}
        for ref in pieces:
            value = self.views.base(ref).value
            if value >= self.n_inputs and not readers.get(value) and count[value] == 1:
                ends[value - self.n_inputs] = ref
        return ends

    def _emit(self, group: Group) -> None:
        body = _Body()
        for number in group.calls:
            self._append(body, number)
        last = group.last
        end = self.ends.get(last)
        items = self.used[last] or [0 if self.program.calls[last].several else -1]
        if end is not None:
            results = [self._argument(body, end)]
            metas = [self.program.meta(end)]
        else:
            refs = [Ref(self.n_inputs + last, item) for item in items]
            results = [self._argument(body, ref) for ref in refs]
            metas = [self.program.meta(ref) for ref in refs]
        op = len(self.specs)
        self.op_of[last] = op
        self.place[last] = (
            {items[0]: -1} if len(items) == 1 else {item: at for at, item in enumerate(items)}
        )
        calls = [self.program.calls[number] for number in group.calls]
        heaviest = max(calls, key=lambda call: (flops(call, self.program), call.name))
        self._add(body, results, metas, heaviest, calls)

    def _append(self, body: _Body, number: int) -> None:
        call = self.program.calls[number]
        entry: dict[str, Any] = {
            "op": call.op,
            "args": tuple(self._argument(body, argument) for argument in call.args),
        }
        if call.kwargs:
            entry["kwargs"] = {
                key: self._argument(body, value) for key, value in call.kwargs.items()
            }
        # Inputs are numbered as they are found, so calls count from the other end until all are.
        body.number_of[self.n_inputs + number] = -1 - len(body.calls)
        body.calls.append(entry)

    def _argument(self, body: _Body, argument: Argument) -> Any:
        if isinstance(argument, tuple):
            return tuple(self._argument(body, entry) for entry in argument)
        if isinstance(argument, Constant):
            return {argument.kind: argument.name}
        if isinstance(argument, float) and not math.isfinite(argument):
            return {"float": repr(argument)}
        if not isinstance(argument, Ref):
            return argument
        for number in self.views.chain(argument):
            if self.n_inputs + number not in body.number_of:
                self._append(body, number)
        value, item = argument.value, argument.item
        if value not in body.number_of:
            body.number_of[value] = len(body.inputs)
            if value < self.n_inputs:
                block = self.program.inputs[value]
                body.inputs.append(Tile(block.source, block.slices))
            else:
                body.inputs.append(self.op_of[value - self.n_inputs])
        if value >= self.n_inputs and body.number_of[value] >= 0:
            item = self.place[value - self.n_inputs][item]
        found = {"ref": body.number_of[value]}
        return found if item < 0 else {**found, "item": item}

    def _add(
        self,
        body: _Body,
        results: list[Any],
        metas: list[Any],
        main: Call,
        calls: list[Call],
    ) -> None:
        n_inputs = len(body.inputs)

        def final(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(final, value))
            if isinstance(value, dict) and "ref" in value and value["ref"] < 0:
                return {**value, "ref": n_inputs - 1 - value["ref"]}
            return value

        for entry in body.calls:
            entry["args"] = final(entry["args"])
            if "kwargs" in entry:
                entry["kwargs"] = {key: final(value) for key, value in entry["kwargs"].items()}
        spec = OpSpec(
            "aten",
            tuple(body.inputs),
            metas[0].shape,
            OwnCalls(
                {
                    "calls": tuple(body.calls),
                    "results": tuple(
                        {**final(result), "shape": meta.shape, "dtype": meta.dtype}
                        for result, meta in zip(results, metas, strict=True)
                    ),
                }
            ),
        )
        written = float(sum(meta.bytes for meta in metas))
        moved = sum(sum(traffic(call, self.program)) for call in calls)
        sizes = {(block.source, block.slices): block.meta.bytes for block in self.program.inputs}
        resident = {each for each in body.inputs if isinstance(each, Tile)}
        meta_op = main.meta_op or main.name
        shard = self.shards[meta_op] = self.shards.get(meta_op, -1) + 1
        self.specs.append(spec)
        self.rows.append(
            {
                "names": main.name,
                "kinds": main.op.split(".")[1],
                "meta_ops": meta_op,
                "tiles": main.tile,
                "shards": shard,
                "flops": sum(flops(call, self.program) for call in calls),
                "output_bytes": written,
                "bytes_read": max(0.0, moved - written),
                "param_bytes": float(sum(sizes[tile.tensor, tile.slices] for tile in resident)),
            }
        )

    def _emit_outputs(self) -> None:
        for output in self.program.outputs:
            for ref, slices in output.pieces:
                base = self.views.base(ref)
                number = base.value - self.n_inputs
                op = self.op_of.get(number, -1)
                direct = op >= 0 and (
                    self.ends.get(number) == ref
                    or (ref == base and self.place[number] == {ref.item: -1})
                )
                if not direct or op in self.outputs:
                    op = self._emit_output(output.name, ref)
                self.outputs[op] = Tile(output.name, slices)

    def _emit_output(self, name: str, ref: Ref) -> int:
        """Add an op that only hands a tensor on, or a view of it."""
        body = _Body()
        result = self._argument(body, ref)
        meta = self.program.meta(ref)
        label = f"{name}.{len(self.specs)}"
        main = Call("aten.alias.default", (), {}, (meta,), False, label, meta_op=label)
        self._add(body, [result], [meta], main, [])
        return len(self.specs) - 1

    def graph(
        self, constants: Mapping[str, Tensor], ranges: Mapping[str, tuple[int, int]]
    ) -> Graph:
        edges = {
            (source, op)
            for op, spec in enumerate(self.specs)
            for source in spec.inputs
            if isinstance(source, int)
        }
        columns: dict[str, Any] = {key: [row[key] for row in self.rows] for key in self.rows[0]}
        return Graph.build(
            len(self.specs),
            [source for source, _ in edges],
            [op for _, op in edges],
            name=self.program.name,
            specs=self.specs,
            tensors={
                name: TensorSpec(
                    source.meta.shape,
                    source.role,
                    _filling(name, source.role, source.meta.dtype, constants, ranges),
                    source.meta.dtype,
                )
                for name, source in self.program.sources.items()
            },
            outputs=self.outputs,
            **columns,
        )


def _filling(
    name: str,
    role: str,
    dtype: str,
    constants: Mapping[str, Tensor],
    ranges: Mapping[str, tuple[int, int]],
) -> dict[str, Any]:
    """Say how a tensor is filled for a run with synthetic data."""
    value = constants.get(name)
    if (
        value is not None
        and value.numel() <= _INLINE
        and value.device.type == "cpu"
        and bool(value.isfinite().all())
    ):
        return {"kind": "values", "values": tuple(value.flatten().tolist())}
    if role == "buffer" and "float" in dtype:
        # A variance or a scale, more often than not: no number whose root is none.
        return {"kind": "constant", "value": 1.0}
    if "float" in dtype:
        return {"kind": "normal", "std": 1.0 if role == "input" else _STD}
    low, high = ranges.get(name, (0, 1))
    return {"kind": "integers", "low": low, "high": high + 1}
