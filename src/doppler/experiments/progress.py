"""How far an experiment is: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from doppler.experiments.cell import Cell

# Seconds between two lines where there is no terminal.
LINE_SECONDS = 30.0


class Done(Protocol):
    """Told of each cell that is done."""

    def __call__(self, cell: Cell) -> None:
        """Count a cell."""


@contextmanager
def experiment_bar(
    name: str, left: Sequence[Cell], total: int, workers: int, after: float
) -> Iterator[Done]:
    """Show the cells done and the time left, by what the cells done took beside their estimates.

    Parameters
    ----------
    name : str
        Of the experiment.
    left : sequence of Cell
        That are to be run; the others are done already.
    total : int
        All cells.
    workers : int
        Cells at once.
    after : float
        Seconds that the experiments after this one will take.
    """
    began = time.monotonic()
    open_, done = sum(cell.seconds for cell in left), 0.0
    count, said = total - len(left), began
    terminal = sys.stderr.isatty()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[shown]}"),
        console=Console(stderr=True),
        disable=not terminal,
    ) as bar:
        task = bar.add_task(name, total=total, completed=count, shown=_left(open_ / workers, after))

        def tell(cell: Cell) -> None:
            nonlocal done, count, said
            done, count = done + cell.seconds, count + 1
            now = time.monotonic()
            # Until a tenth is done the estimates count as well.
            rate = (now - began + 0.1 * open_ / workers) / (done + 0.1 * open_)
            shown = _left(max(0.0, open_ - done) * rate, after)
            bar.update(task, completed=count, shown=shown)
            if not terminal and (now - said >= LINE_SECONDS or count == total):
                said = now
                print(f"{name}: {count} of {total} cells, {shown}", file=sys.stderr, flush=True)

        yield tell


def _left(seconds: float, after: float) -> str:
    text = f"{_minutes(seconds)} left"
    return f"{text}, all experiments {_minutes(seconds + after)}" if after > 0 else text


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
