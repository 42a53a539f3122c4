"""Which block of a value holds a block of a view of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from doppler.graph.workloads.program import View

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Covering:
    """The smallest block of the source that a reshape turns into (more than) the wanted block.

    Attributes
    ----------
    ranges : tuple of (int, int)
        The block in the source's axes.
    shape : tuple of int
        What the block is reshaped to.
    slices : tuple of (int, int)
        The wanted part of the reshaped block.
    """

    ranges: tuple[Range, ...]
    shape: tuple[int, ...]
    slices: tuple[Range, ...]

    @property
    def exact(self) -> bool:
        """Whether the reshaped block is the wanted block, with nothing to cut off."""
        return all(part == (0, size) for part, size in zip(self.slices, self.shape, strict=True))


def covering(view: View, block: Sequence[Range]) -> Covering:
    """Find the block of ``view.source`` that covers a block of the view."""
    ranges: list[Range] = []
    shape: list[int] = []
    slices: list[Range] = []
    at = 0
    for before, after in view.groups:
        wanted = block[at : at + len(after)]
        at += len(after)
        if len(before) == 1:
            part, extents, cut = _split(after, wanted)
            ranges.append(part)
            shape.extend(extents)
            slices.extend(cut)
        else:
            box, start = _merge(before, wanted[0])
            extent = 1
            for low, high in box:
                extent *= high - low
            ranges.extend(box)
            shape.append(extent)
            slices.append((start, start + wanted[0][1] - wanted[0][0]))
    return Covering(tuple(ranges), tuple(shape), tuple(slices))


def _split(
    sizes: Sequence[int], wanted: Sequence[Range]
) -> tuple[Range, tuple[int, ...], tuple[Range, ...]]:
    """Range of the one source axis, extents of its reshape, and the part to keep."""
    (low, high), rest = wanted[0], wanted[1:]
    if not rest:
        return (low, high), (high - low,), ((0, high - low),)
    stride = 1
    for size in sizes[1:]:
        stride *= size
    if high - low == 1:
        (start, stop), extents, cut = _split(sizes[1:], rest)
        return (low * stride + start, low * stride + stop), (1, *extents), ((0, 1), *cut)
    return (low * stride, high * stride), (high - low, *sizes[1:]), ((0, high - low), *rest)


def _merge(sizes: Sequence[int], wanted: Range) -> tuple[tuple[Range, ...], int]:
    """Box in the source axes, and where the wanted range starts in the flattened box."""
    low, high = wanted
    if len(sizes) == 1:
        return ((low, high),), 0
    stride = 1
    for size in sizes[1:]:
        stride *= size
    first, last = low // stride, -(-high // stride)
    if last - first == 1:
        box, start = _merge(sizes[1:], (low - first * stride, high - first * stride))
        return ((first, last), *box), start
    return ((first, last), *((0, size) for size in sizes[1:])), low - first * stride
