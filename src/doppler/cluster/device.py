"""Devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from doppler.errors import ClusterError
from doppler.messages import shown

REFERENCE_FLOPS = 1e13
MAX_DEVICES = 1024


@dataclass(frozen=True, slots=True)
class Device:
    """One device.

    Attributes
    ----------
    name : str
        Unique in the cluster.
    kind : str
        Device class, ``"gpu"`` or ``"cpu"``; picks the explicit seconds of a heterogeneous graph.
    flops : float
        Achieved floating-point operations per second (peak times efficiency).
    memory_bandwidth : float
        Bytes per second; infinite where reading costs nothing.
    memory : float
        Capacity in bytes; infinite where it is not limited.
    launch_overhead : float
        Seconds before an op starts to compute.
    slowdown : float
        Multiplies explicit seconds of an op; 1 on the device that they were given for.
    measured : mapping of str to float
        Seconds that ops of a class (:func:`doppler.graph.op_class.op_classes`) were seen to take
        on this device, overhead included; they replace what the rates above predict.
    """

    name: str
    kind: str = "gpu"
    flops: float = REFERENCE_FLOPS
    memory_bandwidth: float = math.inf
    memory: float = math.inf
    launch_overhead: float = 0.0
    slowdown: float = 1.0
    measured: Mapping[str, float] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        for name in ("flops", "memory_bandwidth", "memory", "slowdown"):
            value = getattr(self, name)
            if not value > 0:
                raise ClusterError(f"device {self.name!r}: {name} is {value}, must be > 0")
        if self.slowdown == math.inf:
            raise ClusterError(f"device {self.name!r}: slowdown is inf, must be finite")
        if not 0 <= self.launch_overhead < math.inf:
            raise ClusterError(
                f"device {self.name!r}: launch_overhead is {self.launch_overhead}, "
                "must be finite and >= 0"
            )
        for op_class, seconds in self.measured.items():
            if not op_class:
                raise ClusterError(f"device {self.name!r}: measured names an empty op class")
            if not 0 < seconds < math.inf:
                raise ClusterError(
                    f"device {self.name!r}: measured {shown(op_class)} is {seconds}, "
                    "must be finite and > 0"
                )
