"""Runs on one device: op after op in the calling thread, without workers or locks.

The ops come in the order in which the executor's worker would take them, and that order, what is
freed when, and the memory that it takes are known before the run.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from doppler.engine.backend import Backend, Session
from doppler.engine.faults import label_of, named, too_little_memory
from doppler.engine.plan import ExecutionPlan
from doppler.errors import OpError
from doppler.graph import Graph

_ID = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Course:
    """The course of a run on one device.

    Attributes
    ----------
    device : int
    steps : list of (op, ops)
        In order; and the ops whose outputs are needed no more after it.
    """

    device: int
    steps: list[tuple[int, tuple[int, ...]]]


def make_course(plan: ExecutionPlan) -> Course | None:
    """Put the ops of a plan in order, if they are all on one device. O(V log V + E)."""
    device = plan.devices[0]
    if plan.devices.count(device) < len(plan.devices):
        return None
    missing = [len(producers) for producers in plan.producers]
    uses = [len(here) + kept for here, kept in zip(plan.here, plan.kept, strict=True)]
    # Without ranks the first that is ready is the first to run, at the start by id.
    ranks = plan.rank
    order = 0
    heap: list[int] = []

    def key(op: int) -> int:
        nonlocal order
        order += 1
        return order << 32 | op if ranks is None else ranks[op]

    heap = [key(op) for op, count in enumerate(missing) if not count]
    heapify(heap)
    steps = []
    while heap:
        op = heappop(heap) & _ID
        spent = []
        for producer in plan.producers[op]:
            uses[producer] -= 1
            if not uses[producer]:
                spent.append(producer)
        for consumer in plan.here[op]:
            missing[consumer] -= 1
            if not missing[consumer]:
                heappush(heap, key(consumer))
        steps.append((op, tuple(spent)))
    return Course(device, steps)


def run_course(graph: Graph, backend: Backend, session: Session, course: Course) -> list[float]:
    """Run a graph on one device.

    Returns
    -------
    list of float, length devices
        Most bytes that each device held at any time.

    Raises
    ------
    EngineError
        If an op fails or memory does not suffice.
    """
    device, steps = course.device, course.steps
    peak = _peak(graph, backend, session, course)
    held, launch = session.held[device], session.launch
    op = -1
    try:
        with session.in_caller(device):
            session.begin()
            for op, spent in steps:
                held[op] = launch(op, device)
                for producer in spent:
                    del held[producer]
            session.wait(op, device, held[op])
    except Exception as error:
        # What the frames of the failed call hold would live as long as the error.
        traceback.clear_frames(error.__traceback__)
        raise named(
            error, OpError, label_of(graph, backend, op, device), backend, op, device
        ) from error
    return peak


def _peak(graph: Graph, backend: Backend, session: Session, course: Course) -> list[float]:
    device, sizes, peak = course.device, session.sizes, list(session.resident)
    live, most, limit = peak[device], peak[device], backend.memory[device]
    for op, spent in course.steps:
        live += sizes[op]
        if live > most:
            most = live
            if live > limit:
                size = sizes[op]
                raise too_little_memory(graph, backend, op, device, size, limit - live + size)
        for producer in spent:
            live -= sizes[producer]
    peak[device] = most
    return peak
