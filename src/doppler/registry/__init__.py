"""Versions of policies: champion, challengers, promotion, rollback."""

from doppler.registry.history import Event, Status
from doppler.registry.origin import describe_origin
from doppler.registry.registry import DIRECTORY, Registry
from doppler.registry.version import POLICY, Version

__all__ = [
    "DIRECTORY",
    "POLICY",
    "Event",
    "Registry",
    "Status",
    "Version",
    "describe_origin",
]
