"""A network of inception modules: parallel branches of different length."""

from __future__ import annotations

from dataclasses import dataclass, field

from doppler.errors import GraphError
from doppler.graph.graph import Graph
from doppler.graph.workloads.operators import build, check_count
from doppler.graph.workloads.program import check_size

# A module halves the resolution and doubles the channels after each third of the modules.
_STAGES = 3
_KERNEL = 7


def inception(
    modules: int = 12,
    branches: int = 6,
    *,
    channels: int = 384,
    resolution: int = 32,
    batch: int = 32,
    dtype_bytes: int = 4,
) -> Graph:
    """Make the graph of an inception-like network. It has modeled costs, no executable ops.

    After Szegedy et al., "Rethinking the Inception Architecture for Computer Vision" (CVPR 2016):
    each module has parallel branches that a concatenation joins. Branch 0 is a 1x1 convolution;
    branch ``i`` has ``i`` pairs of a 1x7 and a 7x1 convolution after its own; the last pools first,
    if there are more than two. After each third of the modules, the last aside, a pooling halves
    the resolution and the channels double. Activations and normalization are part of the
    convolution before.

    Parameters
    ----------
    modules, branches : int
        Modules one after the other, and branches of each.
    channels, resolution : int
        Of the first module; each branch has its share of the channels, at least one.
    batch : int
        Images.
    dtype_bytes : int
        Bytes of one element.

    Returns
    -------
    Graph
        Every op is a meta-op of its own.

    Raises
    ------
    GraphError
        On a size that is not a whole number >= 1, or more ops than a graph should have.
    """
    sizes = {"modules": modules, "branches": branches, "channels": channels}
    sizes |= {"resolution": resolution, "batch": batch, "dtype_bytes": dtype_bytes}
    for name, size in sizes.items():
        check_size("inception", name, size)
    if branches > channels:
        raise GraphError(f"inception: {branches} branches cannot share {channels} channels")
    check_count("inception", "convolutions", modules * branches * branches)
    net = _Net(batch, dtype_bytes)
    value = net.convolution("stem", 3, _Value(-1, resolution * resolution, 3), channels)
    third = max(-(-modules // _STAGES), 1)
    for module in range(modules):
        if module and module % third == 0:
            value = net.pooling(f"reduction{module // third}", value, halve=True)
            channels *= 2
        value = net.module(f"module{module}", value, branches, channels)
    net.pooling("head", value, halve=False)
    return net.graph()


@dataclass(frozen=True, slots=True)
class _Value:
    """An op's output: pixels of an image and channels. Op -1 is the input, which is resident."""

    op: int
    pixels: int
    channels: int


@dataclass(slots=True)
class _Net:
    """The ops so far."""

    batch: int
    dtype_bytes: int
    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    flops: list[float] = field(default_factory=list)
    output_bytes: list[float] = field(default_factory=list)
    param_bytes: list[float] = field(default_factory=list)
    src: list[int] = field(default_factory=list)
    dst: list[int] = field(default_factory=list)

    def emit(
        self,
        kind: str,
        name: str,
        inputs: list[_Value],
        pixels: int,
        channels: int,
        flops_per_element: float,
        weights: int = 0,
    ) -> _Value:
        op = len(self.names)
        elements = float(self.batch) * pixels * channels
        self.names.append(name)
        self.kinds.append(kind)
        self.flops.append(flops_per_element * elements)
        self.output_bytes.append(elements * self.dtype_bytes)
        self.param_bytes.append(float(weights) * self.dtype_bytes)
        for value in inputs:
            if value.op >= 0:
                self.src.append(value.op)
                self.dst.append(op)
        return _Value(op, pixels, channels)

    def convolution(self, name: str, taps: int, value: _Value, channels: int) -> _Value:
        work = taps * value.channels
        return self.emit(
            "convolution", name, [value], value.pixels, channels, 2.0 * work, work * channels
        )

    def pooling(self, name: str, value: _Value, halve: bool) -> _Value:
        pixels = max(value.pixels // 4, 1) if halve else value.pixels
        return self.emit("pooling", name, [value], pixels, value.channels, 9.0)

    def module(self, name: str, value: _Value, branches: int, channels: int) -> _Value:
        ends = []
        for branch in range(branches):
            own = f"{name}.branch{branch}"
            width = channels // branches + (branch < channels % branches)
            end = value
            if branch == branches - 1 and branches > 2:
                end = self.pooling(f"{own}.pool", end, halve=False)
                end = self.convolution(f"{own}.conv0", 1, end, width)
            else:
                end = self.convolution(f"{own}.conv0", 1, end, width)
                for step in range(2 * branch):
                    end = self.convolution(f"{own}.conv{step + 1}", _KERNEL, end, width)
            ends.append(end)
        return self.emit("concatenation", f"{name}.concat", ends, value.pixels, channels, 0.0)

    def graph(self) -> Graph:
        return build(
            "inception",
            self.src,
            self.dst,
            flops=self.flops,
            output_bytes=self.output_bytes,
            param_bytes=self.param_bytes,
            kinds=self.kinds,
            names=self.names,
        )
