"""What does happen: work-conserving execution on real devices."""

from doppler.engine.backend import Backend, Session, Times, Workspace
from doppler.engine.cpu import CpuBackend, CpuSession
from doppler.engine.cuda import CudaBackend
from doppler.engine.emulated import EmulatedBackend
from doppler.engine.engine import Engine, Execution, execute, make_backend
from doppler.engine.idleness import longest_idle
from doppler.engine.parity import Parity, compare_outputs

__all__ = [
    "Backend",
    "CpuBackend",
    "CpuSession",
    "CudaBackend",
    "EmulatedBackend",
    "Engine",
    "Execution",
    "Parity",
    "Session",
    "Times",
    "Workspace",
    "compare_outputs",
    "execute",
    "longest_idle",
    "make_backend",
]
