"""The time as journals, registries and reports write it."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> str:
    """Tell the time: UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
