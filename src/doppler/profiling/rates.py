"""Rates of a device: FLOP/s of matmuls, bytes/s of elementwise ops, seconds of an empty op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from doppler.graph.execution import run_op
from doppler.graph.spec import OpSpec
from doppler.profiling.timing import Timing, pool
from doppler.profiling.workers import Worker, Workers

_ELEMENT_BYTES = 4
# Sizes double until one takes so long; a rate is the median over the last three.
_LONG_ENOUGH = 0.02
_LAST = 3
_MATMULS = tuple(2**power for power in range(7, 15))
_VECTORS = tuple(2**power for power in range(16, 31, 2))
# What a device does while others are measured: about as a graph would.
_BUSY = 384


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device achieves while all devices compute.

    Attributes
    ----------
    flops : float
        FLOP/s.
    memory_bandwidth : float
        Bytes/s, read and written together.
    launch_overhead : float
        Seconds of an op on one element.
    matmuls, vectors : mapping of int to Timing
        Of square matmuls by their size, and of sums of two vectors by their length.
    """

    flops: float
    memory_bandwidth: float
    launch_overhead: float
    matmuls: dict[int, Timing]
    vectors: dict[int, Timing]


def measure_rates(workers: Workers, repeats: int) -> list[Rates]:
    """Measure every device while the others compute as well.

    Parameters
    ----------
    workers : Workers
    repeats : int
        Timings of each size, after one that warms up.
    """

    def measure(worker: Worker) -> dict[tuple[str, int], list[float]]:
        numbers = worker.pool()

        def matmul(size: int) -> Callable[[], object]:
            one, other = (worker.tensor((size, size), numbers) for _ in range(2))
            spec = OpSpec("einsum", (0, 1), (size, size), {"equation": "ab,bc->ac"})
            return lambda: run_op(spec, (one, other))

        def vector(length: int) -> Callable[[], object]:
            one, other = (worker.tensor((length,), numbers) for _ in range(2))
            spec = OpSpec("add", (0, 1), (length,))
            return lambda: run_op(spec, (one, other))

        return {
            **_series(worker, "least", vector, (1,), 10 * repeats),
            **_series(worker, "matmul", matmul, _MATMULS, repeats),
            **_series(worker, "vector", vector, _VECTORS, repeats),
        }

    found = workers.together(measure, busy_work)
    return [_rates(timings) for timings in pool([w.device for w in workers.all], found)]


def _rates(timings: Mapping[tuple[str, int], Timing]) -> Rates:
    matmuls = {size: timing for (kind, size), timing in timings.items() if kind == "matmul"}
    vectors = {size: timing for (kind, size), timing in timings.items() if kind == "vector"}
    return Rates(
        flops=_rate({size: 2.0 * size**3 for size in matmuls}, matmuls),
        memory_bandwidth=_rate({n: 3.0 * _ELEMENT_BYTES * n for n in vectors}, vectors),
        launch_overhead=timings["least", 1].seconds,
        matmuls=matmuls,
        vectors=vectors,
    )


def busy_work(worker: Worker) -> Callable[[], object]:
    """Make what keeps a device busy: a matmul of about a millisecond of a core."""
    numbers = worker.pool(_BUSY * _BUSY)
    one, other = (worker.tensor((_BUSY, _BUSY), numbers) for _ in range(2))
    return lambda: one @ other


def _series(
    worker: Worker,
    kind: str,
    make: Callable[[int], Callable[[], object]],
    sizes: Sequence[int],
    repeats: int,
) -> dict[tuple[str, int], list[float]]:
    samples = {}
    for size in sizes:
        run = make(size)
        worker.seconds(run)
        samples[kind, size] = [worker.seconds(run) for _ in range(repeats)]
        if min(samples[kind, size]) > _LONG_ENOUGH:
            break
    return samples


def _rate(work: dict[int, float], timings: dict[int, Timing]) -> float:
    return median([work[size] / timings[size].seconds for size in sorted(timings)[-_LAST:]])
