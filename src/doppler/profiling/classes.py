"""Times of op classes: every distinct op of some graphs, on all devices at once."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from doppler.engine.compiled_graph import each_tensor
from doppler.errors import GraphError
from doppler.graph import Graph
from doppler.graph.calls import ATEN
from doppler.graph.execution import FAULTS, compile_op
from doppler.graph.op_class import Shape, input_shapes, op_classes
from doppler.graph.spec import OpSpec
from doppler.installed_memory import installed_memory
from doppler.messages import shown
from doppler.profiling.rates import Rates, busy_work
from doppler.profiling.timing import Timing, pool
from doppler.profiling.workers import Worker, Workers

if TYPE_CHECKING:
    from torch import Tensor

_ELEMENT_BYTES = 4
# Outputs of the last ops stay, as those of a graph wait for their consumers: then the next op
# cannot have the memory of the one before, which is still in the cache.
_ALIVE = 4


@dataclass(frozen=True, eq=False)
class OpClass:
    """One kind of op that is to be measured.

    Attributes
    ----------
    name : str
    spec : OpSpec
        Of one of its ops.
    shapes : tuple of tuple of int
        Of the inputs.
    count : int
        How many ops have it, over all graphs.
    flops, moved : float
        Floating-point operations of one op, and bytes that it reads and writes.
    inputs : tuple of (tensor or tuple of tensors), or None
        Of calls of torch's operators: tensors of any dtype on the device ``meta``. Of all other
        ops the inputs are float32.
    """

    name: str
    spec: OpSpec
    shapes: tuple[Shape, ...]
    count: int
    flops: float
    moved: float
    inputs: tuple[Any, ...] | None = None

    def expected(self, rates: Rates) -> float:
        """Predict the seconds of one op, as the cost model does."""
        return rates.launch_overhead + max(
            self.flops / rates.flops, self.moved / rates.memory_bandwidth
        )

    @property
    def held(self) -> float:
        """Bytes of the inputs and the output."""
        if self.inputs is not None:
            return max(self.moved, float(sum(map(_bytes, self.inputs))))
        elements = sum(math.prod(shape) for shape in (*self.shapes, self.spec.shape))
        return float(elements * _ELEMENT_BYTES)


@dataclass(frozen=True, eq=False)
class ClassTimes:
    """What was measured, and what was not.

    Attributes
    ----------
    timings : list of mapping of str to Timing, length devices
        By the name of the class.
    left_out : mapping of str to str
        Why a class was not measured on every device.
    """

    timings: list[dict[str, Timing]]
    left_out: dict[str, str] = field(default_factory=dict)


def find_classes(graphs: Sequence[Graph]) -> list[OpClass]:
    """Collect the distinct classes of the executable ops of some graphs.

    Raises
    ------
    GraphError
        If a graph has no executable ops, or calls of torch's operators that cannot run.
    """
    counts: Counter[str] = Counter()
    examples: dict[str, tuple[Graph, int]] = {}
    for graph in graphs:
        if graph.specs is None:
            raise GraphError(
                f"{graph.source or graph.name}: the graph has no executable ops to measure; "
                "give a workload, or leave --graph out"
            )
        for op, name in enumerate(op_classes(graph)):
            counts[name] += 1
            examples.setdefault(name, (graph, op))
    found = []
    read = {id(graph): _calls_inputs(graph) for graph, _ in examples.values()}
    for name, (graph, op) in examples.items():
        assert graph.specs is not None
        inputs = read[id(graph)]
        found.append(
            OpClass(
                name,
                graph.specs[op],
                input_shapes(graph, op),
                counts[name],
                float(graph.flops[op]),
                float(graph.bytes_read[op] + graph.output_bytes[op]),
                None if inputs is None else inputs[op],
            )
        )
    return found


def _calls_inputs(graph: Graph) -> list[tuple[Any, ...]] | None:
    """Check a graph of calls of torch's operators, and tell what each op reads."""
    if all(spec.function != ATEN for spec in graph.specs or ()):
        return None
    import torch

    from doppler.graph.inference import check_ops

    dtypes = {
        name: getattr(torch, tensor.dtype or "float32") for name, tensor in graph.tensors.items()
    }
    return check_ops(graph, dtypes, installed_memory())


def _bytes(value: Any) -> int:
    if isinstance(value, tuple):
        return sum(map(_bytes, value))
    return 0 if value is None else int(value.numel() * value.element_size())


