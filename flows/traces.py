"""Let the teacher place every training case: data/traces/CASE.safetensors."""

from __future__ import annotations

from typing import NamedTuple

from common import flow, load_problem, main, markdown_table, publish, step, traces_path
from doppler.params import Case, Params, cases
from doppler.training.traces import record, save_traces


class Row(NamedTuple):
    """What the artifact says of a case."""

    case: str
    ops: int
    devices: int
    traces: int


@step("record {case}")
def show(case: Case, teacher: str, count: int, seed: int) -> Row:
    """Record the teacher on one case and save what it did."""
    problem = load_problem(case)
    traces = record(problem, teacher, count, seed)
    save_traces(traces, traces_path(case))
    return Row(str(case), problem.n_ops, problem.n_devices, len(traces.order))


@flow(name="traces")
def traces(params: Params) -> None:
    """Record every training case."""
    rows = [
        show(case, params.traces.teacher, params.traces.count, params.seed)
        for case in cases(params.training)
    ]
    publish("traces", f"Traces of {params.traces.teacher}", markdown_table(Row._fields, rows))


if __name__ == "__main__":
    main(traces)
