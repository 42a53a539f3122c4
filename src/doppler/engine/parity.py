"""Whether a run computed what it should."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from doppler.graph import Graph
from doppler.graph.execution import assemble

if TYPE_CHECKING:
    from torch import Tensor

# Of the largest entry of a result. The same products in another order, on another device, differ
# by some float32 roundings (6e-8) per thousand terms; a wrong tile differs by the entry itself.
RELATIVE_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Parity:
    """The result that differs most, measured by its tolerance.

    Attributes
    ----------
    name : str
        Of the result; empty if there is none.
    difference : float
        Largest absolute difference of an entry; infinite where one is not a number.
    tolerance : float
        1e-4 of the largest absolute entry of the reference; 0 of whole numbers and booleans.
    """

    name: str
    difference: float
    tolerance: float

    @property
    def equal(self) -> bool:
        """Whether the results are equal within their tolerance."""
        return self.difference <= self.tolerance


def compare_outputs(
    graph: Graph, outputs: Mapping[int, Tensor], reference: Mapping[int, Tensor]
) -> Parity:
    """Compare the results of two runs.

    Parameters
    ----------
    graph : Graph
    outputs, reference : mapping of int to Tensor
        Outputs of the ops in ``graph.outputs``, on any devices.

    Raises
    ------
    GraphError
        If an output is missing.
    """
    expected = assemble(graph, reference)
    worst = Parity("", 0.0, 0.0)
    for name, result in assemble(graph, outputs).items():
        known = _wide(expected[name])
        tolerance = 0.0
        if result.is_floating_point() or result.is_complex():
            tolerance = RELATIVE_TOLERANCE * _largest(known.abs().nan_to_num(0.0, 0.0, 0.0))
        gap = (_wide(result) - known).abs()
        gap[(result == known) | (result.isnan() & known.isnan())] = 0.0
        difference = _largest(gap.nan_to_num(math.inf))
        found = Parity(name, difference, tolerance)
        if not worst.name or difference * worst.tolerance > worst.difference * tolerance:
            worst = found
        if not found.equal:
            return found
    return worst


def _wide(tensor: Tensor) -> Tensor:
    import torch

    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _largest(tensor: Tensor) -> float:
    return float(tensor.max()) if tensor.numel() else 0.0