def measure_classes(
    workers: Workers,
    rates: Sequence[Rates],
    memory: Sequence[float],
    classes: Sequence[OpClass],
    repeats: int,
    budget: float,
    seed: int = 0,
) -> ClassTimes:
    """Time ops of every class, each device in an order of its own, all at the same time.

    A device runs through all classes in a random order, then again in another, so that what the
    others do meanwhile is now this and now that, as in the run of a graph; an op is timed
    ``repeats`` times after once to warm up. Its inputs are normal random numbers, written just
    before.

    Parameters
    ----------
    workers : Workers
    rates : sequence of Rates, one for each device
        Tell how long an op is going to take.
    memory : sequence of float
        Bytes that each device can spare.
    classes : sequence of OpClass
    repeats : int
    budget : float
        Seconds. What is expected to take longer than what is left is not measured; the classes
        that take the most time in the graphs come first.
    seed : int
        Of the orders.
    """
    chosen, left_out = _plan(rates, memory, classes, repeats, budget)
    deadline = time.perf_counter() + budget
    failures: dict[str, str] = {}
    lock = threading.Lock()

    def fail(name: str, worker: Worker, error: Exception) -> None:
        with lock:
            failures.setdefault(name, f"{worker.name}: {shown(str(error))}")

    def prepared(op_class: OpClass, worker: Worker, numbers: Tensor) -> list[Any] | None:
        try:
            if op_class.inputs is not None:
                return [
                    each_tensor(value, lambda meta: worker.like(meta, numbers))
                    for value in op_class.inputs
                ]
            return [worker.tensor(shape, numbers) for shape in op_class.shapes]
        except RuntimeError as error:  # too little memory
            fail(op_class.name, worker, error)
            return None

    def measure(worker: Worker) -> dict[str, list[float]]:
        place = workers.all.index(worker)
        draw = random.Random(seed * 1009 + place)
        numbers = worker.pool()
        alive: list[Any] = [None] * _ALIVE
        functions = {op_class.name: compile_op(op_class.spec, worker.device) for op_class in chosen}
        samples: dict[str, list[float]] = {op_class.name: [] for op_class in chosen}
        order = list(chosen)
        for turn in range(repeats + 1):
            if turn:
                draw.shuffle(order)
            inputs = prepared(order[0], worker, numbers)
            for step, op_class in enumerate(order):
                if time.perf_counter() >= deadline:
                    return samples
                # Those of the next op, so that this one comes between, as in a graph.
                later = order[(step + 1) % len(order)]
                coming = prepared(later, worker, numbers)
                if inputs is not None and op_class.name not in failures:
                    try:
                        seconds = _timed(
                            worker, partial(functions[op_class.name], inputs), alive, step
                        )
                        if turn:
                            samples[op_class.name].append(seconds)
                    except (*FAULTS, GraphError) as error:
                        fail(op_class.name, worker, error)
                inputs = coming
        return samples

    found = workers.together(measure, busy_work) if chosen else [{} for _ in workers.all]
    for op_class in chosen:
        if not all(samples.get(op_class.name) for samples in found):
            failures.setdefault(op_class.name, "the budget ended before its turn")
    kept = [
        {name: samples for name, samples in on_device.items() if name not in failures}
        for on_device in found
    ]
    timings = pool([worker.device for worker in workers.all], kept)
    return ClassTimes(timings, {**left_out, **failures})


def _timed(worker: Worker, run: Callable[[], Any], alive: list[Any], step: int) -> float:
    made: list[Any] = []
    seconds = worker.seconds(lambda: made.append(run()))
    alive[step % len(alive)] = made[0]
    return seconds


def _plan(
    rates: Sequence[Rates],
    memory: Sequence[float],
    classes: Sequence[OpClass],
    repeats: int,
    budget: float,
) -> tuple[list[OpClass], dict[str, str]]:
    """Choose what fits in the memory and the budget, what matters most first."""
    expected = {
        op_class.name: max(op_class.expected(rate) for rate in rates) for op_class in classes
    }
    ranked = sorted(classes, key=lambda op_class: -op_class.count * expected[op_class.name])
    chosen: list[OpClass] = []
    left_out: dict[str, str] = {}
    left = budget
    for op_class in ranked:
        # The inputs are written first, at about the pace at which they are read.
        once = expected[op_class.name] + max(
            op_class.held / rate.memory_bandwidth for rate in rates
        )
        if any(op_class.held * (1 + _ALIVE) > room for room in memory):
            left_out[op_class.name] = f"takes {op_class.held:.3g} bytes"
        elif once * (repeats + 1) > left:
            left_out[op_class.name] = f"would take about {once * (repeats + 1):.3g} s"
        else:
            left -= once * (repeats + 1)
            chosen.append(op_class)
    return chosen, left_out
