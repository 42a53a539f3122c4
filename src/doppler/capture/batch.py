"""Sharding along the batch: replicated chains that share parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from doppler.capture.operators import is_random, uses_batch_statistics
from doppler.capture.program import (
    Call,
    Input,
    Output,
    Program,
    Ref,
    Slices,
    Source,
    TensorMeta,
)
from doppler.errors import CaptureError

#: How the chains' results make up one that has no batch dimension: ``"mean"``, ``"sum"``, or None:
#: they do not.
Combine = Callable[[str], str | None]


def replicate(
    program: Program,
    sources: Mapping[str, Source],
    outputs: Mapping[str, TensorMeta],
    *,
    combine: Combine = lambda name: None,
) -> Program:
    """Run a program that was captured with a part of the batch once for each part.

    What does not depend on the batch is computed once. Parameters are shared. O(chains x calls).

    Parameters
    ----------
    program : Program
        Captured with a part of the batch.
    sources : mapping of str to Source
        Of the same model, captured with the whole batch.
    outputs : mapping of str to TensorMeta
        Of the whole batch.
    combine : callable
        Given the name of an output that depends on the batch and has no batch dimension, say how
        the chains' make up that of the whole.

    Returns
    -------
    Program
        Every op of a chain has the chain's number as its first tile coordinate.

    Raises
    ------
    CaptureError
        If no input has a batch dimension, if inputs differ in how many parts they have, if an
        output depends on the batch in a way that cannot be put together, or if something is
        normalized over the batch.
    """
    for call in program.calls:
        if uses_batch_statistics(call):
            raise CaptureError(
                f"{program.name}: {call.module or call.name} is normalized over the batch, which "
                "cannot be sharded then; take another kind of shards, or put it in eval mode"
            )
    axes = _batch_axes(program, sources)
    counts = {
        sources[name].meta.shape[axis] // program.sources[name].meta.shape[axis]
        for name, axis in axes.items()
    }
    if len(counts) != 1:
        raise CaptureError(
            f"{program.name}: no input has a batch to be sharded, or inputs disagree about it"
        )
    return _Replicas(program, sources, axes, counts.pop()).run(outputs, combine)


def _batch_axes(program: Program, sources: Mapping[str, Source]) -> dict[str, int]:
    axes = {}
    for name, part in program.sources.items():
        full = sources[name].meta.shape if name in sources else part.meta.shape
        if part.role != "input" or part.meta.shape == full:
            continue
        differ = [axis for axis, extent in enumerate(part.meta.shape) if extent != full[axis]]
        if len(differ) != 1 or full[differ[0]] % part.meta.shape[differ[0]]:
            raise CaptureError(
                f"{program.name}: input {name!r} of shape {full} cannot be cut into parts of shape "
                f"{part.meta.shape}"
            )
        axes[name] = differ[0]
    return axes


class _Replicas:
    def __init__(
        self,
        program: Program,
        sources: Mapping[str, Source],
        axes: Mapping[str, int],
        count: int,
    ) -> None:
        self.program = program
        self.sources = {
            name: sources[name] if name in axes else source
            for name, source in program.sources.items()
        }
        self.axes = axes
        self.count = count
        self.inputs: list[Input] = []
        self.calls: list[Call] = []
        # The tensor that stands for each value in each chain.
        self.now: list[list[int]] = []
        self.differs = self._differs()

    def _differs(self) -> list[bool]:
        """Tell of each value whether it is another in every chain."""
        differs = [each.source in self.axes for each in self.program.inputs]
        for call in self.program.calls:
            reads = any(differs[ref.value] for ref in call.refs())
            differs.append(reads or is_random(call.op, call.args, call.kwargs))
        return differs

    def run(self, outputs: Mapping[str, TensorMeta], combine: Combine) -> Program:
        for value, block in enumerate(self.program.inputs):
            chains = range(self.count if self.differs[value] else 1)
            self.now.append([len(self.inputs) + chain for chain in chains])
            self.inputs.extend(self._block(block, chain) for chain in chains)
        for number, call in enumerate(self.program.calls, len(self.program.inputs)):
            chains = range(self.count if self.differs[number] else 1)
            self.now.append([self._append(call, chain, len(chains)) for chain in chains])
        made = tuple(
            self._output(output, outputs[output.name], combine) for output in self.program.outputs
        )
        return Program(self.program.name, self.sources, tuple(self.inputs), tuple(self.calls), made)

    def _block(self, block: Input, chain: int) -> Input:
        if block.source not in self.axes:
            return block
        axis = self.axes[block.source]
        size = self.program.sources[block.source].meta.shape[axis]
        slices = list(block.slices)
        low, high = slices[axis]
        slices[axis] = (low + chain * size, high + chain * size)
        return replace(block, slices=tuple(slices))

    def _append(self, call: Call, chain: int, chains: int) -> int:
        made = call.with_refs(lambda ref: self._ref(ref, chain))
        if chains > 1:
            made = replace(
                made,
                name=f"{call.name}[{chain}]",
                meta_op=call.meta_op or call.name,
                tile=(chain, *call.tile),
            )
        return self._add(made)

    def _add(self, call: Call) -> int:
        self.calls.append(call)
        return len(self.inputs) + len(self.calls) - 1

    def _ref(self, ref: Ref, chain: int) -> Ref:
        chains = self.now[ref.value]
        return Ref(chains[chain if len(chains) > 1 else 0], ref.item)

    def _output(self, output: Output, full: TensorMeta, combine: Combine) -> Output:
        if not any(self.differs[ref.value] for ref, _ in output.pieces):
            return output.with_refs(lambda ref: self._ref(ref, 0))
        differ = [
            axis
            for axis, (part, extent) in enumerate(zip(output.meta.shape, full.shape, strict=True))
            if part != extent
        ]
        if not differ:
            how = combine(output.name)
            if how is None or output.meta.dtype != full.dtype:
                raise CaptureError(
                    f"{self.program.name}: {output.name} is computed of the whole batch; the "
                    "model cannot be sharded along it"
                )
            pieces = tuple((self._combined(ref, output, how), part) for ref, part in output.pieces)
            return Output(output.name, full, pieces)
        (axis,) = differ if len(differ) == 1 else (-1,)
        size = output.meta.shape[axis]
        if axis < 0 or full.shape[axis] != self.count * size:
            raise CaptureError(
                f"{self.program.name}: {output.name} of shape {full.shape} does not consist of "
                f"{self.count} parts of shape {output.meta.shape}; the model cannot be sharded "
                "along the batch"
            )
        return Output(
            output.name,
            full,
            tuple(
                (self._ref(ref, chain), _moved(part, axis, chain * size))
                for chain in range(self.count)
                for ref, part in output.pieces
            ),
        )

    def _combined(self, ref: Ref, output: Output, how: str) -> Ref:
        """Add the chains' tensors up pairwise, and divide the sum for a mean."""
        meta = self.program.meta(ref)
        parts = [self._ref(ref, chain) for chain in range(self.count)]
        level = 0
        while len(parts) > 1:
            level += 1
            joined = []
            for at in range(0, len(parts) - 1, 2):
                meta_op = f"{output.name}.total{level}"
                call = Call(
                    "aten.add.Tensor",
                    (parts[at], parts[at + 1]),
                    {},
                    (meta,),
                    False,
                    f"{meta_op}[{at // 2}]",
                    meta_op=meta_op,
                    tile=(at // 2,),
                )
                joined.append(Ref(self._add(call)))
            parts = joined + parts[len(joined) * 2 :]
        if how == "sum":
            return parts[0]
        call = Call(
            "aten.mul.Tensor", (parts[0], 1.0 / self.count), {}, (meta,), False, output.name
        )
        return Ref(self._add(call))


def _moved(part: Slices, axis: int, by: int) -> Slices:
    return tuple(
        (low + by, high + by) if at == axis else (low, high) for at, (low, high) in enumerate(part)
    )
