"""What every production run under Stage III was, took and cost."""

from __future__ import annotations

import csv
import io
import math
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from doppler.files import write_atomic

Kind = Literal["champion", "candidate", "episode", "challenger", "reference"]
CHAMPION: Final = "champion"
CANDIDATE: Final = "candidate"
EPISODE: Final = "episode"
CHALLENGER: Final = "challenger"
REFERENCE: Final = "reference"
KINDS: tuple[Kind, ...] = (CHAMPION, CANDIDATE, EPISODE, CHALLENGER, REFERENCE)


class ProductionRun(NamedTuple):
    """One production run.

    Attributes
    ----------
    run : int
        From 1.
    kind : {"champion", "candidate", "episode", "challenger", "reference"}
        The working champion; a placement from search; an episode of the policy; a placement that is
        tested in pairs with the champion; the champion's run of such a pair.
    placement : int
        Number of the placement, in the order in which placements became known; 0 is the
        champion that the refiner began with.
    predicted : float
        Seconds, by the calibrated simulator when the run was planned; nan where it was not asked.
    measured : float
        Seconds; nan if the run failed.
    ratio : float
        Measured over the baseline; nan if the run failed or there was no baseline yet.
    regret : float
        Running mean of the regret, this run included.
    """

    run: int
    kind: Kind
    placement: int
    predicted: float
    measured: float
    ratio: float
    regret: float


class RunHistory:
    """All runs, 40 bytes each; a sequence of :class:`ProductionRun`."""

    def __init__(self) -> None:
        self._kind = array("b")
        self._placement = array("i")
        self._numbers = array("d")

    def append(
        self,
        kind: Kind,
        placement: int,
        predicted: float = math.nan,
        measured: float = math.nan,
        ratio: float = math.nan,
        regret: float = 0.0,
    ) -> None:
        """Add a run."""
        self._numbers.extend((predicted, measured, ratio, regret))
        self._placement.append(placement)
        # Last, since the length is taken from it while another thread reads.
        self._kind.append(KINDS.index(kind))

    def __len__(self) -> int:
        return len(self._kind)

    def __getitem__(self, index: int) -> ProductionRun:
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"run {index} of {count}")
        index %= count
        numbers = self._numbers[4 * index : 4 * index + 4]
        return ProductionRun(index + 1, KINDS[self._kind[index]], self._placement[index], *numbers)

    def __iter__(self) -> Iterator[ProductionRun]:
        return (self[index] for index in range(len(self)))

    def save_csv(self, path: str | Path) -> Path:
        """Write the regret curve: a header and a row for each run; nan is left empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(ProductionRun._fields)
        for run in self:
            writer.writerow("" if value != value else value for value in run)
        return write_atomic(path, text.getvalue())
