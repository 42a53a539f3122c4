"""What a peer of the engine is given: a placed graph, and how to run one op of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, Self

from doppler import Graph, Placement
from doppler.graph.execution import read_tile, run_op
from doppler.graph.spec import OpSpec, Tile

if TYPE_CHECKING:
    from torch import Tensor


class Runner(Protocol):
    """A system that runs one placed graph again and again; a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def run(self) -> tuple[float, dict[int, Tensor]]:
        """Run the graph.

        Returns
        -------
        seconds : float
            From handing over the graph until its outputs are in this process.
        outputs : dict of int to Tensor
        """
        ...


@dataclass(frozen=True)
class Work:
    """An executable graph, the device of each op, and the whole inputs and parameters."""

    graph: Graph
    placement: Placement
    tensors: Mapping[str, Tensor]

    @cached_property
    def specs(self) -> tuple[OpSpec, ...]:
        """Of every op."""
        assert self.graph.specs is not None
        return self.graph.specs

    @cached_property
    def devices(self) -> list[int]:
        """Of every op."""
        return [int(device) for device in self.placement.devices]

    @cached_property
    def n_devices(self) -> int:
        """Count the devices that the placement names."""
        return max(self.devices) + 1

    @cached_property
    def order(self) -> list[int]:
        """Ops, each after those that it reads."""
        return [int(op) for op in self.graph.topological_order]

    @cached_property
    def reads(self) -> list[list[int]]:
        """Ops whose outputs each op takes, in the order of its arguments."""
        return [[value for value in spec.inputs if isinstance(value, int)] for spec in self.specs]

    @cached_property
    def outputs(self) -> list[int]:
        """Ops whose outputs are the result."""
        return list(self.graph.outputs)

    @cached_property
    def transfers(self) -> int:
        """Count the tensors that must be moved: once for each op and other device that reads it."""
        return len(
            {
                (read, self.devices[op])
                for op, reads in enumerate(self.reads)
                for read in reads
                if self.devices[read] != self.devices[op]
            }
        )


class Ops:
    """Ops as a peer's process holds them, with the tiles that they read, before the clock starts.

    Parameters
    ----------
    specs : sequence of OpSpec
        Of every op of the graph.
    tensors : mapping of str to Tensor
    """

    def __init__(self, specs: Sequence[OpSpec], tensors: Mapping[str, Tensor]) -> None:
        self.specs = specs
        self.tensors = tensors

    def compute(self, op: int, *produced: Tensor) -> Tensor:
        """Run an op on the outputs of the ops that it reads, in the order of its arguments."""
        spec = self.specs[op]
        arguments = iter(produced)
        inputs = [
            read_tile(self.tensors, value) if isinstance(value, Tile) else next(arguments)
            for value in spec.inputs
        ]
        result: Tensor = run_op(spec, inputs)
        return result
