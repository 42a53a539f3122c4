"""Speed of the engine: overhead of an op beside Ray and Dask, and what a second device gives.

Overhead: a graph of ops that do next to nothing runs on two devices; the seconds from handing it
over until its outputs are back, divided by the number of ops. Nothing is subtracted. Doppler, Ray
and Dask run the same ops on the same placement; whatever can be made ready before is ready before
the clock starts (processes, tensors, the graph itself), and each has runs to warm up. They are
measured one after the other, so that the processes of none disturb another.

A second device: two equal chains of matrix products that have nothing to do with each other, both
on one device and one on each, in turns, each device with one thread. Two plain threads that run
the same products say how much the machine gives.

``measure()`` returns the figures; ``python benchmarks/engine.py [--json]`` prints them.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from figures import Bar, machine, table, verdicts
from peers import Runner, Work

from doppler import Graph, Placement
from doppler.engine import CpuBackend, Engine
from doppler.graph.execution import make_tensors, run_sequential
from doppler.graph.spec import OpSpec, TensorSpec, Tile

if TYPE_CHECKING:
    from torch import Tensor

DEVICES = 2
PEERS = ("ray", "distributed")
BARS = (
    Bar("ray_ratio", "overhead of an op on Ray actors, times Doppler's", True, 10.0),
    Bar("dask_ratio", "overhead of an op on dask.distributed, times Doppler's", True, 30.0),
    Bar("two_device_speedup", "two devices on independent halves, times one", True, 1.8),
)
BAD_INPUT = 2


def missing_peers() -> list[str]:
    """Name the peers that are not installed."""
    return [name for name in PEERS if find_spec(name) is None]


def advice(missing: Sequence[str]) -> str:
    """Say what to do about peers that are not installed."""
    return f"{' and '.join(missing)} not installed: say pip install '.[bench]'"


def trivial_graph(n_ops: int = 2000, width: int = 50, elements: int = 8, seed: int = 0) -> Graph:
    """Make a graph of ops that do next to nothing, in layers.

    The first layer is the ``relu`` of the inputs. Below it an op is the ``relu`` of one op of the
    layer above or the ``add`` of two, drawn at random so that every op has a reader; the last
    layer is the result.

    Parameters
    ----------
    n_ops, width : int
        Of the graph, and of a layer, which divides it.
    elements : int
        Of every tensor, 4 bytes each.
    """
    rng = np.random.default_rng(seed)
    shape = (1, elements)
    rows = [((row, row + 1), (0, elements)) for row in range(width)]
    specs = [OpSpec("relu", (Tile("x", row),), shape) for row in rows]
    for above in range(0, n_ops - width, width):
        for own, other in zip(rng.permutation(width), rng.permutation(width), strict=True):
            if own == other or rng.integers(2):
                specs.append(OpSpec("relu", (above + int(own),), shape))
            else:
                specs.append(OpSpec("add", (above + int(own), above + int(other)), shape))
    last = n_ops - width
    return executable("trivial", specs, {"x": (width, elements)}, dict(enumerate(rows, last)))


def halves_graph(length: int = 12, size: int = 512) -> Graph:
    """Make two chains of products of square matrices that have nothing to do with each other.

    Parameters
    ----------
    length : int
        Products in a chain; op ``i`` belongs to chain ``i // length``.
    size : int
        Of the matrices; all products of a chain multiply by the same.
    """
    whole = ((0, size), (0, size))
    product = {"equation": "ij,jk->ik", "scale": size**-0.5}
    specs = []
    for half in range(2):
        read: int | Tile = Tile(f"x{half}", whole)
        for _ in range(length):
            specs.append(OpSpec("einsum", (read, Tile(f"w{half}", whole)), (size, size), product))
            read = len(specs) - 1
    shapes = {f"{name}{half}": (size, size) for name in "xw" for half in range(2)}
    results = {(half + 1) * length - 1: ((half, half + 1), *whole[1:]) for half in range(2)}
    return executable("halves", specs, shapes, results)


def executable(
    name: str,
    specs: Sequence[OpSpec],
    shapes: Mapping[str, tuple[int, ...]],
    outputs: Mapping[int, tuple[tuple[int, int], ...]],
) -> Graph:
    """Make a graph of ops, with the edges and bytes that follow from them."""
    edges = [
        (value, op)
        for op, spec in enumerate(specs)
        for value in spec.inputs
        if isinstance(value, int)
    ]
    src, dst = np.array(edges).T
    return Graph.build(
        len(specs),
        src,
        dst,
        name=name,
        output_bytes=[4.0 * np.prod(spec.shape) for spec in specs],
        specs=specs,
        tensors={tensor: TensorSpec(shape) for tensor, shape in shapes.items()},
        outputs={op: Tile("y", slices) for op, slices in outputs.items()},
    )


class DopplerRunner:
    """The engine on the CPU, a thread for every device."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.makespans: list[float] = []

    def __enter__(self) -> Self:
        backend = CpuBackend(self.work.n_devices, threads=1)
        self._engine = Engine(self.work.graph, backend, tensors=self.work.tensors)
        return self

    def __exit__(self, *error: object) -> None:
        self._engine.close()

    def run(self) -> tuple[float, dict[int, Tensor]]:
        """Run the graph; seconds until its outputs are here, and the outputs."""
        begin = time.perf_counter()
        execution = self._engine.run(self.work.placement)
        seconds = time.perf_counter() - begin
        self.makespans.append(execution.makespan)
        return seconds, execution.outputs


