"""Refining on an engine: run after run, for some episodes or some time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from doppler.cluster import save_cluster
from doppler.engine import Engine
from doppler.errors import EngineError
from doppler.graph.fingerprint import fingerprint
from doppler.placement import Placement
from doppler.policy.checkpoint import save_policy
from doppler.refinement.history import Run
from doppler.refinement.refiner import Refiner
from doppler.refinement.start import CLUSTER, PLACEMENT
from doppler.registry import POLICY

# Failed runs in a row after which the machine is at fault, not a placement.
MOST_FAILURES = 3


def refine(
    refiner: Refiner,
    engine: Engine,
    *,
    episodes: int | None = None,
    seconds: float | None = None,
    timeout: float | None = None,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Let a refiner learn from runs on an engine.

    Parameters
    ----------
    refiner : Refiner
        Its earlier runs count towards ``episodes``, so that a run that was killed goes on.
    engine : Engine
        Of the refiner's graph, with as many devices.
    episodes : int, optional
        Runs after which to end.
    seconds : float, optional
        Time after which to end.
    timeout : float, optional
        Seconds after which one run is given up.
    progress : callable, optional
        Told how many runs are done after each.

    Raises
    ------
    EngineError
        If several runs in a row fail, though the champion takes over after the first.
    DopplerError
        If learning stopped on an error.
    """
    begin, done, failures = time.monotonic(), len(refiner.history), 0
    while (episodes is None or done < episodes) and (
        seconds is None or time.monotonic() - begin < seconds
    ):
        placement = refiner.next()
        try:
            execution = engine.run(placement, timeout=timeout)
        except EngineError as error:
            refiner.failed(str(error))
            failures += 1
            if failures == MOST_FAILURES:
                raise
        else:
            refiner.observe(execution.makespan, trace=execution.trace)
            failures = 0
        if refiner.error is not None:
            break
        done += 1
        if progress is not None:
            progress(done)


def measurement(engine: Engine, placement: Placement, timeout: float) -> Callable[[], float]:
    """Make a function that runs a placement once and returns its makespan."""
    return lambda: engine.run(placement, timeout=timeout).makespan


def run_metrics(run: Run) -> dict[str, float]:
    """Return the figures of a run that are known, for a tracker."""
    values = {"measured_s": run.measured, "ratio": run.ratio, "regret": run.regret}
    return {name: value for name, value in values.items() if not math.isnan(value)}


def save_refined(refiner: Refiner, folder: Path, info: Mapping[str, Any]) -> dict[str, Path]:
    """Write what a refiner came to: policy, placement, and the cluster as measured.

    Parameters
    ----------
    refiner : Refiner
    folder : pathlib.Path
    info : mapping
        Kept with the policy and the placement.

    Returns
    -------
    dict of str to pathlib.Path
        The files, by their names in a version.
    """
    champion, cluster = refiner.champion, refiner.problem.cluster
    runs = len(refiner.history)
    graph = refiner.problem.graph
    known = {"graph": graph.name, "graph_fingerprint": fingerprint(graph), **info}
    return {
        POLICY: save_policy(refiner.policy, folder / POLICY, info),
        PLACEMENT: Placement(champion.devices, champion.priority, known).save(folder / PLACEMENT),
        CLUSTER: save_cluster(cluster, folder / CLUSTER, f"fitted to {runs:,} measured runs"),
    }
