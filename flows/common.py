"""What the flows share: Prefect's settings, the files of the pipeline, the way a stage ends.

Import what is Prefect's from here: Prefect reads its settings as it is imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from uuid import UUID

import environment  # noqa: F401 - before Prefect

# isort: split
import httpx
from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.exceptions import ObjectNotFound
from prefect.futures import as_completed
from prefect.runtime import flow_run
from prefect.settings import get_current_settings
from prefect.states import Cancelled, Completed, Crashed
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import BaseModel

from doppler import tracking
from doppler.errors import DopplerError, EngineError, StorageError
from doppler.files import write_atomic
from doppler.markdown import markdown_table
from doppler.parameter_file import Sections, load_sections
from doppler.tracking import Trackers
from server import find_server

if TYPE_CHECKING:
    from prefect import Task
    from prefect.client.schemas.objects import State

P = ParamSpec("P")
R = TypeVar("R")

__all__ = [
    "Cancelled",
    "Completed",
    "CronSchedule",
    "IntervalSchedule",
    "ThreadPoolTaskRunner",
    "as_completed",
    "discard",
    "exiting",
    "find_server",
    "flow",
    "flow_run_id",
    "get_current_settings",
    "graph_path",
    "main",
    "mark_crashed",
    "markdown_table",
    "pause_deployment",
    "publish",
    "publish_page",
    "step",
    "track",
    "write_metrics",
]


def _worth_retrying(_task: object, _run: object, state: State[object]) -> bool:
    """Say whether trying again may help.

    A fault of the machine or its devices may pass; a wrong input stays, and what was called off is
    not wanted.
    """
    result = state.result(raise_on_failure=False)
    if isinstance(result, EngineError | StorageError):
        return True
    return not isinstance(result, DopplerError | CancelledError)


def step(name: str) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Make a function a Prefect task that is retried twice.

    Parameters
    ----------
    name : str
        Name of its runs, with the arguments in braces: ``"build {name}"``.
    """
    return task(
        task_run_name=name,
        retries=2,
        retry_delay_seconds=2,
        retry_condition_fn=_worth_retrying,
        # DVC knows what is up to date; two caches would disagree one day.
        cache_policy=NO_CACHE,
    )


def flow_run_id() -> str:
    """Id of the flow run that this code is part of."""
    return str(flow_run.id or "")


def mark_crashed(run: str, message: str) -> bool:
    """Tell Prefect that a run has ended that could not say so itself.

    Returns
    -------
    bool
        Whether the server took it for running.
    """
    try:
        number = UUID(run)
    except ValueError:
        return False
    with get_client(sync_client=True) as client:
        try:
            state = client.read_flow_run(number).state
        except ObjectNotFound:
            return False
        if state is None or state.is_final():
            return False
        client.set_flow_run_state(number, Crashed(message=message), force=True)
        return True


def pause_deployment(name: str) -> None:
    """Schedule no more runs of a deployment that nobody serves any longer."""
    with get_client(sync_client=True) as client, suppress(ObjectNotFound):
        client.pause_deployment(client.read_deployment_by_name(name).id)


def graph_path(name: str) -> Path:
    """Where the graphs stage leaves a graph."""
    return Path("data/graphs", f"{name}.json")


def discard(folder: Path) -> None:
    """Remove a folder; if this process is killed meanwhile, nothing is taken for whole."""
    trash = folder.with_name(f"{folder.name}.old")
    shutil.rmtree(trash, ignore_errors=True)
    if folder.exists():
        os.replace(folder, trash)
        shutil.rmtree(trash)


def track(stage: str, csv_path: str | None, params: BaseModel) -> Trackers:
    """Track a stage, in W&B in one group with the stages of the same commit and parameters."""
    parts = [hashlib.sha256(Path("params.yaml").read_bytes()).hexdigest()[:8]]
    with suppress(OSError, subprocess.CalledProcessError):  # not every folder is under Git
        command = ["git", "rev-parse", "--short", "HEAD"]
        parts[:0] = subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL).split()
    return tracking.track(
        stage,
        csv_path,
        params.model_dump(mode="json"),
        group="-".join(parts),
        memory=Path(".cache/wandb", stage),
    )


def write_metrics(path: str, metrics: Mapping[str, float]) -> None:
    """Write metrics for ``dvc metrics``."""
    write_atomic(path, json.dumps(metrics, indent=1) + "\n")


def publish(key: str, title: str, table: str) -> None:
    """Show a table in Prefect, as an artifact of the flow that is running."""
    publish_page(key, f"# {title}\n\n{table}\n")


def publish_page(key: str, markdown: str) -> None:
    """Show Markdown in Prefect, as an artifact of the flow that is running."""
    create_markdown_artifact(key=key, markdown=markdown)


def main(stage: Callable[[Sections], object], model: type[Sections]) -> None:
    """Run a stage with the sections that it reads of the ``params.yaml`` of this directory.

    Exits with code 2 and one line on stderr if the input is at fault, or Prefect's server: for
    parameters, before one is started.
    """
    with exiting():
        sections = load_sections("params.yaml", model)
        find_server()
        stage(sections)


@contextmanager
def exiting() -> Iterator[None]:
    """Exit with code 2 and one line on stderr if the block ends by an error of Doppler's.

    Or by Prefect's server, if that does not answer any longer.
    """
    try:
        yield
    except DopplerError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except httpx.HTTPError as error:
        print(f"error: Prefect's server does not answer any longer: {error}", file=sys.stderr)
        sys.exit(2)
