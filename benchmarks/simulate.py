"""Speed of the simulator: beside SimPy on the same model, and against the size of the graph.

``measure()`` returns the figures; ``python benchmarks/simulate.py [--json]`` prints them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import simpy
from figures import LAYERS, print_figures

import doppler
from doppler import Cluster, Graph, Problem, simulate_many

IntArray = npt.NDArray[np.int32]

SHARED_LAYER = (
    Path(__file__).parents[2] / "shared" / "graphs" / "full_transformer_layer_261nodes.txt"
)


class SimPyModel:
    """The uncontended model as a plain SimPy program.

    A device is a resource of capacity 1, which serves requests in the order in which they come.
    An op is a process: it waits for its inputs, asks for its device, computes, and starts one
    transfer, a process too, to every other device that needs its output.

    Parameters
    ----------
    problem : Problem
        Without channels.
    """

    def __init__(self, problem: Problem) -> None:
        if problem.cluster.n_channels:
            raise ValueError("this model has no channels")
        arrays = problem.arrays
        self.n_ops = problem.n_ops
        self.n_devices = problem.n_devices
        self.compute: list[list[float]] = arrays.compute.tolist()
        self.volume: list[float] = arrays.volume.tolist()
        self.latency: list[list[float]] = arrays.latency.tolist()
        self.factor: list[list[float]] = arrays.factor.tolist()
        self.inputs: list[list[int]] = [[] for _ in range(self.n_ops)]
        self.consumers: list[list[int]] = [[] for _ in range(self.n_ops)]
        for u, v in zip(problem.graph.src.tolist(), problem.graph.dst.tolist(), strict=True):
            self.inputs[v].append(u)
            self.consumers[u].append(v)

    def makespan(self, placed: list[int]) -> float:
        """Simulate one placement; seconds."""
        env = simpy.Environment()
        devices = [simpy.Resource(env) for _ in range(self.n_devices)]
        targets = [{placed[v] for v in self.consumers[op]} for op in range(self.n_ops)]
        arrived = [{target: env.event() for target in targets[op]} for op in range(self.n_ops)]

        def send(op: int, source: int, target: int) -> Generator[simpy.Event]:
            yield env.timeout(
                self.latency[source][target] + self.volume[op] * self.factor[source][target]
            )
            arrived[op][target].succeed()

        def run(op: int) -> Generator[simpy.Event]:
            home = placed[op]
            if self.inputs[op]:
                yield env.all_of([arrived[u][home] for u in self.inputs[op]])
            with devices[home].request() as turn:
                yield turn
                yield env.timeout(self.compute[op][home])
            for target in targets[op]:
                if target == home:
                    arrived[op][home].succeed()
                else:
                    env.process(send(op, home, target))

        for op in range(self.n_ops):
            env.process(run(op))
        env.run()
        return float(env.now)


def layer_graph() -> Graph:
    """Return the official full Llama layer, or without it a generated one of about its size."""
    if SHARED_LAYER.exists():
        return doppler.load_graph(SHARED_LAYER)
    return doppler.workloads.llama_layer(tiles=2)


def beside_simpy(rounds: int = 15, batch: int = 1000, slow: int = 8) -> dict[str, Any]:
    """Simulate the layer on 4 devices with SimPy and with Doppler, in turns, on one core.

    Both get random placements, first ready, first run. A round times ``slow`` placements with
    SimPy and a batch with Doppler; the ratio is the median over the rounds.
    """
    problem = Problem(layer_graph(), Cluster.uniform(4))
    model = SimPyModel(problem)
    rng = np.random.default_rng(0)
    placed = rng.integers(0, problem.n_devices, (batch, problem.n_ops)).astype(np.int32)
    lists = placed[:slow].tolist()
    check_same_model(problem, placed[:slow])
    simulate_many(problem, placed, threads=1)
    simpy_s, doppler_s = [], []
    for _ in range(rounds):
        simpy_s.append(_seconds(lambda: [model.makespan(one) for one in lists]) / slow)
        doppler_s.append(_seconds(lambda: simulate_many(problem, placed, threads=1)) / batch)
    ratios = [a / b for a, b in zip(simpy_s, doppler_s, strict=True)]
    return {
        "simulate_vs_simpy": median(ratios),
        "simulate_simpy_s": median(simpy_s),
        "simulate_layer_s": median(doppler_s),
        "simulate_layer_ops": problem.n_ops,
    }


def check_same_model(problem: Problem, placed: IntArray) -> None:
    """Raise unless SimPy and Doppler find the same makespans.

    SimPy orders what happens at one instant in its own way, so times are first made unequal.
    """
    graph = problem.graph
    rng = np.random.default_rng(1)
    compute = problem.arrays.compute.min(axis=1) * rng.uniform(0.999, 1.001, graph.n_ops)
    transfer = problem.arrays.volume * rng.uniform(0.999, 1.001, graph.n_ops)
    untied = Problem(Graph.from_arrays(graph.src, graph.dst, compute, transfer), problem.cluster)
    model = SimPyModel(untied)
    found = [model.makespan(one) for one in placed.tolist()]
    expected = simulate_many(untied, placed, threads=1).tolist()
    if not np.allclose(found, expected, rtol=1e-12, atol=0):
        raise AssertionError(f"SimPy finds {found}, Doppler {expected}")


def against_size(
    layers: tuple[int, ...] = LAYERS, cluster: str = "a100x8", repeats: int = 5
) -> dict[str, Any]:
    """Fit ``time ~ ops ** exponent`` on Llama graphs from about 1,000 to 300,000 ops.

    Random placements on 8 devices whose transfers take turns, ready ops in topological order, one
    core. Every size simulates about as many ops in all; sizes take turns.
    """
    rng = np.random.default_rng(0)
    sizes: list[int] = []
    runs: list[tuple[Problem, IntArray, IntArray]] = []
    for count in layers:
        graph = doppler.workloads.llama_layer(layers=count, tiles=4)
        problem = Problem(graph, Cluster.load(cluster))
        batch = max(1, 300_000 // graph.n_ops)
        placed = rng.integers(0, problem.n_devices, (batch, graph.n_ops)).astype(np.int32)
        rank = np.empty(graph.n_ops, np.int32)
        rank[graph.topological_order] = np.arange(graph.n_ops)
        sizes.append(graph.n_ops)
        runs.append((problem, placed, np.tile(rank, (batch, 1))))
    times: list[list[float]] = [[] for _ in sizes]
    for _ in range(repeats):
        for taken, (problem, placed, ranks) in zip(times, runs, strict=True):

            def simulate(problem=problem, placed=placed, ranks=ranks) -> object:  # type: ignore[no-untyped-def]
                return simulate_many(problem, placed, ranks, threads=1)

            taken.append(_seconds(simulate) / len(placed))
    seconds = [median(taken) for taken in times]
    exponent = np.polyfit(np.log(sizes), np.log(seconds), 1)[0]
    return {
        "simulate_exponent": float(exponent),
        "simulate_sizes": {str(n): s for n, s in zip(sizes, seconds, strict=True)},
    }


def measure() -> dict[str, Any]:
    """Every figure of this file, about 15 seconds on one core."""
    return {**beside_simpy(), **against_size()}


def _seconds(function: Callable[[], object]) -> float:
    """Time a call with the collector on, as programs run, but blind to what was there before."""
    gc.collect()
    gc.freeze()
    try:
        begin = time.perf_counter()
        function()
        return time.perf_counter() - begin
    finally:
        gc.unfreeze()


if __name__ == "__main__":
    print_figures(measure, __doc__)
