"""What does happen: work-conserving execution on real devices."""

from doppler.engine.backend import Backend, Deployment, Session, Times
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
    "Deployment",
    "EmulatedBackend",
    "Engine",
    "Execution",
    "Parity",
    "Session",
    "Times",
    "compare_outputs",
    "execute",
    "longest_idle",
    "make_backend",
]
