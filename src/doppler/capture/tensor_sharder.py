"""Splitting the calls of a program: which, along what, and the calls that each becomes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from doppler.capture.costs import flops
from doppler.capture.lookahead import CONCATENATIONS, RANGES, Lookahead, sections
from doppler.capture.program import Call, Program, Ref, TensorMeta, refs_in
from doppler.capture.schemas import Given, ResultShapes, unbind
from doppler.capture.sharding_rules import AxisSignatures, operator
from doppler.capture.signatures import Axes, AxisSignature
from doppler.capture.tiled_values import LAYOUTS, Values, block


@dataclass(frozen=True)
class Pays:
    """What a chain of split calls must at least bring, and what may be split.

    Attributes
    ----------
    flops : float
        FLOPs of the split calls of a chain.
    intensity : float
        FLOPs for each byte that is gathered, added or cut out because of it.
    share : float
        The same, as a share of those of the whole program.
    table_bytes : int
        Size from which on the table of an embedding is split, to lie on several devices.
    heads, linear, experts : bool
        Attention by heads; products with a weight; products with stacked weights along the stack.
    """

    flops: float = 1e8
    intensity: float = 64.0
    share: float = 2e-4
    table_bytes: int = 64 << 20
    heads: bool = True
    linear: bool = True
    experts: bool = True


@dataclass(frozen=True, slots=True)
class TensorSplit:
    """How one call was split.

    Attributes
    ----------
    name, op, module : str
        Of the call before sharding.
    how : {"output", "contracted", "heads", "experts", "batch", "table"}
        Along what.
    tiles : int
        Number of calls that it became.
    flops : float
        Of all of them.
    """

    name: str
    op: str
    module: str
    how: str
    tiles: int
    flops: float


@dataclass(frozen=True, slots=True)
class Choice:
    """A label along which to split a call, and the cuts between its tiles."""

    label: str
    cuts: tuple[int, ...]
    how: str
    seed: bool = False
    sections: tuple[int, ...] = ()


class Sharder:
    """One pass over a program, in which every call is split or left.

    Attributes
    ----------
    values : Values
        Of the new program.
    splits : list of TensorSplit
    seeds : list of int
        Positions of the calls that whole values are split by.
    """

    def __init__(
        self,
        program: Program,
        ways: int,
        pays: Pays,
        signatures: AxisSignatures,
        ahead: Lookahead,
        shapes: ResultShapes,
    ) -> None:
        self.old = program
        self.ways = ways
        self.pays = pays
        self.signatures = signatures
        self.ahead = ahead
        self.shapes = shapes
        self.values = Values(program, signatures, shapes)
        self.held = self.values.held
        self.splits: list[TensorSplit] = []
        self.seeds: list[int] = []
        self.chains: dict[int, int] = {}
        self.flops: dict[int, float] = defaultdict(float)

    def run(self, denied: set[int]) -> None:
        """Take one call after the other; those denied split no whole values."""
        for position, call in enumerate(self.old.calls):
            if self.values.keep_lazy(position) or self.take(position, call):
                continue
            choice = self.choose(position, call, position in denied)
            if choice is None or not self.split(position, call, choice):
                self.values.leave(position)

    def chain(self, position: int) -> int:
        """Find the call that stands for the whole chain of a call."""
        while self.chains.setdefault(position, position) != position:
            self.chains[position] = self.chains[self.chains[position]]
            position = self.chains[position]
        return position

    def losing(self) -> set[int]:
        """Find the calls that start chains which do not pay."""
        done: dict[int, float] = defaultdict(float)
        moved: dict[int, float] = defaultdict(float)
        tables = set()
        whole = sum(flops(call, self.old) for call in self.old.calls)
        least = max(self.pays.flops, self.pays.share * whole)
        for position, work in self.flops.items():
            done[self.chain(position)] += work
        for position, size in self.values.moved.items():
            moved[self.chain(position)] += size
        for seed in self.seeds:
            if (found := self.signatures.find(seed)) and found.kind == "table":
                tables.add(self.chain(seed))
        return {
            seed
            for seed in self.seeds
            if (root := self.chain(seed)) not in tables
            and (done[root] < least or done[root] < self.pays.intensity * moved[root])
        }

    def take(self, position: int, call: Call) -> bool:
        """Take a call without a choice: of partial sums, or where tiles stay as they are."""
        kind = operator(call)
        refs = list(dict.fromkeys(call.refs()))
        if refs and all(self.held[ref].partial for ref in refs):
            return self.take_sums(position, call, kind, refs)
        if kind in RANGES:
            return self.take_sections(position, call, kind)
        if kind in CONCATENATIONS:
            return self.take_all(position, call)
        return False

    def take_sums(self, position: int, call: Call, kind: str, refs: list[Ref]) -> bool:
        """Lay out or add partial sums that nothing else reads, before they are added up."""
        held = [self.held[ref] for ref in refs]
        added = kind == "add" and len(refs) == 2 and call.args == tuple(refs) and not call.kwargs
        if (
            not (added or (kind in LAYOUTS and call.results[0] and not call.several))
            or any(len(self.ahead.users[ref]) > 1 for ref in refs)
            or any(meta is None or meta.dtype != held[0].meta.dtype for meta in call.results)
            or len({len(each.tiles) for each in held}) > 1
            or (added and any(each.meta != call.results[0] for each in held))
        ):
            return False
        chain = -1
        for each in held:
            chain = self.join(chain, each.chain)
        tiles = []
        for number in range(len(held[0].tiles)):
            one = {ref: each.tiles[number] for ref, each in zip(refs, held, strict=True)}
            tiles.append(self.values.emit(self.tile(call.with_refs(one.__getitem__), (number,))))
        ((_, ref, meta),) = self.values.results(position)
        self.values.hold(ref, meta, call, tuple(tiles), chain=chain)
        return True

    def tile(self, call: Call, place: tuple[int, ...]) -> Call:
        """Name a tile of a call."""
        name = self.values.fresh(f"{call.name}[{','.join(map(str, place))}]")
        return replace(call, name=name, meta_op=call.name, tile=place)

    def take_sections(self, position: int, call: Call, kind: str) -> bool:
        """Pass on the tiles of the sections that a call takes."""
        given = self.signatures.arguments(position)
        held = self.held[given["self"]]
        if not held.split or given["dim"] % len(held.meta.shape) != held.axis:
            return False
        bounds = sections(kind, given, held.meta.shape)
        if bounds is None or any(
            start >= stop or start not in held.cuts or stop not in held.cuts
            for start, stop in bounds
        ):
            return False
        for (_, ref, meta), (start, stop) in zip(
            self.values.results(position), bounds, strict=True
        ):
            first, last = held.cuts.index(start), held.cuts.index(stop)
            cuts = tuple(cut - start for cut in held.cuts[first : last + 1])
            tiles = held.tiles[first:last]
            self.values.hold(ref, meta, call, tiles, held.axis, cuts, held.chain)
        return True

    def take_all(self, position: int, call: Call) -> bool:
        """Put tiles beside one another, where they are concatenated along their axis."""
        given = self.signatures.arguments(position)
        refs = list(refs_in(given["tensors"]))
        (_, result, meta), *_ = self.values.results(position)
        axis = given["dim"] % len(meta.shape)
        if not any(self.held[ref].axis == axis for ref in refs) or any(
            len(self.held[ref].meta.shape) != len(meta.shape)
            or self.held[ref].meta.dtype != meta.dtype
            for ref in refs
        ):
            return False
        tiles: list[Ref] = []
        cuts, chain = [0], -1
        for ref in refs:
            held = self.held[ref]
            split = held.axis == axis
            tiles += held.tiles if split else (self.values.complete(ref),)
            own = held.cuts[1:] if split else (held.meta.shape[axis],)
            offset = cuts[-1]
            cuts += [offset + cut for cut in own]
            if held.chain >= 0 and split:
                chain = self.join(chain, held.chain)
        self.values.hold(result, meta, call, tuple(tiles), axis, tuple(cuts), chain)
        return True

    def join(self, first: int, second: int) -> int:
        """Make one chain of two; -1 is none."""
        if first < 0 or second < 0:
            return max(first, second)
        self.chains[self.chain(first)] = self.chain(second)
        return self.chain(second)

    def choose(self, position: int, call: Call, denied: bool) -> Choice | None:
        """Choose the label of a call along which most of what it reads is split already."""
        signature = self.signatures.find(position)
        if signature is None:
            return None
        operands = self.signatures.operands(position)
        split = [(ref, labels) for ref, labels in operands if self.held[ref].split]
        if not split:
            return (
                None if denied or not signature.kind else self.start(position, signature, operands)
            )
        votes: dict[str, int] = defaultdict(int)
        cuts: dict[str, tuple[int, ...]] = {}
        for ref, labels in split:
            held = self.held[ref]
            label = labels[held.axis]
            if label is None or any(cut % label[1] for cut in held.cuts):
                continue
            own = tuple(cut // label[1] for cut in held.cuts)
            if len(own) > len(cuts.get(label[0], ())):
                cuts[label[0]] = own
            votes[label[0]] += held.meta.bytes
        if not votes:
            return None
        label_ = max(votes, key=lambda name: votes[name])
        how = self.how(signature, label_, operands)
        if how == "heads" and not self.pays.heads:
            return None
        count = len(cuts[label_]) - 1
        size = sum(meta.bytes for meta in call.results if meta is not None)
        if label_ in signature.summed and size * count > votes[label_] * (count + 1):
            # To gather what it reads, for all to read, moves less than to add up what they make.
            return None if denied else self.start(position, signature, operands)
        if not signature.kind and label_ not in signature.summed:
            if size >= votes[label_] and not self.leads(position, signature, label_):
                return None
            # Cheap ones follow their tiles only if less is cut out for them than is gathered.
            lost = sum(
                self.held[ref].meta.bytes
                for ref, labels in dict(operands).items()
                if not (self.held[ref].weight or self.held[ref].source)
                and not self.along(ref, labels, label_)
                and any(axis and axis[0] == label_ for axis in labels)
            )
            if lost >= votes[label_]:
                return None
        return Choice(label_, cuts[label_], how)

    def leads(self, position: int, signature: AxisSignature, label: str) -> bool:
        """Whether tiles of what a call makes are of use to others."""
        for number, ref, _ in self.values.results(position):
            axis, unit = found_in(signature.results[number], label)
            if unit and self.ahead.leads(ref, axis):
                return True
        return False

    def along(self, ref: Ref, labels: Axes, label: str) -> bool:
        """Whether a value is in tiles along a label."""
        held = self.held[ref]
        axis = labels[held.axis] if held.split else None
        return axis is not None and axis[0] == label

    def how(
        self, signature: AxisSignature, label: str, operands: Sequence[tuple[Ref, Axes]]
    ) -> str:
        """Name a way of splitting."""
        if signature.kind in ("attention", "table"):
            return {"attention": "heads", "table": "table"}[signature.kind]
        if label in signature.summed:
            return "contracted"
        seen = [
            (ref, number)
            for ref, labels in operands
            for number, axis in enumerate(labels)
            if axis and axis[0] == label
        ]
        if any(self.held[ref].weight for ref, _ in seen):
            stack = any(
                self.held[ref].weight and len(self.held[ref].meta.shape) > 2 and axis == 0
                for ref, axis in seen
            )
            return "experts" if stack and signature.kind == "contraction" else "output"
        return "batch" if len(seen) > 1 else "output"

    def start(
        self, position: int, signature: AxisSignature, operands: Sequence[tuple[Ref, Axes]]
    ) -> Choice | None:
        """Choose how to split a call that reads whole values only; None if it should not be."""
        _, ref, _ = self.values.results(position)[0]
        for label, how in self.starts(signature, operands):
            axis, unit = found_in(signature.results[0], label)
            cuts, counts = self.ahead.cuts(ref, axis, unit, self.ways)
            if len(cuts) > 2:
                return Choice(label, cuts, how, seed=True, sections=counts)
        return None

    def starts(
        self, signature: AxisSignature, operands: Sequence[tuple[Ref, Axes]]
    ) -> Iterator[tuple[str, str]]:
        """Go through the labels along which a call may start to be split, the best first."""
        shown = {axis[0] for axis in signature.results[0] if axis}
        if signature.kind == "attention":
            if self.pays.heads and "heads" in shown:
                yield "heads", "heads"
            return
        for ref, labels in operands:
            held = self.held[ref]
            if not held.weight or len(labels) < 2:
                continue
            if signature.kind == "table":
                if held.meta.bytes >= self.pays.table_bytes:
                    yield "w", "table"
                continue
            # One of several weights in a stack: they are as many calls already.
            if self.pays.experts and held.stacked >= self.ways:
                continue
            elsewhere = {
                axis[0]
                for other, named in operands
                if other != ref and len(named) > 1
                for axis in filter(None, named)
            }
            ordered = [axis[0] if axis and axis[0] in shown else "" for axis in labels]
            stack = len(labels) > 2 and signature.kind == "contraction"
            if stack and ordered[0] and self.pays.experts:
                yield ordered[0], "experts"
            if self.pays.linear:
                own = [label for label in ordered[stack:] if label and label not in elsewhere]
                yield from ((label, "output") for label in own)

    def split(self, position: int, call: Call, choice: Choice) -> bool:
        """Make a call in tiles; False, and nothing done, where these would not be right."""
        signature = self.signatures.find(position)
        assert signature is not None
        made = self.tiles(position, call, signature, choice)
        if made is None:
            return False
        summed = choice.label in signature.summed
        chain = position if choice.seed else -1
        for ref, labels in self.signatures.operands(position):
            if self.along(ref, labels, choice.label):
                chain = self.join(chain, self.held[ref].chain)
        if choice.seed:
            self.seeds.append(position)
        if signature.kind:
            count, work = len(choice.cuts) - 1, flops(call, self.old)
            self.flops[chain] += work
            entry = TensorSplit(call.name, call.op, call.module, choice.how, count, work)
            self.splits.append(entry)
        new = []
        coordinates = places(len(made), choice.sections)
        for (op, given, results), place in zip(made, coordinates, strict=True):
            mine = {name: self.values.resolve(value, chain) for name, value in given.items()}
            args, kwargs = unbind(op, mine)
            tile = replace(call, op=op, args=args, kwargs=kwargs, results=results)
            new.append(self.values.emit(self.tile(tile, place)))
        for number, ref, meta in self.values.results(position):
            tiles = tuple(replace(value, item=ref.item) for value in new)
            axis, unit = found_in(signature.results[number], choice.label)
            if unit:
                cuts = tuple(cut * unit for cut in choice.cuts)
                self.values.hold(ref, meta, call, tiles, axis, cuts, chain)
                if signature.kind == "table" and not self.ahead.keeps(ref, axis):
                    self.values.gather(ref)
            else:
                self.values.hold(ref, meta, call, tiles if summed else tiles[:1], chain=chain)
        return True

    def tiles(
        self, position: int, call: Call, signature: AxisSignature, choice: Choice
    ) -> list[tuple[str, Given, tuple[TensorMeta, ...]]] | None:
        """Operator, arguments (tensors as pieces) and results of each tile; None if any is odd."""
        metas = [meta for meta in call.results if meta is not None]
        made = []
        for number, (start, stop) in enumerate(pairwise(choice.cuts)):
            bounds = {choice.label: (start, stop, choice.cuts[-1])}
            mine = self.values.pieced(position, signature, bounds)
            shapes = [
                block(meta.shape, labels, bounds)
                for labels, meta in zip(signature.results, metas, strict=True)
            ]
            if mine is None or None in shapes:
                return None
            results = tuple(
                TensorMeta(tuple(b - a for a, b in slices or ()), meta.dtype)
                for slices, meta in zip(shapes, metas, strict=True)
            )
            op = signature.op or call.op
            if signature.fit:
                mine = signature.fit(mine, results[0].shape)
            if number and choice.label in signature.summed and signature.bare:
                bare, mine = signature.bare(mine)
                op = bare or op
            sizes = {name: self.values.sized(value) for name, value in mine.items()}
            if self.shapes.find(op, *unbind(op, sizes)) != results:
                return None
            made.append((op, mine, results))
        return made


def found_in(labels: Axes, label: str) -> tuple[int, int]:
    """Axis that has a label, and how many entries each step takes; 0 where none has it."""
    for number, axis in enumerate(labels):
        if axis and axis[0] == label:
            return number, axis[1]
    return -1, 0


def places(tiles: int, counts: Sequence[int]) -> list[tuple[int, ...]]:
    """Coordinates of tiles: which section, and which of it, where there are several sections."""
    if len(counts) < 2:
        return [(number,) for number in range(tiles)]
    return [(part, number) for part, count in enumerate(counts) for number in range(count)]
