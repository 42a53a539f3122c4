"""Looking ahead: which cuts of a value suit the calls that read it."""

from __future__ import annotations

import math
from collections import defaultdict

from doppler.capture.program import Program, Ref
from doppler.capture.schemas import Given
from doppler.capture.sharding_rules import AxisSignatures, operator

#: Operators that take a part along one axis.
SECTIONS = frozenset(["select", "slice", "split", "split_with_sizes", "chunk", "unbind"])

#: Those of them that keep the axis.
RANGES = SECTIONS - {"select", "unbind"}

#: Operators that put tensors beside one another along one axis.
CONCATENATIONS = frozenset(["cat", "concat", "concatenate"])

# Calls in a row that are looked at: those of a block of a model, not those of all of it.
DEPTH = 100

# Tiles that differ by a step must be so much faster than fewer that are equal.
SOONER = 1.2

Section = tuple[int, int, int]


def sections(kind: str, given: Given, shape: tuple[int, ...]) -> list[tuple[int, int]] | None:
    """Bounds along ``dim`` of what a call takes; None where they are no plain sections."""
    extent = shape[given["dim"] % len(shape)]
    if kind == "select":
        start = given["index"] % extent
        return [(start, start + 1)]
    if kind == "unbind":
        return [(start, start + 1) for start in range(extent)]
    if kind == "slice":
        start, stop = given["start"] or 0, given["end"]
        stop = extent if stop is None else stop
        start, stop, step = slice(start, stop, given["step"]).indices(extent)
        return [(start, stop)] if step == 1 and start < stop else None
    if kind == "split_with_sizes" or isinstance(given.get("split_size"), tuple):
        sizes = given.get("split_sizes") or given["split_size"]
    elif kind == "split":
        size = given["split_size"]
        sizes = [min(size, extent - start) for start in range(0, extent, max(1, size))]
    else:
        size = -(-extent // given["chunks"])
        sizes = [min(size, extent - start) for start in range(0, extent, max(1, size))]
    bounds, start = [], 0
    for size in sizes:
        bounds.append((start, start + size))
        start += size
    return bounds


def tiles_of(steps: int, ways: int) -> int:
    """Count the tiles of so many steps: equal ones, unless others are done a fifth sooner."""
    count = min(ways, steps)
    even = max(count for count in range(1, count + 1) if steps % count == 0)
    longest = -(-steps // count)
    return count if steps / longest >= SOONER * even else even


class Lookahead:
    """What the tiles of values must suit, by value and axis."""

    def __init__(self, program: Program, signatures: AxisSignatures) -> None:
        self.program = program
        self.signatures = signatures
        self.users: dict[Ref, list[int]] = defaultdict(list)
        self.known: dict[tuple[Ref, int], list[Section]] = {}
        self.useful: dict[tuple[Ref, int], bool] = {}
        self.kept: dict[tuple[Ref, int], bool] = {}
        self.returned = {ref for output in program.outputs for ref, _ in output.pieces}
        for position, call in enumerate(program.calls):
            for ref in dict.fromkeys(call.refs()):
                self.users[ref].append(position)

    def cuts(
        self, ref: Ref, axis: int, unit: int, ways: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Cut an axis into about equal tiles that suit what follows.

        Returns
        -------
        tuple of int
            The cuts, in steps of ``unit``; only the ends, where no number up to ``ways`` suits.
        tuple of int
            Tiles of each of the sections that are taken of it.
        """
        extent = self.program.meta(ref).shape[axis]
        cuts, counts = [0], []
        for start, stop, steps in self.sections(ref, axis):
            if start % unit or (stop - start) % unit:
                return (0, extent // unit), (1,)
            length = (stop - start) // unit
            even = max(1, math.gcd(steps, length))
            count = tiles_of(even, ways)
            cuts += [
                start // unit + even * tile // count * (length // even)
                for tile in range(1, count + 1)
            ]
            counts.append(count)
        if all(count == 1 for count in counts):
            return (0, extent // unit), (1,)
        return tuple(cuts), tuple(counts)

    def sections(self, ref: Ref, axis: int, left: int = DEPTH) -> list[Section]:
        """Start, stop and number of equal steps of each section that is taken of an axis."""
        extent = self.program.meta(ref).shape[axis]
        if left == 0:
            return [(0, extent, extent)]
        if (ref, axis) not in self.known:
            self.known[ref, axis] = self.find(ref, axis, extent, left)
        return self.known[ref, axis]

    def find(self, ref: Ref, axis: int, extent: int, left: int) -> list[Section]:
        """Find the sections of an axis in the calls that read it."""
        steps = extent
        for position in self.users[ref]:
            kind = operator(self.program.calls[position])
            if kind in SECTIONS and self.taken(position, ref) == axis:
                parts = self.parts(position, ref, kind, axis, extent, left)
                if parts:
                    return parts
                continue
            signature = self.signatures.find(position)
            if signature is None:
                continue
            label = dict(reversed(self.signatures.operands(position)))[ref][axis]
            if label is None:
                continue
            steps = math.gcd(steps, extent // label[1])
            for number, (result, shape) in enumerate(self.results(position)):
                names = [name and name[0] for name in signature.results[number]]
                if label[0] not in names:
                    continue
                place = names.index(label[0])
                found = self.sections(result, place, left - 1)
                if len(found) == 1:
                    steps = math.gcd(steps, found[0][2])
                elif len(self.users[ref]) == 1 and shape[place] == extent:
                    return found
        return [(0, extent, steps)]

    def leads(self, ref: Ref, axis: int, left: int = DEPTH) -> bool:
        """Whether some product, or the caller, has a use for tiles of a value along an axis."""
        key = (ref, axis)
        if key not in self.useful:
            self.useful[key] = ref in self.returned or (
                left > 0
                and any(self.uses(ref, axis, position, left) for position in self.users[ref])
            )
        return self.useful[key]

    def keeps(self, ref: Ref, axis: int, left: int = DEPTH) -> bool:
        """Whether all that reads a value has a use for its tiles along an axis."""
        key = (ref, axis)
        if key not in self.kept:
            self.kept[key] = left > 0 and all(
                self.uses(ref, axis, position, left, every=True) for position in self.users[ref]
            )
        return self.kept[key]

    def uses(self, ref: Ref, axis: int, position: int, left: int, *, every: bool = False) -> bool:
        """Whether a call keeps tiles of what it reads up to a product."""
        signature = self.signatures.find(position)
        if signature is None:
            return False
        label = dict(reversed(self.signatures.operands(position)))[ref][axis]
        places = []
        for number, (result, _) in enumerate(self.results(position)):
            names = [name and name[0] for name in signature.results[number]]
            if label and label[0] in names:
                places.append((result, names.index(label[0])))
        if operator(self.program.calls[position]) in RANGES | CONCATENATIONS and not label:
            places = [(result, axis) for result, _ in self.results(position)]
        elif label is None or signature.kind or label[0] in signature.summed:
            return label is not None
        test = self.keeps if every else self.leads
        return (all if every else any)(test(*place, left - 1) for place in places)

    def taken(self, position: int, ref: Ref) -> int:
        """Axis along which a call takes a part."""
        dim: int = self.signatures.arguments(position)["dim"]
        return dim % len(self.program.meta(ref).shape)

    def results(self, position: int) -> list[tuple[Ref, tuple[int, ...]]]:
        """Results of a call, and their shapes."""
        call = self.program.calls[position]
        value = len(self.program.inputs) + position
        return [
            (Ref(value, item if call.several else -1), meta.shape)
            for item, meta in enumerate(call.results)
            if meta is not None
        ]

    def parts(
        self, position: int, ref: Ref, kind: str, axis: int, extent: int, left: int
    ) -> list[Section]:
        """Sections that a call takes, or that several slices do, if together they are all."""
        bounds: dict[tuple[int, int], Ref] = {}
        for other in self.users[ref] if kind == "slice" else [position]:
            if operator(self.program.calls[other]) != kind or self.taken(other, ref) != axis:
                continue
            shape = self.program.meta(ref).shape
            found = sections(kind, self.signatures.arguments(other), shape) or []
            for bound, (result, _) in zip(found, self.results(other), strict=False):
                bounds[bound] = result
        ordered = sorted(bounds)
        starts, stops = [start for start, _ in ordered], [stop for _, stop in ordered]
        if kind not in RANGES or [0, *stops] != [*starts, extent]:
            return []
        taken = []
        for start, stop in ordered:
            inner = self.sections(bounds[start, stop], axis, left - 1)
            taken.append((start, stop, math.gcd(*(steps for *_, steps in inner))))
        return taken
