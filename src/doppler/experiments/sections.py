"""Every section of the report."""

from __future__ import annotations

from collections.abc import Callable

from doppler.experiments.comparison_sections import (
    episodes_section,
    exact_section,
    measured_section,
    seconds_section,
    synchronous_section,
)
from doppler.experiments.layout import Section
from doppler.experiments.policy_sections import (
    ablation_section,
    robustness_section,
    scaling_section,
    search_section,
    stages_section,
    transfer_section,
)
from doppler.experiments.results import Results

_MAKERS: tuple[Callable[[Results], Section], ...] = (
    seconds_section,
    episodes_section,
    measured_section,
    synchronous_section,
    ablation_section,
    stages_section,
    transfer_section,
    scaling_section,
    robustness_section,
    search_section,
    exact_section,
)


def sections(results: Results) -> list[Section]:
    """Make every section; one whose experiment was not run says so."""
    return [make(results) for make in _MAKERS]
