"""What the flows share: Prefect's settings, the files of the pipeline, the way a stage ends.

Import what is Prefect's from here: Prefect reads its settings as it is imported.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar
from uuid import UUID

from doppler import Cluster, Problem, load_graph
from doppler.errors import DopplerError, EngineError, StorageError
from doppler.files import write_atomic
from doppler.params import Case, Params, cases, file_name, load_params
from doppler.training.case import TrainingCase
from doppler.training.demonstrations import Demonstrations, load_demonstrations
from doppler.training.generated import generate
from doppler.viewer.markdown import markdown_table

if TYPE_CHECKING:
    from prefect import Task
    from prefect.client.schemas.objects import State

# Numbers of generated cases from here on are for validation.
VALIDATION = 1_000_000

P = ParamSpec("P")
R = TypeVar("R")

# Defaults that an environment variable of the same name overrides.
SETTINGS = {
    # Nothing is reported to Prefect, neither by this process nor by the server that it starts.
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # Without PREFECT_API_URL a flow starts a server of its own, and stops it again. The first
    # start makes its database, which takes a while on a small machine.
    "PREFECT_SERVER_EPHEMERAL_ENABLED": "true",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    # As it stops, that server logs pages about events that it has not stored yet.
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "WANDB_ERROR_REPORTING": "false",
}
for _name, _value in SETTINGS.items():
    os.environ.setdefault(_name, _value)

from prefect import flow, task  # noqa: E402
from prefect.artifacts import create_markdown_artifact  # noqa: E402
from prefect.cache_policies import NO_CACHE  # noqa: E402
from prefect.client.orchestration import get_client  # noqa: E402
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule  # noqa: E402
from prefect.exceptions import ObjectNotFound  # noqa: E402
from prefect.runtime import flow_run  # noqa: E402
from prefect.settings import (  # noqa: E402
    PREFECT_API_URL,
    get_current_settings,
    temporary_settings,
)
from prefect.states import Cancelled, Completed, Crashed  # noqa: E402
from prefect.task_runners import ThreadPoolTaskRunner  # noqa: E402

__all__ = [
    "PREFECT_API_URL",
    "Cancelled",
    "Completed",
    "CronSchedule",
    "IntervalSchedule",
    "ThreadPoolTaskRunner",
    "discard",
    "flow",
    "flow_run_id",
    "get_current_settings",
    "graph_path",
    "incumbent_path",
    "load_problem",
    "main",
    "mark_crashed",
    "markdown_table",
    "pause_deployment",
    "publish",
    "publish_page",
    "state_path",
    "step",
    "temporary_settings",
    "traced_cases",
    "traces_path",
    "training_set",
    "validation_set",
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


def traces_path(case: Case) -> Path:
    """Where the traces stage leaves the traces of a case."""
    return Path("data/traces", f"{case.file_name}.safetensors")


def incumbent_path(case: str) -> Path:
    """Where the reinforce stage leaves the best placement of a case, by its name."""
    return Path("models/incumbents", f"{file_name(case)}.json")


def load_problem(case: Case) -> Problem:
    """Make the problem of a case from the graphs stage's file."""
    return Problem(load_graph(graph_path(case.graph)), Cluster.load(case.cluster))


class Training(NamedTuple):
    """A problem to train on, or to choose weights by.

    Attributes
    ----------
    name : str
        ``graph@cluster``, or the number of a generated case.
    traces : Path
        Where the traces stage leaves its traces and hints.
    load : callable
        Makes the problem.
    """

    name: str
    traces: Path
    load: Callable[[], Problem]


def training_set(params: Params) -> list[Training]:
    """List the problems that are trained on: those with a name, then those that are drawn."""
    named = [
        Training(str(case), traces_path(case), partial(load_problem, case))
        for case in cases(params.training)
    ]
    drawn = params.generated
    return named + _generated(params.seed, range(drawn.training), drawn.ops)


def validation_set(params: Params) -> list[Training]:
    """List the problems whose greedy episodes decide on the weights to end with."""
    drawn = params.generated
    numbers = range(VALIDATION, VALIDATION + drawn.validation)
    return _generated(params.seed, numbers, drawn.validation_ops)


def traced_cases(chosen: list[Training]) -> tuple[list[TrainingCase], list[Demonstrations]]:
    """Load problems with what the traces stage left of each."""
    problems = [case.load() for case in chosen]
    traces = [
        load_demonstrations(case.traces, problem)
        for case, problem in zip(chosen, problems, strict=True)
    ]
    cases_ = [
        TrainingCase(case.name, problem, hints=shown.made_hints(problem))
        for case, problem, shown in zip(chosen, problems, traces, strict=True)
    ]
    return cases_, traces


def _generated(seed: int, numbers: range, ops: list[int]) -> list[Training]:
    return [
        Training(
            f"generated-{number}",
            Path("data/traces", f"generated-{number}.safetensors"),
            partial(generate, seed, number, (ops[0], ops[1])),
        )
        for number in numbers
    ]


def state_path(stage: str) -> Path:
    """Where a training stage that is running keeps its checkpoint; not an artifact."""
    return Path(".cache/training", f"{stage}.safetensors")


def discard(folder: Path) -> None:
    """Remove a folder; if this process is killed meanwhile, nothing is taken for whole."""
    trash = folder.with_name(f"{folder.name}.old")
    shutil.rmtree(trash, ignore_errors=True)
    if folder.exists():
        os.replace(folder, trash)
        shutil.rmtree(trash)


def write_metrics(path: str, metrics: Mapping[str, float]) -> None:
    """Write metrics for ``dvc metrics``."""
    write_atomic(path, json.dumps(metrics, indent=1) + "\n")


def publish(key: str, title: str, table: str) -> None:
    """Show a table in Prefect, as an artifact of the flow that is running."""
    publish_page(key, f"# {title}\n\n{table}\n")


def publish_page(key: str, markdown: str) -> None:
    """Show Markdown in Prefect, as an artifact of the flow that is running."""
    create_markdown_artifact(key=key, markdown=markdown)


def main(stage: Callable[[Params], object]) -> None:
    """Run a stage with the validated ``params.yaml`` of this directory.

    Exits with code 2 and one line on stderr if the input is at fault: for parameters, before a
    Prefect server is started.
    """
    try:
        stage(load_params("params.yaml"))
    except DopplerError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
