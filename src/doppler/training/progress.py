"""A progress bar of training, on stderr."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from doppler.training.loop import Progress as Report


@contextmanager
def training_bar(title: str) -> Iterator[Report]:
    """Show the updates done, the time left and the latest metrics.

    Yields
    ------
    callable
        To be given to a stage as its ``progress``.
    """
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[shown]}"),
        console=Console(stderr=True),
    ) as bar:
        task = bar.add_task(title, total=None, shown="")

        def report(done: int, total: int, metrics: Mapping[str, float]) -> None:
            shown = "  ".join(f"{name} {value:.3f}" for name, value in list(metrics.items())[:2])
            bar.update(task, completed=done, total=total, shown=shown)

        yield report
