"""What the experiments are called and ask, in the order of the report."""

from __future__ import annotations

from collections.abc import Sequence

from doppler.experiments.layout import Chart, Section, Table

HEADINGS = {
    "seconds": (
        "Main comparison at equal seconds",
        "Which method places best if each has the same seconds of one core?",
    ),
    "episodes": (
        "Main comparison at equal episodes",
        "Which method makes most of as many tries, and do the learned baselines learn?",
    ),
    "measured": (
        "Measured on the engine",
        "Do real runs rank the methods as the simulator does?",
    ),
    "synchronous": (
        "Work-conserving against bulk-synchronous execution",
        "What does it save that a device never waits for a level of the graph to end, on the same "
        "placements?",
    ),
    "ablation": (
        "Policies, message passing, features, priorities",
        "What does each part of the policy contribute, at equal episodes?",
    ),
    "stages": (
        "Training stages",
        "Are imitation, simulation and the real system all needed, measured on the engine?",
    ),
    "transfer": (
        "Transfer",
        "What is a policy worth on another workload, number of devices or machine, at once and "
        "after a few episodes?",
    ),
    "scaling": (
        "Scaling",
        "How do time and memory of a training step and of inference grow with the graph?",
    ),
    "robustness": (
        "Robustness",
        "What is left of a placement if durations vary, or the costs that it was planned with were "
        "wrong?",
    ),
    "search": (
        "Search with and without the policy",
        "Does the policy help a search that has the same seconds?",
    ),
    "exact": (
        "Exact references",
        "How far are placements from the optimum, by proof and not by comparison?",
    ),
}
_ABSENT = "Not run: there are no cells of this experiment."


def section(
    name: str,
    found: str = _ABSENT,
    tables: Sequence[Table] = (),
    charts: Sequence[Chart] = (),
    more: Sequence[Chart] = (),
) -> Section:
    """Make the section of an experiment; without what it found, it says that it was not run."""
    title, asked = HEADINGS[name]
    return Section(name, title, asked, found, tuple(tables), tuple(charts), tuple(more))