def timed(runner: Runner, expected: dict[int, Tensor], warm_up: int, repeats: int) -> list[float]:
    """Run a graph some times; seconds of each run.

    Raises
    ------
    AssertionError
        If the outputs are not those of a sequential run.
    """
    taken = []
    for _ in range(warm_up + repeats):
        # What came before is not to be collected while the clock runs.
        gc.collect()
        seconds, outputs = runner.run()
        taken.append(seconds)
        if outputs.keys() != expected.keys() or not all(
            tensor.allclose(expected[op], rtol=1e-4, atol=1e-4) for op, tensor in outputs.items()
        ):
            raise AssertionError(f"{type(runner).__name__}: outputs differ from a sequential run")
    return taken[warm_up:]


def overhead(
    n_ops: int = 2000, width: int = 50, repeats: int = 9, warm_up: int = 3
) -> dict[str, Any]:
    """Run trivial ops with Doppler, Ray, Dask, and Doppler again; medians over the repeats."""
    from on_dask import DaskRunner
    from on_ray import RayRunner

    graph = trivial_graph(n_ops, width)
    devices = np.random.default_rng(1).integers(0, DEVICES, n_ops)
    tensors = make_tensors(graph)
    work = Work(graph, Placement(devices, priority=np.arange(n_ops)), tensors)
    sequential = []
    for _ in range(warm_up + repeats):
        begin = time.perf_counter()
        expected = run_sequential(graph, tensors)
        sequential.append(time.perf_counter() - begin)
    taken: dict[str, list[float]] = {}
    makespans: list[float] = []
    for name, create in (
        ("doppler", DopplerRunner),
        ("ray", RayRunner),
        ("dask", DaskRunner),
        ("doppler", DopplerRunner),
    ):
        progress(f"{n_ops} trivial ops on {DEVICES} devices: {name}")
        with create(work) as runner:
            taken.setdefault(name, []).extend(timed(runner, expected, warm_up, repeats))
            if isinstance(runner, DopplerRunner):
                makespans += runner.makespans[warm_up:]
    micro = {name: [1e6 * seconds / n_ops for seconds in runs] for name, runs in taken.items()}
    found = {name: median(values) for name, values in micro.items()}
    return {
        "overhead_us": found["doppler"],
        "ray_overhead_us": found["ray"],
        "dask_overhead_us": found["dask"],
        "ray_ratio": found["ray"] / found["doppler"],
        "dask_ratio": found["dask"] / found["doppler"],
        "makespan_us": 1e6 * median(makespans) / n_ops,
        "sequential_us": 1e6 * median(sequential[warm_up:]) / n_ops,
        "ops": n_ops,
        "edges": graph.n_edges,
        "transfers": work.transfers,
        "quartiles_us": {name: quantiles(values, n=4) for name, values in micro.items()},
    }


