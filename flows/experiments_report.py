"""Make the report of the experiments from the cells that are done: reports/experiments.*."""

from __future__ import annotations

from pathlib import Path

from common import exiting, find_server, flow, publish_page, track
from doppler.experiments.report import build_report, report_tables, write_report
from doppler.experiments.settings import ExperimentParams, load_experiments

DATA = Path("data/experiments")
STEM = Path("reports/experiments")


@flow(name="experiments-report", validate_parameters=False)
def report(params: ExperimentParams) -> None:
    """Make the report, and show its claims in Prefect and its tables in W&B."""
    made = build_report(DATA / params.scale)
    write_report(made, STEM)
    with track("experiments", None, params) as trackers:
        for name, columns, rows in report_tables(made):
            trackers.log_table(name, columns, rows)
    publish_page("experiments", STEM.with_suffix(".md").read_text("utf-8"))


if __name__ == "__main__":
    with exiting():
        settings = load_experiments()
        find_server()
        report(settings)
