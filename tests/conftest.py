"""Settings of hypothesis, and a seed that is printed, so that every failure can be had again."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, settings

# No test fails because the machine is busy, or because the first example imports something.
settings.register_profile(
    "doppler", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("doppler")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Explore anew in every run, unless a seed is given by the option or by the environment."""
    if config.option.hypothesis_seed is None:
        seed = os.environ.get("HYPOTHESIS_SEED") or str(random.SystemRandom().randrange(2**32))
        config.option.hypothesis_seed = seed


def pytest_report_header(config: pytest.Config) -> str:
    """Print what draws the same examples again."""
    return f"hypothesis seed: HYPOTHESIS_SEED={config.option.hypothesis_seed}"
