"""Where the metrics of a run go: a CSV that ``dvc plots`` shows, and Weights & Biases."""

from __future__ import annotations

import contextlib
import csv
import io
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from doppler.errors import DopplerError
from doppler.files import read_text, write_atomic

if TYPE_CHECKING:
    import wandb

STEP = "step"

logger = logging.getLogger(__name__)


class Tracker(Protocol):
    """Receives the metrics of a run, step by step."""

    def begin(self, after: int) -> None:
        """Say that a run begins, or resumes, ``after`` that step: later rows are of no use."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record ``metrics`` of ``step``; steps grow, unless a run resumes at an earlier one."""

    def finish(self) -> None:
        """Write out what is pending; nothing may be logged after it."""


class _Closing:
    """Finishes a tracker at the end of a ``with`` block."""

    def finish(self) -> None:
        """Write out what is pending."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.finish()


class CsvTracker(_Closing):
    """One row a step in a CSV file whose first column is ``step``.

    A step at or before the last one in the file drops that step and all after it, so that a run
    that resumes from a checkpoint leaves the same file as one that was never interrupted. A row
    that a crash cut short is dropped when the file is opened.

    Parameters
    ----------
    path : path-like
        Made with its first row; an existing file is continued.

    Raises
    ------
    DopplerError
        If the file exists but holds something else, or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._columns, self._rows = _read_rows(self.path) if self.path.exists() else ([], [])
        # Whether the file holds exactly the header and the rows, so that a row can be appended.
        self._appendable = False

    def begin(self, after: int) -> None:
        """Drop the rows after a step, with the next row that is written."""
        rows = [row for row in self._rows if int(row[STEP]) <= after]
        self._appendable = self._appendable and len(rows) == len(self._rows)
        self._rows = rows

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one row; see :meth:`Tracker.log`."""
        row = {STEP: str(step)} | {name: repr(float(value)) for name, value in metrics.items()}
        if self._rows and step <= int(self._rows[-1][STEP]):
            self._rows = [earlier for earlier in self._rows if int(earlier[STEP]) < step]
            self._appendable = False
        if not self._rows or not row.keys() <= set(self._columns):
            self._columns = list(dict.fromkeys([*(self._columns if self._rows else ()), *row]))
            self._appendable = False
        self._rows.append(row)
        if self._appendable:
            self._append(row)
        else:
            header = {name: name for name in self._columns}
            write_atomic(self.path, self._lines([header, *self._rows]))
            self._appendable = True

    def _append(self, row: Mapping[str, str]) -> None:
        try:
            with self.path.open("a", encoding="utf-8", newline="") as stream:
                stream.write(self._lines([row]))
        except OSError as error:
            raise DopplerError(f"{self.path}: cannot be written ({error.strerror})") from error

    def _lines(self, rows: Iterable[Mapping[str, str]]) -> str:
        text = io.StringIO()
        csv.DictWriter(text, self._columns, restval="", lineterminator="\n").writerows(rows)
        return text.getvalue()


def _read_rows(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    lines = read_text(path, "metrics", DopplerError).splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    reader = csv.DictReader(lines)
    columns = list(reader.fieldnames or ())
    try:
        rows = list(reader)
        if columns and columns[0] != STEP:
            raise ValueError("its first column is not step")
        if any(None in row or None in row.values() for row in rows):
            raise ValueError("its rows differ in length")
        for row in rows:
            int(row[STEP])
    except (ValueError, csv.Error) as error:
        raise DopplerError(f"{path}: is not a metrics file ({error}); remove it") from None
    return columns, rows


class WandbTracker(_Closing):
    """Sends metrics to a run of Weights & Biases.

    Parameters
    ----------
    run : wandb.Run
    """

    def __init__(self, run: wandb.Run) -> None:
        self._run = run

    def begin(self, after: int) -> None:
        """Do nothing: every start is a run of its own in W&B."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send one step; see :meth:`Tracker.log`."""
        self._run.log(dict(metrics), step=step)

    def finish(self) -> None:
        """Close the run."""
        self._run.finish()


class Trackers(_Closing):
    """Sends every metric to each of several trackers.

    Attributes
    ----------
    trackers : tuple of Tracker
    last : dict of str to float
        The metrics that were logged last.
    """

    def __init__(self, *trackers: Tracker) -> None:
        self.trackers = trackers
        self.last: dict[str, float] = {}

    def begin(self, after: int) -> None:
        """Tell each; see :meth:`Tracker.begin`."""
        for tracker in self.trackers:
            tracker.begin(after)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record in each; see :meth:`Tracker.log`."""
        self.last = dict(metrics)
        for tracker in self.trackers:
            tracker.log(metrics, step)

    def finish(self) -> None:
        """Finish each, also when one fails."""
        with contextlib.ExitStack() as stack:
            for tracker in self.trackers:
                stack.callback(tracker.finish)


def track(
    name: str,
    csv_path: str | os.PathLike[str],
    config: Mapping[str, Any],
    directory: str | os.PathLike[str] = ".",
) -> Trackers:
    """Track a run in a CSV file and, where ``wandb`` is installed and starts, in W&B.

    W&B is online if ``WANDB_API_KEY`` is set, else offline (``wandb sync`` uploads the run later);
    a ``WANDB_MODE`` or ``WANDB_PROJECT`` that the user has set wins.

    Parameters
    ----------
    name : str
        Name of the run.
    csv_path : path-like
        The CSV file.
    config : mapping
        The run's parameters.
    directory : path-like
        W&B keeps its files in ``wandb`` under it.
    """
    trackers: list[Tracker] = [CsvTracker(csv_path)]
    try:
        import wandb
    except ModuleNotFoundError:
        return Trackers(*trackers)
    default_mode: Literal["online", "offline"] = (
        "online" if os.environ.get("WANDB_API_KEY") else "offline"
    )
    try:
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "doppler"),
            name=name,
            config=dict(config),
            dir=directory,
            mode=None if os.environ.get("WANDB_MODE") else default_mode,
            settings=wandb.Settings(silent=True, console="off"),
        )
    except wandb.Error as error:
        logger.warning("W&B did not start, so the run is not tracked there: %s", error)
    else:
        trackers.append(WandbTracker(run))
    return Trackers(*trackers)
