"""Where the metrics of a run go: a CSV that ``dvc plots`` shows, and Weights & Biases."""

from __future__ import annotations

import contextlib
import csv
import io
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypeVar

from doppler.errors import DopplerError
from doppler.files import read_text, write_atomic

if TYPE_CHECKING:
    import wandb

STEP = "step"
#: Name of the artifact that holds the versions of a policy.
ARTIFACT = "doppler-policy"
# After which a run ends whose data W&B does not take; they stay on the disk.
FINISH_TIMEOUT_SECONDS = 300.0

P = ParamSpec("P")
R = TypeVar("R")

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


def _guarded(method: Callable[Concatenate[WandbTracker, P], R]) -> Callable[..., R | None]:
    """Let W&B end nothing: the first time that it fails, the log says so, then it is left alone."""

    @wraps(method)
    def call(self: WandbTracker, *arguments: P.args, **named: P.kwargs) -> R | None:
        if not self.failed:
            try:
                return method(self, *arguments, **named)
            except Exception as error:
                self.failed = True
                reason = " ".join(str(error).split())
                logger.warning("W&B fails, the run is not tracked there from here on: %s", reason)
        return None

    return call


class WandbTracker(_Closing):
    """Sends metrics to a run of Weights & Biases, which begins with the first thing to send.

    Parameters
    ----------
    start : callable
        Begins the run; given the id of the one to go on with, or None.
    memory : path-like, optional
        File that keeps the id, for a run that is killed and resumed.

    Attributes
    ----------
    failed : bool
        Whether W&B has failed; nothing is sent then.
    """

    def __init__(
        self, start: Callable[[str | None], wandb.Run], memory: str | os.PathLike[str] | None = None
    ) -> None:
        self.failed = False
        self._start = start
        self._memory = None if memory is None else Path(memory)
        self._resumes = False
        self._begun: wandb.Run | None = None

    @property
    def _run(self) -> wandb.Run:
        if self._begun is None:
            known = b""
            if self._resumes and self._memory is not None and self._memory.exists():
                known = self._memory.read_bytes()
            self._begun = self._start(known.decode() if known.isalnum() else None)
            if self._memory is not None:
                write_atomic(self._memory, self._begun.id)
        return self._begun

    def begin(self, after: int) -> None:
        """Go on with the run of before if steps of it are kept, or begin another."""
        self._resumes = after > 0

    @_guarded
    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send one step; see :meth:`Tracker.log`."""
        self._run.log(dict(metrics), step=step)

    @_guarded
    def log_table(self, name: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
        """Send a table; see :meth:`Trackers.log_table`."""
        import wandb

        table = wandb.Table([*columns], [[*row] for row in rows], allow_mixed_types=True)
        self._run.log({name: table})

    @_guarded
    def log_model(
        self,
        name: str,
        files: Mapping[str, str | os.PathLike[str]],
        metadata: Mapping[str, Any],
        aliases: Iterable[str] = (),
        parent: str | None = None,
    ) -> None:
        """Send an artifact of type ``model``, whose input is ``parent``, another one."""
        import wandb

        # Offline there is nobody to ask for it; the metadata still names it.
        if parent is not None and not (self._run.offline or self._run.disabled):
            try:
                self._run.use_artifact(parent)
            except (wandb.Error, ValueError) as error:
                logger.warning("W&B does not know the parent of this version: %s", error)
        artifact = wandb.Artifact(name, "model", metadata=dict(metadata))
        for file_name, path in files.items():
            artifact.add_file(os.path.abspath(path), name=file_name, skip_cache=True)
        self._run.log_artifact(artifact, aliases=[*aliases])

    @_guarded
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
        report = reports.Report(project=project, entity=entity, title=title, blocks=blocks)
        report.save()
        return str(report.url)

    @_guarded
    def finish(self) -> None:
        """Close the run."""
        if self._begun is not None:
            self._begun.finish()


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

    def log_table(self, name: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
        """Show a table in W&B, if the run is tracked there.

        Parameters
        ----------
        name : str
        columns : iterable of str
        rows : iterable of iterable
            Of numbers, text and None.
        """
        for tracker in self._wandb:
            tracker.log_table(name, columns, rows)

    def log_model(
        self,
        name: str,
        files: Mapping[str, str | os.PathLike[str]],
        metadata: Mapping[str, Any],
    ) -> None:
        """Log what a stage made as an artifact of W&B, if the run is tracked there.

        Parameters
        ----------
        name : str
            Of the artifact.
        files : mapping of str to path-like
            By their names in the artifact.
        metadata : mapping
        """
        for tracker in self._wandb:
            tracker.log_model(name, files, metadata)

    def log_artifact(
        self,
        manifest: Mapping[str, Any],
        files: Mapping[str, str | os.PathLike[str]],
        aliases: Iterable[str] = (),
    ) -> None:
        """Log a version of the registry as an artifact of W&B, if the run is tracked there.

        Its aliases are ``registry-v3`` for version ``v3``, and those given. Its parent, if the
        run is online, becomes an input of the run, which makes the lineage.

        Parameters
        ----------
        manifest : mapping
            Of the version, with ``id`` and ``parent``; becomes the metadata.
        files : mapping of str to path-like
            By their names in the artifact.
        aliases : iterable of str
            Such as ``champion``.
        """
        # W&B keeps names such as v3 for itself.
        parent = manifest.get("parent")
        parent = None if parent is None else f"{ARTIFACT}:registry-{parent}"
        aliases = [f"registry-{manifest['id']}", *aliases]
        for tracker in self._wandb:
            tracker.log_model(ARTIFACT, files, manifest, aliases, parent)

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
        addresses = [tracker.report(title, markdown, metrics) for tracker in self._wandb]
        return next((address for address in addresses if address is not None), None)

    @property
    def _wandb(self) -> list[WandbTracker]:
        return [tracker for tracker in self.trackers if isinstance(tracker, WandbTracker)]

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
    *,
    group: str | None = None,
    memory: str | os.PathLike[str] | None = None,
) -> Trackers:
    """Track a run in a CSV file and, where ``wandb`` is installed, in W&B.

    W&B is online if ``WANDB_API_KEY`` is set, else offline (``wandb sync`` uploads the run later);
    what the user has set (``WANDB_MODE``, ``WANDB_PROJECT``, ``WANDB_RUN_GROUP``) wins. A W&B that
    fails ends nothing: the log says so once.

    Parameters
    ----------
    name : str
        Name of the run, and the type of its job.
    csv_path : path-like or None
        The CSV file, if there is to be one.
    config : mapping
        The run's parameters.
    directory : path-like
        W&B keeps its files in ``wandb`` under it.
    group : str, optional
        What the runs share that belong together.
    memory : path-like, optional
        File that keeps the id of the run, for one that is killed and resumed.
    """
    trackers: list[Tracker] = [] if csv_path is None else [CsvTracker(csv_path)]
    if find_spec("wandb") is None:
        return Trackers(*trackers)

    def start(known: str | None) -> wandb.Run:
        import wandb

        default: Literal["online", "offline"] = (
            "online" if os.environ.get("WANDB_API_KEY") else "offline"
        )
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT", "doppler"),
            name=name,
            job_type=name,
            group=os.environ.get("WANDB_RUN_GROUP", group),
            id=known,
            resume=None if known is None else "allow",
            config=dict(config),
            dir=directory,
            mode=None if os.environ.get("WANDB_MODE") else default,
            settings=wandb.Settings(
                silent=True, console="off", finish_timeout=FINISH_TIMEOUT_SECONDS
            ),
        )

    return Trackers(*trackers, WandbTracker(start, memory))
