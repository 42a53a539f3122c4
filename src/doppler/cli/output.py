"""What commands print: one JSON object, or text for people; progress goes to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from doppler.errors import DopplerError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

# Wide enough for any table of ours; a pipe or a file has no width of its own.
_PIPE_WIDTH = 200


def print_json(values: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout.

    Raises
    ------
    DopplerError
        If a value is a number that JSON cannot express, such as one that a file says is infinite.
    """
    try:
        text = json.dumps(dict(values), allow_nan=False)
    except ValueError as error:
        raise DopplerError(f"cannot be written as JSON: {error}") from None
    typer.echo(text)


def print_text(*parts: RenderableType) -> None:
    """Print for people: in color and to the width of a terminal, plainly into a pipe."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    console = Console(width=width, highlight=False, emoji=False, markup=False)
    # Written by us, since a console turns a closed pipe into an exit of its own.
    with console.capture() as written:
        for part in parts:
            console.print(part)
    sys.stdout.write(written.get())


def make_title(text: str) -> Text:
    """Write a heading; what a terminal cannot show is replaced."""
    from rich.text import Text

    from doppler.viewer.labels import printable

    return Text(printable(text), style="bold")


def make_facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Lay out names and values, one pair a line."""
    from rich.table import Table
    from rich.text import Text

    from doppler.viewer.labels import printable

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(printable(name)), Text(printable(value)))
    return table


def make_table(*columns: str) -> Table:
    """Start a table; a column whose name starts with ``>`` holds numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(
            name.removeprefix(">"),
            justify="right" if name.startswith(">") else "left",
            overflow="fold",
        )
    return table


@contextmanager
def progress(what: str, budget: float | None = None) -> Iterator[None]:
    """Show on stderr that work is under way, if that is a terminal, and why it takes so long.

    Parameters
    ----------
    what : str
        The work.
    budget : float, optional
        Seconds that it is going to take; shown as a bar that fills with the time.
    """
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TimeElapsedColumn
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    class TimeBar(ProgressColumn):
        def render(self, task: Task) -> ProgressBar:
            return ProgressBar(total=budget or None, completed=task.elapsed or 0.0, width=30)

    class Description(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(task.description)

    columns: list[ProgressColumn] = [SpinnerColumn(), Description(), TimeElapsedColumn()]
    if budget:
        columns.insert(2, TimeBar())
    from numba.core import event

    from doppler.cli.compiling import Compiling

    # Of the stream as it is now: torch is kept from printing to it.
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        bar.add_task(what)
        with event.install_listener("numba:compile", Compiling(bar.console.print)):
            yield
