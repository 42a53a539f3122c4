"""Measuring a machine: rates, links and op classes, as a cluster."""

from doppler.profiling.profile import Profile, profile

__all__ = ["Profile", "profile"]
