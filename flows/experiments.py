"""Run the cells of an experiment that are not done yet: data/experiments/SCALE/EXPERIMENT/.

As many cells at once as there are cores, each in a process that is pinned to one; those of an
experiment that measures the machine one after the other. Every result is kept as soon as it is
there, so that a run that is killed goes on where it was.

    python flows/experiments.py seconds
    python flows/experiments.py seconds --runner ray --address ray://HOST:10001
    python flows/experiments.py seconds --runner dask --address tcp://HOST:8786
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import (
    ThreadPoolTaskRunner,
    as_completed,
    exiting,
    find_server,
    flow,
    publish,
    step,
)
from doppler.cores import cores
from doppler.errors import DopplerError, MissingPackageError
from doppler.evaluation.processes import PinnedProcesses
from doppler.experiments.cell import Cell
from doppler.experiments.names import EXPERIMENTS, experiment
from doppler.experiments.progress import experiment_bar
from doppler.experiments.running import run_cell, warm_up
from doppler.experiments.settings import ExperimentParams, load_experiments
from doppler.experiments.store import Store, code_digest
from doppler.markdown import markdown_table

PIPELINE = Path("experiments/dvc.yaml")
DATA = Path("data/experiments")
RUNNERS = ("ray", "dask")


def dependencies(name: str) -> list[Path]:
    """List the files that the pipeline says an experiment depends on; lint holds it to that."""
    found = re.search(
        rf"^  {name}:\n(?:    .*\n)*?    deps:\n((?:      - .*\n)*)", _pipeline(), re.M
    )
    if found is None:
        raise DopplerError(f"{PIPELINE}: has no stage {name!r} with dependencies")
    paths = (Path(line.strip("- \n")) for line in found[1].splitlines())
    return [path for path in paths if path.exists()]


def _pipeline() -> str:
    from doppler.files import read_text

    return read_text(PIPELINE, "pipeline", DopplerError)


def store_of(params: ExperimentParams, name: str) -> Store:
    """Where the cells of an experiment are kept."""
    return Store(DATA / params.scale / name, code_digest(dependencies(name)))


def seconds_after(params: ExperimentParams, name: str) -> float:
    """Estimate what the experiments after this one will take."""
    total = 0.0
    for other in EXPERIMENTS[EXPERIMENTS.index(name) + 1 :]:
        store = store_of(params, other)
        left = sum(cell.seconds for cell in params.cells(other) if not store.has(cell))
        total += left / (1 if experiment(other).EXCLUSIVE else cores())
    return total


@step("{name}: {cell.name}")
def run_here(name: str, cell: Cell, processes: PinnedProcesses) -> tuple[Cell, Any, float]:
    """Run a cell in a process of this machine."""
    return cell, *processes.run(run_cell, name, dict(cell.given))


@step("{name}: {cell.name}")
def run_there(name: str, cell: Cell) -> tuple[Cell, Any, float]:
    """Run a cell wherever the cluster puts it."""
    return cell, *run_cell(name, dict(cell.given))


def task_runner(kind: str | None, address: str | None, workers: int) -> Any:
    """Make what spreads the cells: threads that wait for processes here, or a cluster's runner.

    Raises
    ------
    MissingPackageError
        If the package of the runner is not installed.
    """
    if kind is None:
        return ThreadPoolTaskRunner(max_workers=workers)
    try:
        if kind == "ray":
            from prefect_ray import RayTaskRunner

            return RayTaskRunner(address=address)
        from prefect_dask import DaskTaskRunner

        return DaskTaskRunner(address=address)
    except ImportError:
        package = f"prefect-{kind}"
        raise MissingPackageError(
            f"{package} is not installed; install it with: pip install {package}"
        ) from None


@contextmanager
def submitting(name: str, kind: str | None) -> Iterator[Callable[[Cell], Any]]:
    """Yield what submits a cell."""
    if kind is not None:
        yield lambda cell: run_there.submit(name, cell)
        return
    whole = experiment(name).EXCLUSIVE
    with PinnedProcesses(prepare=warm_up, whole=whole) as processes:
        yield lambda cell: run_here.submit(name, cell, processes)


def run_cells(params: ExperimentParams, name: str, runner: str | None = None) -> None:
    """Run the cells that are not done, and keep each as it ends.

    Raises
    ------
    DopplerError
        If cells failed: names the first, after all others are done.
    """
    cells, store = params.cells(name), store_of(params, name)
    store.folder.mkdir(parents=True, exist_ok=True)
    store.keep_only(cells)
    left = [cell for cell in cells if not store.has(cell)]
    # The longest first, so that no core waits long at the end.
    left.sort(key=lambda cell: -cell.seconds)
    workers = 1 if experiment(name).EXCLUSIVE else cores()
    failed: list[str] = []
    after = seconds_after(params, name)
    with (
        experiment_bar(name, left, len(cells), workers, after) as tell,
        submitting(name, runner) as submit,
    ):
        for future in as_completed([submit(cell) for cell in left]):
            result = future.result(raise_on_failure=False)
            if isinstance(result, BaseException):
                failed.append(str(result) or type(result).__name__)
                continue
            cell, found, seconds = result
            store.save(cell, found, seconds)
            tell(cell)
    if failed:
        raise DopplerError(f"{name}: {len(failed)} of {len(left)} cells failed: {failed[0]}")
    rows = [(name, len(cells), len(left))]
    publish(
        f"experiment-{name}",
        f"Experiment {name}",
        markdown_table(("experiment", "cells", "run"), rows),
    )


def main() -> None:
    """Run the experiment that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--runner", choices=RUNNERS, help="spread the cells over a cluster")
    parser.add_argument("--address", help="of the cluster; by default one is started here")
    options = parser.parse_args()
    if options.address and not options.runner:
        parser.error("--address needs --runner ray or --runner dask")
    with exiting():
        params = load_experiments()
        params.cells(options.experiment)
        workers = 1 if experiment(options.experiment).EXCLUSIVE else cores()
        runner = task_runner(options.runner, options.address, workers)
        find_server()
        # Prefect takes runners of one kind of future only, says its annotation.
        flow(name="experiments", task_runner=runner, validate_parameters=False)(run_cells)(
            params, options.experiment, options.runner
        )


if __name__ == "__main__":
    main()
