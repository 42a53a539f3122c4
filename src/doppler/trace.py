"""What happened when: the ops and transfers of one run, simulated or measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Trace:
    """Start and end of every op and transfer, in seconds from the start of the run.

    Attributes
    ----------
    op, device : int32 array, shape [ops]
        The ops in order of their start, and where each ran.
    start, end : float64 array, shape [ops]
    transfer_op : int32 array, shape [transfers]
        Whose output was moved, in order of the transfers' start.
    transfer_source, transfer_target : int32 array, shape [transfers]
        From which device to which.
    transfer_start, transfer_end : float64 array, shape [transfers]
    transfer_channel : int32 array, shape [transfers]
        The channel used, -1 for a link that is never contended.
    device_names : tuple of str
    label : str
        Where the trace comes from, ``"simulated"`` or the name of a backend.
    """

    op: IntArray
    device: IntArray
    start: FloatArray
    end: FloatArray
    transfer_op: IntArray
    transfer_source: IntArray
    transfer_target: IntArray
    transfer_start: FloatArray
    transfer_end: FloatArray
    transfer_channel: IntArray
    device_names: tuple[str, ...]
    label: str = "simulated"

    @property
    def makespan(self) -> float:
        """Seconds from the start of the run to the end of the last op."""
        return float(self.end.max()) if self.end.size else 0.0
