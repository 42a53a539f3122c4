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
#: Name of the artifact that holds the versions of a policy.
ARTIFACT = "doppler-policy"

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

    def log_artifact(
        self,
        manifest: Mapping[str, Any],
        files: Mapping[str, str | os.PathLike[str]],
        *,
        name: str = ARTIFACT,
        aliases: Iterable[str] = (),
    ) -> None:
        """Log a version of a policy; see :meth:`Trackers.log_artifact`."""
        import wandb

        parent = manifest.get("parent")
        # Offline there is nobody to ask for it; the metadata still names it.
        if parent is not None and not (self._run.offline or self._run.disabled):
            try:
                self._run.use_artifact(f"{name}:{_alias(parent)}")
            except (wandb.Error, ValueError) as error:
                logger.warning("W&B does not know the parent %s of this version: %s", parent, error)
        artifact = wandb.Artifact(name, "model", metadata=dict(manifest))
        for file_name, path in files.items():
            # Files of a version never change, so that W&B needs no copy of them.
            artifact.add_file(
                os.path.abspath(path), name=file_name, policy="immutable", skip_cache=True
            )
        self._run.log_artifact(artifact, aliases=[_alias(manifest["id"]), *aliases])

    def report(self, title: str, markdown: str, metrics: Iterable[str] = ()) -> str | None:
        """Make a report; see :meth:`Trackers.report`."""
        if self._run.offline or self._run.disabled:
            logger.info("W&B is offline, so no report is made there; the local page has the same")
            return None
        try:
            import wandb_workspaces.reports.v2 as reports
        except ModuleNotFoundError:
            logger.warning(
                "no report is made in W&B: its reports need the package wandb-workspaces "
                "(pip install wandb-workspaces); the local page has the same"
            )
            return None
        entity, project = self._run.entity, self._run.project
        blocks = [reports.MarkdownBlock(text=markdown)]
        panels = [reports.LinePlot(title=metric, x="Step", y=[metric]) for metric in metrics]
        if panels:
            runs = reports.Runset(entity=entity, project=project)
            blocks.append(reports.PanelGrid(runsets=[runs], panels=panels))
        try:
            report = reports.Report(project=project, entity=entity, title=title, blocks=blocks)
            report.save()
        # Whatever the service or the way to it does, what was measured must not be lost by it.
        except Exception as error:
            logger.warning("W&B did not take the report (%s); the local page has the same", error)
            return None
        return str(report.url)

    def finish(self) -> None:
        """Close the run."""
        self._run.finish()


def _alias(version: str) -> str:
    """Name a version of the registry in W&B, which keeps names such as ``v3`` for itself."""
    return f"registry-{version}"


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

    def log_artifact(
        self,
        manifest: Mapping[str, Any],
        files: Mapping[str, str | os.PathLike[str]],
        *,
        name: str = ARTIFACT,
        aliases: Iterable[str] = (),
    ) -> None:
        """Log a version of a policy as an artifact of W&B, if the run is tracked there.

        Its aliases are ``registry-v3`` for version ``v3``, and those given. Its parent, if the
        run is online, becomes an input of the run, which makes the lineage.

        Parameters
        ----------
        manifest : mapping
            Of the version, with ``id`` and ``parent``; becomes the metadata.
        files : mapping of str to path-like
            By their names in the artifact. They must not change any more.
        name : str
            Of the artifact.
        aliases : iterable of str
            Such as ``champion``.
        """
        for tracker in self.trackers:
            if isinstance(tracker, WandbTracker):
                tracker.log_artifact(manifest, files, name=name, aliases=aliases)

    def report(self, title: str, markdown: str, metrics: Iterable[str] = ()) -> str | None:
        """Make a report in W&B, if the run is tracked there and online.

        Where none is made, the log says why.

        Parameters
        ----------
        title : str
        markdown : str
            Its text.
        metrics : iterable of str
            Logged metrics, each drawn over the steps of the project's runs.

        Returns
        -------
        str or None
            Its address.
        """
        addresses = [
            tracker.report(title, markdown, metrics)
            for tracker in self.trackers
            if isinstance(tracker, WandbTracker)
        ]
        return next((address for address in addresses if address is not None), None)

    def finish(self) -> None:
        """Finish each, also when one fails."""
        with contextlib.ExitStack() as stack:
            for tracker in self.trackers:
                stack.callback(tracker.finish)


def track(
    name: str,
    csv_path: str | os.PathLike[str] | None,
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
    csv_path : path-like or None
        The CSV file, if there is to be one.
    config : mapping
        The run's parameters.
    directory : path-like
        W&B keeps its files in ``wandb`` under it.
    """
    trackers: list[Tracker] = [] if csv_path is None else [CsvTracker(csv_path)]
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
