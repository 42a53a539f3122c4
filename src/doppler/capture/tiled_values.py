"""The values of a program in the forms that its tiles need: whole, in tiles, in blocks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from doppler.capture.lookahead import RANGES, SECTIONS, sections
from doppler.capture.program import (
    Argument,
    Call,
    Input,
    Output,
    Program,
    Ref,
    Slices,
    TensorMeta,
    replace_refs,
    whole,
)
from doppler.capture.schemas import Given, ResultShapes, unbind
from doppler.capture.sharding_rules import AxisSignatures, operator
from doppler.capture.signatures import Axes, AxisSignature

# Calls are numbered from here until the number of inputs is known.
CALLS = 1 << 40

# Operators that only lay out or convert what they read: of a weight, each device makes its part.
LAYOUTS = frozenset(
    ["t", "transpose", "permute", "numpy_T", "unsqueeze", "squeeze", "view", "reshape"]
)
LAYOUTS |= {"_unsafe_view", "_to_copy", "detach", "alias", "clone", "contiguous", "expand"}


@dataclass(frozen=True, slots=True)
class Piece:
    """A block of a value of the first program, as an argument of a tile."""

    ref: Ref
    slices: Slices


@dataclass(frozen=True, slots=True)
class WeightSection:
    """Where a value made of weights comes from: one section of another, along an axis."""

    base: Ref
    axis: int
    start: int
    stop: int
    kept: bool


@dataclass
class Held:
    """A value of the first program, in the forms in which the new one has it.

    Attributes
    ----------
    meta : TensorMeta
    name, module : str
        Of the call that computes it.
    complete : Ref, or None
        The whole value.
    axis : int
        Along which ``tiles`` make it up; -1: they add up to it.
    cuts : tuple of int
        Where along the axis each tile starts, and where the last one ends.
    tiles : tuple of Ref
    chain : int
        A call of the chain that split it.
    source : Input, or None
        What of a tensor it is, of an input of the program.
    learned : bool
        Whether that is the model's own.
    lazy : int
        The call that lays it out, of weights; -1: none.
    part : WeightSection, or None
        Where it comes from, of a section of weights.
    stacked : int
        How many like it there are, of one of a stack of weights.
    blocks : dict
        Blocks of it that were made, by their slices.
    """

    meta: TensorMeta
    name: str
    module: str
    complete: Ref | None = None
    axis: int = -1
    cuts: tuple[int, ...] = ()
    tiles: tuple[Ref, ...] = ()
    chain: int = -1
    source: Input | None = None
    learned: bool = False
    lazy: int = -1
    part: WeightSection | None = None
    stacked: int = 0
    blocks: dict[Slices, Ref] = field(default_factory=dict)

    @property
    def weight(self) -> bool:
        """Whether each device can make its own block of it, from blocks of what is learned."""
        return self.learned or self.lazy >= 0 or self.part is not None

    @property
    def partial(self) -> bool:
        """Whether it is in partial sums that have not been added up."""
        return self.axis < 0 and bool(self.tiles) and self.complete is None

    @property
    def split(self) -> bool:
        """Whether it is in tiles along an axis."""
        return self.axis >= 0


class Values:
    """The values of a program as a new one has them, and the calls that make these.

    Attributes
    ----------
    held : dict of Ref to Held
        By the program's own values.
    calls : list of Call
        Of the new program so far.
    moved : dict of int to float
        Bytes that are gathered, added or cut out, by chain.
    """

    def __init__(self, program: Program, signatures: AxisSignatures, shapes: ResultShapes) -> None:
        self.old = program
        self.signatures = signatures
        self.shapes = shapes
        self.held: dict[Ref, Held] = {}
        self.inputs: dict[tuple[str, Slices], Ref] = {}
        self.input_list: list[Input] = []
        self.calls: list[Call] = []
        self.names = {call.name for call in program.calls}
        self.numbers: dict[str, int] = defaultdict(int)
        self.moved: dict[int, float] = defaultdict(float)
        for value, read in enumerate(program.inputs):
            learned = program.sources[read.source].role != "input"
            self.held[Ref(value)] = Held(read.meta, read.source, "", source=read, learned=learned)

    def results(self, position: int) -> list[tuple[int, Ref, TensorMeta]]:
        """Results of a call: where among them, as a value, and its shape."""
        call = self.old.calls[position]
        value = len(self.old.inputs) + position
        return [
            (item, Ref(value, item if call.several else -1), meta)
            for item, meta in enumerate(call.results)
            if meta is not None
        ]

    def leave(self, position: int) -> None:
        """Make a call as it was, of whole values."""
        call = self.old.calls[position]
        new = self.emit(call.with_refs(self.complete))
        for _, ref, meta in self.results(position):
            self.hold(ref, meta, call, (replace(new, item=ref.item),))

    def hold(
        self,
        ref: Ref,
        meta: TensorMeta,
        call: Call,
        tiles: tuple[Ref, ...],
        axis: int = -1,
        cuts: tuple[int, ...] = (),
        chain: int = -1,
    ) -> None:
        """Note the tiles of a value; a single one is the value."""
        held = Held(meta, call.name, call.module, chain=chain)
        if len(tiles) == 1:
            held.complete = tiles[0]
        else:
            held.axis, held.cuts, held.tiles = axis, cuts, tiles
        self.held[ref] = held

    def keep_lazy(self, position: int) -> bool:
        """Put off what only lays out weights: so each device makes the part that it needs."""
        call = self.old.calls[position]
        kind = operator(call)
        refs = list(call.refs())
        if not refs or not all(self.held[ref].weight for ref in refs):
            return False
        results = self.results(position)
        if kind in LAYOUTS and len(results) == 1 and not call.several:
            _, ref, meta = results[0]
            stacked = max(self.held[read].stacked for read in refs)
            self.held[ref] = Held(meta, call.name, call.module, lazy=position, stacked=stacked)
            return True
        if kind not in SECTIONS or len(refs) != 1:
            return False
        given = self.signatures.arguments(position)
        shape = self.held[refs[0]].meta.shape
        bounds = sections(kind, given, shape)
        if bounds is None or len(bounds) != len(results):
            return False
        axis = given["dim"] % len(shape)
        kept = kind in RANGES
        stacked = 0 if kept else shape[axis]
        for (_, ref, meta), (start, stop) in zip(results, bounds, strict=True):
            part = WeightSection(refs[0], axis, start, stop, kept)
            name = call.name if len(results) == 1 else f"{call.name}.{ref.item}"
            self.held[ref] = Held(meta, name, call.module, part=part, stacked=stacked)
        return True

    def pieced(
        self, position: int, signature: AxisSignature, bounds: dict[str, tuple[int, int, int]]
    ) -> Given | None:
        """Put blocks in the place of the tensors of a call; None where one has none such."""
        given = self.signatures.arguments(position)
        result = {}
        for name, argument in given.items():
            labels = iter(signature.operands.get(name, ()))
            odd = False

            def piece(ref: Ref, labels: Iterator[Axes] = labels) -> Argument:
                nonlocal odd
                meta = self.old.meta(ref)
                found = block(meta.shape, next(labels, (None,) * len(meta.shape)), bounds)
                odd = odd or found is None
                return Piece(ref, found or whole(meta.shape))

            result[name] = replace_refs(argument, piece)
            if odd:
                return None
        return result

    def resolve(self, argument: Argument, chain: int) -> Argument:
        """Put tensors of the new program in the place of pieces."""
        if isinstance(argument, Piece):
            return self.block(argument.ref, argument.slices, chain)
        if isinstance(argument, tuple):
            return tuple(self.resolve(entry, chain) for entry in argument)
        return argument

    def sized(self, argument: Argument) -> Argument:
        """Put shapes in the place of pieces."""
        if isinstance(argument, Piece):
            shape = tuple(stop - start for start, stop in argument.slices)
            return replace(self.old.meta(argument.ref), shape=shape)
        if isinstance(argument, tuple):
            return tuple(map(self.sized, argument))
        return argument

    def complete(self, ref: Ref) -> Ref:
        """Have a value whole: gather its tiles or add its partial sums, once."""
        held = self.held[ref]
        if held.complete is None:
            if held.source is not None:
                held.complete = self.input(held.source)
            elif held.part is not None or held.lazy >= 0:
                held.complete = self.block(ref, whole(held.meta.shape), -1)
            elif held.split:
                self.moved[held.chain] += held.meta.bytes
                args = (held.tiles, held.axis)
                name = self.fresh(f"{held.name}.gather")
                held.complete = self.emit(
                    Call("aten.cat.default", args, {}, (held.meta,), False, name, held.module)
                )
            else:
                held.complete = self.sum(held)
        return held.complete

    def gather(self, ref: Ref) -> None:
        """Have a value whole, and no longer in tiles."""
        self.complete(ref)
        held = self.held[ref]
        held.axis, held.tiles, held.cuts = -1, (), ()

    def sum(self, held: Held) -> Ref:
        """Add partial sums, by a balanced tree."""
        self.moved[held.chain] += held.meta.bytes * len(held.tiles)
        left = list(held.tiles)
        while len(left) > 1:
            added = [
                self.add(held, "aten.add.Tensor", pair, held.meta, f"{held.name}.sum")
                for pair in zip(left[::2], left[1::2], strict=False)
            ]
            left = added + left[2 * len(added) :]
        return left[0]

    def block(self, ref: Ref, slices: Slices, chain: int) -> Ref:
        """Have a block of a value: a tile, a part of one, or what its own part of weights gives."""
        held = self.held[ref]
        everything = slices == whole(held.meta.shape)
        if everything and (held.complete is not None or not (held.lazy >= 0 or held.part)):
            return self.complete(ref)
        if slices not in held.blocks:
            held.blocks[slices] = self.find_block(ref, held, slices, chain)
        return held.blocks[slices]

    def find_block(self, ref: Ref, held: Held, slices: Slices, chain: int) -> Ref:
        """Make a block of a value from the least that it is in."""
        if held.source is not None:
            return self.input(sub_block(held.source, slices))
        if held.part is not None:
            return self.find_part(held, held.part, slices, chain)
        if held.lazy >= 0:
            made = self.laid_out(held, slices, chain)
            return made if made is not None else self.slice(held, self.complete(ref), slices)
        if held.split:
            start, stop = slices[held.axis]
            for tile, (first, last) in zip(held.tiles, pairwise(held.cuts), strict=True):
                if first <= start and stop <= last:
                    moved = list(slices)
                    moved[held.axis] = (start - first, stop - first)
                    shape = list(held.meta.shape)
                    shape[held.axis] = last - first
                    if tuple(moved) == whole(tuple(shape)):
                        return tile
                    return self.slice(held, tile, tuple(moved), tuple(shape))
        self.moved[chain] += (
            math.prod(b - a for a, b in slices) * held.meta.bytes / max(1, held.meta.elements)
        )
        return self.slice(held, self.complete(ref), slices)

    def find_part(self, held: Held, part: WeightSection, slices: Slices, chain: int) -> Ref:
        """Cut a block of a section of weights out of these."""
        inner = list(slices)
        if part.kept:
            start, stop = inner[part.axis]
            inner[part.axis] = (part.start + start, part.start + stop)
        else:
            inner.insert(part.axis, (part.start, part.stop))
        base = self.block(part.base, tuple(inner), chain)
        if part.kept:
            return base
        meta = TensorMeta(tuple(b - a for a, b in slices), held.meta.dtype)
        return self.add(held, "aten.select.int", (base, part.axis, 0), meta, held.name)

    def laid_out(self, held: Held, slices: Slices, chain: int) -> Ref | None:
        """Lay out a block of weights; None where it needs more than a block of them."""
        call = self.old.calls[held.lazy]
        if slices == whole(held.meta.shape):
            return self.emit(call.with_refs(self.complete))
        signature = self.signatures.find(held.lazy)
        if signature is None:
            return None
        bounds = {}
        for axis, (start, stop), extent in zip(
            signature.results[0], slices, held.meta.shape, strict=True
        ):
            if (start, stop) == (0, extent):
                continue
            if axis is None or start % axis[1] or stop % axis[1]:
                return None
            bounds[axis[0]] = (start // axis[1], stop // axis[1], extent // axis[1])
        given = self.pieced(held.lazy, signature, bounds)
        if given is None:
            return None
        meta = TensorMeta(tuple(b - a for a, b in slices), held.meta.dtype)
        if signature.fit:
            given = signature.fit(given, meta.shape)
        op = signature.op or call.op
        args, kwargs = unbind(op, {name: self.sized(value) for name, value in given.items()})
        if self.shapes.find(op, args, kwargs) != (meta,):
            return None
        args, kwargs = unbind(op, {key: self.resolve(v, chain) for key, v in given.items()})
        return self.add(held, op, args, meta, held.name, kwargs)

    def slice(
        self, held: Held, base: Ref, slices: Slices, shape: tuple[int, ...] | None = None
    ) -> Ref:
        """Cut a block out of a tensor of the new program."""
        now = list(shape or held.meta.shape)
        for axis, (start, stop) in enumerate(slices):
            if (start, stop) != (0, now[axis]):
                now[axis] = stop - start
                meta = TensorMeta(tuple(now), held.meta.dtype)
                args = (base, axis, start, stop)
                base = self.add(held, "aten.slice.Tensor", args, meta, f"{held.name}.slice")
        return base

    def add(
        self,
        held: Held,
        op: str,
        args: tuple[Argument, ...],
        meta: TensorMeta,
        meta_op: str,
        kwargs: dict[str, Argument] | None = None,
    ) -> Ref:
        """Add a call that the first program does not have, numbered among its like."""
        place = (self.numbers[meta_op],)
        self.numbers[meta_op] += 1
        name = self.fresh(f"{meta_op}[{place[0]}]")
        return self.emit(
            Call(op, args, kwargs or {}, (meta,), False, name, held.module, meta_op, place)
        )

    def fresh(self, name: str) -> str:
        """Make a name unique."""
        found, number = name, 1
        while found in self.names:
            number += 1
            found = f"{name}~{number}"
        return found

    def emit(self, call: Call) -> Ref:
        """Add a call to the new program."""
        self.names.add(call.name)
        self.calls.append(call)
        return Ref(CALLS + len(self.calls) - 1)

    def input(self, read: Input) -> Ref:
        """Read a block of a source, once."""
        key = (read.source, read.slices)
        if key not in self.inputs:
            self.inputs[key] = Ref(len(self.input_list))
            self.input_list.append(read)
        return self.inputs[key]

    def pieces(self, output: Output) -> Iterator[tuple[Ref, Slices]]:
        """Pieces of an output: of a value in tiles, these; whoever reads it puts it together."""
        for ref, slices in output.pieces:
            held = self.held[ref]
            if not held.split or held.complete is not None:
                yield self.complete(ref), slices
                continue
            offset = slices[held.axis][0]
            for tile, (start, stop) in zip(held.tiles, pairwise(held.cuts), strict=True):
                place = list(slices)
                place[held.axis] = (offset + start, offset + stop)
                yield tile, tuple(place)

    def program(self) -> Program:
        """Put the new program together, its values numbered as they should be."""
        outputs = [(output, list(self.pieces(output))) for output in self.old.outputs]
        used = {ref.value for call in self.calls for ref in call.refs()}
        used |= {ref.value for _, pieces in outputs for ref, _ in pieces}
        kept = [number for number in range(len(self.input_list)) if number in used]
        number_of = {old: new for new, old in enumerate(kept)}

        def final(ref: Ref) -> Ref:
            value = ref.value
            new = value - CALLS + len(kept) if value >= CALLS else number_of[value]
            return Ref(new, ref.item)

        return replace(
            self.old,
            inputs=tuple(self.input_list[number] for number in kept),
            calls=tuple(call.with_refs(final) for call in self.calls),
            outputs=tuple(
                replace(output, pieces=tuple((final(ref), at) for ref, at in pieces))
                for output, pieces in outputs
            ),
        )


def block(
    shape: tuple[int, ...], labels: Axes, bounds: dict[str, tuple[int, int, int]]
) -> Slices | None:
    """Slices of a tensor for steps of labels; None where its extent does not suit theirs."""
    slices = []
    for extent, axis in zip(shape, labels, strict=True):
        if axis is None or axis[0] not in bounds:
            slices.append((0, extent))
            continue
        start, stop, steps = bounds[axis[0]]
        if steps * axis[1] != extent:
            return None
        slices.append((start * axis[1], stop * axis[1]))
    return tuple(slices)


def sub_block(read: Input, slices: Slices) -> Input:
    """Take a block of a block of a source."""
    inner = tuple((a + c, a + d) for (a, _), (c, d) in zip(read.slices, slices, strict=True))
    shape = tuple(stop - start for start, stop in slices)
    return replace(read, slices=inner, meta=replace(read.meta, shape=shape))
