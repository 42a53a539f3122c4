"""The schedule under construction, in plain Python with no thought for speed."""

from __future__ import annotations

from doppler import Problem


class PlainPartial:
    """Ops go one after the other to the end of a device; channels move one tensor at a time.

    An op's inputs are sent in the order in which they are ready, equal ones by id; a tensor is
    sent to a device once.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.inputs: list[list[int]] = [[] for _ in range(problem.n_ops)]
        self.consumers: list[list[int]] = [[] for _ in range(problem.n_ops)]
        for u, v in zip(problem.graph.src.tolist(), problem.graph.dst.tolist(), strict=True):
            self.inputs[v].append(u)
            self.consumers[u].append(v)
        self.device: dict[int, int] = {}
        self.finish: dict[int, float] = {}
        self.device_free = [0.0] * problem.n_devices
        self.channel_free = [0.0] * problem.arrays.n_channels
        self.arrived: dict[tuple[int, int], float] = {}

    def start(self, op: int, device: int, *, keep: bool = False) -> float:
        """Earliest start of an op on a device; ``keep`` notes the transfers that it causes."""
        arrays = self.problem.arrays
        channel_free = list(self.channel_free)
        arrived = dict(self.arrived)
        start = self.device_free[device]
        inputs = sorted(self.inputs[op])
        if arrays.n_channels:
            inputs.sort(key=lambda u: self.finish[u])
        for u in inputs:
            source = self.device[u]
            if source == device:
                start = max(start, self.finish[u])
                continue
            if (u, device) not in arrived:
                seconds = float(
                    arrays.latency[source, device]
                    + arrays.volume[u] * arrays.factor[source, device]
                )
                channel = int(arrays.channel[source, device])
                sent = self.finish[u]
                if channel >= 0:
                    sent = max(sent, channel_free[channel])
                    channel_free[channel] = sent + seconds
                arrived[u, device] = sent + seconds
            start = max(start, arrived[u, device])
        if keep:
            self.channel_free, self.arrived = channel_free, arrived
        return start

    def sent(self, op: int, device: int) -> float:
        """Seconds of the transfers that placing the op on the device needs."""
        volume = self.problem.arrays.volume
        return sum(
            self.transfer(self.device[u], device, volume[u])
            for u in self.inputs[op]
            if self.device[u] != device and (u, device) not in self.arrived
        )

    def place(self, op: int, device: int) -> None:
        """Put an op at its earliest start."""
        start = self.start(op, device, keep=True)
        self.device[op] = device
        self.finish[op] = start + float(self.problem.arrays.compute[op, device])
        self.device_free[device] = self.finish[op]

    def affinity(self, op: int, device: int, homes: dict[int, int] | None = None) -> float:
        """Communication that placing the op on the device forces on its consumers.

        ``homes`` are the devices that count, those of the ops placed so far if left out.
        """
        volume = self.problem.arrays.volume
        homes = self.device if homes is None else homes
        return sum(
            self.transfer(homes[u], device, min(volume[u], volume[op]))
            for w in self.consumers[op]
            for u in self.inputs[w]
            if u != op and u in homes and homes[u] != device
        )

    def transfer(self, source: int, target: int, volume: float) -> float:
        """Seconds that a tensor takes between two devices, no other being moved."""
        arrays = self.problem.arrays
        return float(arrays.latency[source, target] + volume * arrays.factor[source, target])
