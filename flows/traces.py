"""Find the hints of every training case and let the teacher place it: data/traces/."""

from __future__ import annotations

from typing import NamedTuple

from common import flow, main, markdown_table, publish, step
from doppler.heuristics.whole_graph import whole_graph
from doppler.training.demonstrations import save_demonstrations
from doppler.training.teaching import TraceSettings, record
from training_set import Training, TrainingSections, training_set, validation_set


class Params(TrainingSections):
    """The sections that this stage reads."""

    traces: TraceSettings


class Row(NamedTuple):
    """What the artifact says of a case."""

    case: str
    ops: int
    devices: int
    traces: int
    best_hint_to_bound: float


@step("record {case.name}")
def show(case: Training, settings: TraceSettings, seed: int) -> Row:
    """Find the hints of one case, record the teacher on it, and save both."""
    problem = case.load()
    hints = whole_graph(problem, settings.hints, seed) if settings.hints else []
    traces = record(problem, settings, seed, hints)
    save_demonstrations(traces, case.traces)
    best = min((seconds for _, seconds in hints), default=float("nan"))
    return Row(
        case.name,
        problem.n_ops,
        problem.n_devices,
        len(traces.order),
        best / max(problem.lower_bound, 1e-300),
    )


@flow(name="traces")
def traces(params: Params) -> None:
    """Record every case that is trained on or validated by."""
    chosen = [*training_set(params), *validation_set(params)]
    rows = [show(case, params.traces, params.seed) for case in chosen]
    publish(
        "traces", f"Demonstrations of {params.traces.teacher}", markdown_table(Row._fields, rows)
    )


if __name__ == "__main__":
    main(traces, Params)
