"""What a page is made of: tables, charts and sections, the same for HTML, Markdown and W&B."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from doppler.experiments.statistics import Estimate
from doppler.viewer.units import format_percent, format_seconds

_NOTHING = "-"
# Where the shade of a ratio is the darkest.
_WORST_RATIO = 3.0


class Entry(NamedTuple):
    """A cell of a table.

    Attributes
    ----------
    text : str
    value : float or str or None
        For sorting, and for who reads numbers.
    shade : int
        From 0 to 55 percent.
    best, sure, bad : bool
        Shown as the best of its row, as a gain beyond chance, as a loss.
    title : str
        Shown where one points.
    dots : tuple of float
        Positions along a strip, percent; drawn instead of the text.
    """

    text: str
    value: float | str | None = None
    shade: int = 0
    best: bool = False
    sure: bool = False
    bad: bool = False
    title: str = ""
    dots: tuple[float, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes
    ----------
    title : str
    columns : tuple of str
    rows : sequence of tuple of Entry
        Each as long as ``columns``; the first names the row.
    note : str
    texts : int
        So many columns from the left hold text.
    folded : bool
        Whether it is shown only to who asks for it, and not at all in Markdown.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Entry, ...]]
    note: str = ""
    texts: int = 1
    folded: bool = False

    @property
    def strip(self) -> str:
        """Name of the column that is drawn as dots, if there is one."""
        first = self.rows[0] if self.rows else ()
        drawn = (name for name, cell in zip(self.columns, first, strict=False) if cell.dots)
        return next(drawn, "")


@dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes
    ----------
    title : str
    svg : str
    legend : tuple of (str, str)
        Names and colors.
    """

    title: str
    svg: str
    legend: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Section:
    """What one experiment asks and shows.

    Attributes
    ----------
    name : str
        Of the experiment.
    title : str
    asked, found : str
        A sentence or two each; the second is made of the results.
    tables : tuple of Table
    charts, more : tuple of Chart
        Those that are seen at once, and those behind a fold.
    """

    name: str
    title: str
    asked: str
    found: str
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    more: tuple[Chart, ...] = ()


def text(value: object) -> Entry:
    """Make an entry of a name."""
    return Entry(str(value), str(value))


def number(value: float | None, form: str = ",.0f") -> Entry:
    """Make an entry of a number."""
    return Entry(_NOTHING) if value is None else Entry(format(value, form), value)


def seconds(value: float | None) -> Entry:
    """Make an entry of a time."""
    return Entry(_NOTHING) if value is None else Entry(format_seconds(value), value)


def percent(value: float | None, figures: int = 1) -> Entry:
    """Make an entry of a share."""
    return Entry(_NOTHING) if value is None else Entry(signed(value, figures), value)


def signed(share: float, figures: int = 1) -> str:
    """Write a share as a percentage with its sign, a true minus."""
    shown = format_percent(abs(share), figures)
    zero = not any(c in "123456789" for c in shown)
    return shown if zero else f"{'−' if share < 0 else '+'}{shown}"


def gained(found: Estimate | None) -> Entry:
    """Make an entry of a gain with its interval: green if it is sure, red if it is a sure loss."""
    if found is None:
        return Entry(_NOTHING)
    return Entry(
        interval_text(found),
        found.value,
        sure=found.low is not None and found.low > 0,
        bad=found.value < 0,
    )


def shaded_interval(found: Estimate | None) -> Entry:
    """Make an entry of a share above something, shaded by how much it is."""
    if found is None:
        return Entry("")
    shade = round(0.55 * across(1 + max(0.0, found.value)))
    return Entry(interval_text(found), found.value, shade=shade)


def interval_text(found: Estimate, figures: int = 1) -> str:
    """Write a share and its interval in percent."""
    middle = signed(found.value, figures)
    if found.low is None or found.high is None:
        return middle
    low, high = (signed(each, figures).removesuffix("%") for each in (found.low, found.high))
    return f"{middle} [{low}, {high}]"


def number_interval(found: Estimate | None, form: str = ".2f") -> Entry:
    """Make an entry of a number with its interval."""
    if found is None:
        return Entry(_NOTHING)
    shown = format(found.value, form)
    if found.low is not None and found.high is not None:
        shown += f" [{format(found.low, form)}, {format(found.high, form)}]"
    return Entry(shown, found.value)


def ratio(value: float | None, seconds_: float | None = None) -> Entry:
    """Make an entry of a ratio to the best, shaded by how much it is above 1."""
    if value is None:
        return Entry("")
    return Entry(
        f"{value:.3f}",
        value,
        shade=round(0.55 * across(value)),
        best=value <= 1 + 1e-9,
        title="" if seconds_ is None else format_seconds(seconds_),
    )


def strip(ratios: Sequence[float]) -> Entry:
    """Make an entry of ratios to the best as dots along a logarithmic axis."""
    dots = tuple(round(across(each), 2) for each in ratios)
    return Entry("", None, dots=dots)


def across(value: float) -> float:
    """Percent of the way along a logarithmic axis of ratios from 1 to 3."""
    return 100 * min(1.0, math.log(max(1.0, value)) / math.log(_WORST_RATIO))
