"""Versions of policies: champion, challengers, promotion, rollback."""

from doppler.registry.history import Event, Status
from doppler.registry.origin import describe_origin
from doppler.registry.placements import (
    is_placement,
    placement_name,
    read_placements,
)
from doppler.registry.registry import DIRECTORY, Registry
from doppler.registry.version import CLUSTER, POLICY, Version

__all__ = [
    "CLUSTER",
    "DIRECTORY",
    "POLICY",
    "Event",
    "Registry",
    "Status",
    "Version",
    "describe_origin",
    "is_placement",
    "placement_name",
    "read_placements",
]
