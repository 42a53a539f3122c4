"""What a drawing needs to know of each op: its name, its kind and its meta-op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from doppler.errors import DopplerError
from doppler.problem import Problem

if TYPE_CHECKING:
    from doppler.trace import Trace


class Labels(Protocol):
    """Names, kinds and meta-ops by op; a :class:`~doppler.graph.Graph` has them."""

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each op."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What sort of computation each op is."""

    @property
    def meta_ops(self) -> tuple[str, ...]:
        """The op that each op was before sharding."""


@dataclass(frozen=True, slots=True)
class OpLabels:
    """Labels without a graph, as a trace file carries them; by op, shape [ops]."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    meta_ops: tuple[str, ...]


def labels_of(source: Problem | Labels) -> Labels:
    """Return the labels of a problem's graph, or the labels themselves."""
    return source.graph if isinstance(source, Problem) else source


def printable(text: str) -> str:
    """Replace control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def check_ops(traces: Sequence[Trace], labels: Labels) -> None:
    """Refuse a trace of another graph.

    Raises
    ------
    DopplerError
        If a trace names an op that the labels do not have.
    """
    for trace in traces:
        ran = np.concatenate([trace.op, trace.transfer_op])
        last = int(ran.max()) if ran.size else -1
        if last >= len(labels.names):
            raise DopplerError(
                f"trace {trace.label!r} runs op {last}, but the graph has {len(labels.names)} ops; "
                "give the graph that the trace was made from"
            )
