"""Refining on an engine: run after run, for some episodes or some time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from doppler.engine import Engine
from doppler.errors import EngineError
from doppler.placement import Placement
from doppler.refinement.history import ProductionRun
from doppler.refinement.refiner import Refiner

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


def run_metrics(run: ProductionRun) -> dict[str, float]:
    """Return the figures of a run that are known, for a tracker."""
    values = {"measured_s": run.measured, "ratio": run.ratio, "regret": run.regret}
    return {name: value for name, value in values.items() if not math.isnan(value)}
