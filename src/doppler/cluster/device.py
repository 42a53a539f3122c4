"""Devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from doppler.checks import check_mapping, check_number, check_type
from doppler.errors import ClusterError
from doppler.messages import shown, shown_value

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
        where = f"device {shown_value(self.name)}"
        check_type(self.name, str, "device: name", ClusterError)
        check_type(self.kind, str, f"{where}: kind", ClusterError)
        for name in ("flops", "memory_bandwidth", "memory"):
            what = f"{where}: {name}"
            check_number(getattr(self, name), what, above=True, infinite=True, error=ClusterError)
        check_number(self.slowdown, f"{where}: slowdown", above=True, error=ClusterError)
        check_number(self.launch_overhead, f"{where}: launch_overhead", error=ClusterError)
        measured = check_mapping(self.measured, f"{where}: measured", ClusterError)
        for op_class, seconds in measured.items():
            if not op_class:
                raise ClusterError(f"{where}: measured names an empty op class")
            what = f"{where}: measured {shown(op_class)}"
            check_number(seconds, what, above=True, error=ClusterError)
