"""What does happen: work-conserving execution on real devices."""

from doppler.engine.backend import Backend, Session, Times, Workspace
from doppler.engine.cpu import CpuBackend
from doppler.engine.emulated import EmulatedBackend
from doppler.engine.engine import Engine, Execution, execute, make_backend
from doppler.engine.idleness import longest_idle

__all__ = [
    "Backend",
    "CpuBackend",
    "EmulatedBackend",
    "Engine",
    "Execution",
    "Session",
    "Times",
    "Workspace",
    "execute",
    "longest_idle",
    "make_backend",
]
