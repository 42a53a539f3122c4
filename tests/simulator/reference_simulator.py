"""The simulator's rules in plain Python, event by event, with no thought for speed.

An op starts when its device is free and its inputs have arrived. Events are taken in order of
time; at equal times every end comes before any start, and lower devices come first. A free device
takes the ready op with the smallest (priority, id), or without priority (ready time, id). When an
op ends, its consumers are visited by ascending id; the first on another device causes the one
transfer to that device. Transfers on a channel take turns in the order in which they were asked
for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from doppler import Placement, Problem


@dataclass
class Transfer:
    op: int
    source: int
    target: int
    channel: int
    start: float
    end: float

    def as_tuple(self) -> tuple[int, int, int, int, float, float]:
        return (self.op, self.source, self.target, self.channel, self.start, self.end)


@dataclass
class Run:
    start: dict[int, float] = field(default_factory=dict)
    end: dict[int, float] = field(default_factory=dict)
    ready: dict[int, float] = field(default_factory=dict)
    transfers: list[Transfer] = field(default_factory=list)

    @property
    def makespan(self) -> float:
        return max(self.end.values())


def simulate_slowly(
    problem: Problem,
    placement: Placement,
    op_factor: Callable[[int], float] = lambda op: 1.0,
    transfer_factor: Callable[[int, int], float] = lambda op, target: 1.0,
) -> Run:
    """Simulate; the factors multiply the time of an op, and that of its output to a device."""
    arrays = problem.arrays
    edges = list(zip(problem.graph.src.tolist(), problem.graph.dst.tolist(), strict=True))
    consumers: dict[int, list[int]] = {op: [] for op in range(problem.n_ops)}
    inputs: dict[int, list[int]] = {op: [] for op in range(problem.n_ops)}
    for u, v in sorted(edges):
        consumers[u].append(v)
        inputs[v].append(u)
    device_of = placement.devices.tolist()
    priority = None if placement.priority is None else placement.priority.tolist()

    run = Run()
    running: dict[int, int] = {}
    waiting = [
        {op for op in range(problem.n_ops) if device_of[op] == device}
        for device in range(problem.n_devices)
    ]
    arrived: dict[tuple[int, int], float] = {}
    channel_free = dict.fromkeys(range(arrays.n_channels), 0.0)
    now = 0.0

    def order(op: int) -> tuple[float, int]:
        return (run.ready[op] if priority is None else priority[op], op)

    for op in range(problem.n_ops):
        if not inputs[op]:
            run.ready[op] = 0.0

    while len(run.end) < problem.n_ops or running:
        ends = [(run.end[op], 0, device) for device, op in running.items()]
        starts = [
            (max(now, min(times)), 1, device)
            for device in range(problem.n_devices)
            if device not in running
            and (times := [run.ready[op] for op in waiting[device] if op in run.ready])
        ]
        now, is_start, device = min(ends + starts)
        if is_start:
            choices = [op for op in waiting[device] if run.ready.get(op, now + 1) <= now]
            op = min(choices, key=order)
            waiting[device].remove(op)
            running[device] = op
            run.start[op] = now
            run.end[op] = now + float(arrays.compute[op, device]) * op_factor(op)
            continue
        op = running.pop(device)
        arrived[op, device] = now
        for consumer in consumers[op]:
            target = device_of[consumer]
            if (op, target) not in arrived:
                seconds = float(
                    arrays.latency[device, target]
                    + arrays.volume[op] * arrays.factor[device, target]
                ) * transfer_factor(op, target)
                channel = int(arrays.channel[device, target])
                begins = now
                if channel >= 0:
                    begins = max(now, channel_free[channel])
                    channel_free[channel] = begins + seconds
                arrived[op, target] = begins + seconds
                run.transfers.append(
                    Transfer(op, device, target, channel, begins, begins + seconds)
                )
            if all((u, target) in arrived for u in inputs[consumer]):
                run.ready[consumer] = max(arrived[u, target] for u in inputs[consumer])
    return run


def peak_memory_slowly(problem: Problem, placement: Placement, run: Run) -> list[float]:
    """Most bytes on each device: parameters, and what is held over [start, free) at any start."""
    graph = problem.graph
    device_of = placement.devices.tolist()
    consumers: dict[int, list[int]] = {op: [] for op in range(problem.n_ops)}
    for u, v in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
        consumers[u].append(v)
    held: list[tuple[int, float, float, float]] = []
    for op in range(problem.n_ops):
        until = [run.end[op]]
        until += [run.end[v] for v in consumers[op] if device_of[v] == device_of[op]]
        until += [sent.end for sent in run.transfers if sent.op == op]
        last = max(until) if consumers[op] else float("inf")
        held.append((device_of[op], run.start[op], last, float(graph.output_bytes[op])))
    for sent in run.transfers:
        until = [run.end[v] for v in consumers[sent.op] if device_of[v] == sent.target]
        last = max([sent.end, *until])
        held.append((sent.target, sent.start, last, float(graph.output_bytes[sent.op])))
    peaks = []
    for device in range(problem.n_devices):
        resident = sum(
            float(graph.param_bytes[op]) for op in range(problem.n_ops) if device_of[op] == device
        )
        mine = [(start, last, size) for where, start, last, size in held if where == device]
        most = max(
            (sum(size for start, last, size in mine if start <= at < last) for at, _, _ in mine),
            default=0.0,
        )
        peaks.append(resident + most)
    return peaks
