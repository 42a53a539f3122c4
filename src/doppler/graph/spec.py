"""What an op computes: enough to run it, and nothing that needs torch to be read or written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: What a whole tensor is to the workload.
ROLES = ("input", "parameter", "buffer", "constant")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A whole input or parameter of the workload, before tiling.

    Attributes
    ----------
    shape : tuple of int
        Extent of each axis.
    role : {"input", "parameter", "buffer", "constant"}
        Given anew with each run; learned; other state of a model; fixed. All but inputs are kept
        on the device from run to run.
    init : Mapping
        How to fill it for a run with synthetic data: ``{"kind": "normal", "std": 0.02}``,
        ``{"kind": "constant", "value": 1.0}``, ``{"kind": "integers", "low": 0, "high": 100}``
        (``high`` excluded), ``{"kind": "values", "values": (1, 2, 3)}`` (all of them, flat),
        ``{"kind": "one_hot_top_k", ...}``, ...
    dtype : str or None
        Type of its elements, by its name in torch; None: the floating-point type of the run.
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
        ``doppler.graph.execution.FUNCTIONS``; or ``"aten"``: calls of torch's operators, whose form
        :mod:`doppler.graph.calls` tells.
    inputs : tuple of (int or Tile)
        In argument order: the id of the op whose output is read, or a tile of an input or
        parameter, which is resident before the run starts.
    shape : tuple of int
        Shape of the output; of calls that give several, that of the first.
    attributes : Mapping
        JSON-able keyword arguments (the einsum equation, an axis, a scale, ...). Sequences are
        tuples: that is how a file gives them back. ``"views"``, if present, holds for each input
        a shape to reshape it to first, or None.
    """

    function: str
    inputs: tuple[int | Tile, ...]
    shape: tuple[int, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
