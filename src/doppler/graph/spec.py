"""What an op computes: enough to run it, and nothing that needs torch to be read or written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A whole input or parameter of the workload, before tiling.

    Attributes
    ----------
    shape : tuple of int
        Extent of each axis.
    role : str
        ``"input"`` (given anew each run) or ``"parameter"`` (kept on the device).
    init : Mapping
        How to fill it for a run with synthetic data, e.g. ``{"kind": "normal", "std": 0.02}``,
        ``{"kind": "one_hot_top_k", ...}`` or ``{"kind": "constant", "value": 1.0}``.
    dtype : str or None
        Its name in torch, ``"int64"``. None: the floating-point type of the run.
    """

    shape: tuple[int, ...]
    role: str = "input"
    init: Mapping[str, Any] = field(default_factory=lambda: {"kind": "normal", "std": 1.0})
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Tile:
    """A block of a whole tensor: ``tensor[start_0:stop_0, start_1:stop_1, ...]``."""

    tensor: str
    slices: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One executable op.

    Attributes
    ----------
    function : str
        Name of the torch computation (``"einsum"``, ``"add"``, ``"form"``, ...), one of
        ``doppler.graph.execution.FUNCTIONS``.
    inputs : tuple of (int or Tile)
        In argument order: the id of the op whose output is read, or a tile of an input or
        parameter, which is resident before the run starts.
    shape : tuple of int
        Shape of the output.
    attributes : Mapping
        JSON-able keyword arguments (the einsum equation, an axis, a scale, ...). Sequences are
        tuples: that is how a file gives them back. ``"views"``, if present, holds for each input
        a shape to reshape it to first, or None.
    """

    function: str
    inputs: tuple[int | Tile, ...]
    shape: tuple[int, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