def two_devices(
    length: int = 12, size: int = 512, repeats: int = 21, warm_up: int = 3
) -> dict[str, Any]:
    """Run two independent chains on one device and on two, in one plain thread and in two.

    The four take turns; medians over the repeats.
    """
    progress(f"two chains of {length} products on one device and on two")
    graph = halves_graph(length, size)
    tensors = make_tensors(graph)
    expected = run_sequential(graph, tensors)
    half = np.arange(graph.n_ops) // length
    taken: dict[str, list[float]] = {"one": [], "two": [], "one_plain": [], "two_plain": []}
    # The same engine both times, with two devices, one of which may have nothing to do.
    with DopplerRunner(Work(graph, Placement(half), tensors)) as engine:
        for _ in range(warm_up + repeats):
            for name, used in (("one", 0), ("two", 1)):
                engine.work = Work(graph, Placement(half * used), tensors)
                taken[name] += timed(engine, expected, 0, 1)
            for name, threads in (("one_plain", 1), ("two_plain", 2)):
                taken[name].append(plain_threads(graph, tensors, threads))
    found = {name: median(seconds[warm_up:]) for name, seconds in taken.items()}
    return {
        "two_device_speedup": found["one"] / found["two"],
        "two_thread_speedup": found["one_plain"] / found["two_plain"],
        "one_device_s": found["one"],
        "two_device_s": found["two"],
        "one_thread_s": found["one_plain"],
        "two_thread_s": found["two_plain"],
        "products": graph.n_ops,
        "product_ms": 1e3 * found["one_plain"] / graph.n_ops,
    }


def plain_threads(graph: Graph, tensors: dict[str, Tensor], threads: int) -> float:
    """Compute both chains in one thread or each in its own, with no engine; seconds."""
    import torch

    usual = torch.get_num_threads()
    length = graph.n_ops // 2
    start = threading.Barrier(threads + 1)

    def compute(halves: Sequence[int]) -> None:
        # A setting of the thread, which its first use would make that of the last thread to set
        # it; asked for first, it stays.
        torch.get_num_threads()
        torch.set_num_threads(1)
        start.wait()
        for half in halves:
            value, factor = tensors[f"x{half}"], tensors[f"w{half}"]
            for _ in range(length):
                value = torch.einsum("ij,jk->ik", value, factor).mul_(factor.shape[0] ** -0.5)

    shares = [(0, 1)] if threads == 1 else [(0,), (1,)]
    workers = [threading.Thread(target=compute, args=(share,)) for share in shares]
    for worker in workers:
        worker.start()
    start.wait()
    begin = time.perf_counter()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - begin
    # New threads take over the number that was set last, in whatever thread.
    torch.set_num_threads(usual)
    return seconds


def measure() -> dict[str, Any]:
    """Every figure of this file, about a minute on two cores; needs the peers."""
    return {**overhead(), **two_devices()}


def progress(step: str) -> None:
    """Say on stderr what is being measured."""
    print(f"measuring: {step}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit code is 2 where a peer is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    as_json = parser.parse_args(arguments).json
    missing = missing_peers()
    if missing:
        print(f"error: {advice(missing)}", file=sys.stderr)
        return BAD_INPUT
    where = machine(("numpy", "torch", *PEERS))
    figures = measure()
    if as_json:
        print(json.dumps({**figures, "bars": verdicts(BARS, figures), **where}))
    else:
        print(table(BARS, figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
