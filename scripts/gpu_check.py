"""Check the cuda backend on a machine with a GPU; see ``scripts/gpu_check.sh``.

``--rehearse`` goes through the same checks with two devices of the cpu backend in place of the GPU
and the CPU, where there is no GPU to check.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from doppler import Graph, Placement, Problem, compile, place, simulate
from doppler.engine import (
    Backend,
    CpuBackend,
    CudaBackend,
    Engine,
    compare_outputs,
    longest_idle,
)
from doppler.errors import (
    DeviceLostError,
    DeviceMemoryError,
    DopplerError,
    EngineError,
    OpError,
    RunTimeoutError,
    TransferError,
)
from doppler.graph.execution import make_tensors, run_sequential
from doppler.graph.workloads import make

ROOT = Path(__file__).resolve().parents[1]
# The fault-injecting backend and the trivial graph are those of the tests and the benchmarks.
sys.path[:0] = [str(ROOT / "tests" / "engine"), str(ROOT / "benchmarks")]

WORKLOADS: dict[str, dict[str, Any]] = {
    "chainmm": {"m": 240, "k": 160, "n": 200, "p": 120, "q": 160, "tiles": 2},
    "ffnn": {"batch": 128, "inputs": 96, "hidden": 256, "outputs": 64, "tiles": 2},
    "llama_block": {"sequence": 128, "hidden": 128, "heads": 4, "tiles": 2},
    "llama_layer": {"sequence": 128, "hidden": 128, "heads": 4, "intermediate": 256, "tiles": 2},
    "moe_layer": {"sequence": 128, "hidden": 64, "intermediate": 128, "experts": 4, "tiles": 2},
}
PLACEMENTS = 20
FAULTY_RUNS = 200
# What faulty runs may leave: a workspace of cuBLAS, files that the driver opens late.
MORE_BYTES, MORE_FILES = 34_000_000, 4
EPISODES = 300
# Of the graph that is profiled and refined: ops of about a millisecond on one core.
REFINED = {"sequence": 512, "hidden": 512, "heads": 8, "intermediate": 1408, "tiles": 2}
PROFILE_SECONDS = 60.0
REFINE_SECONDS = 150.0
NO_GPU, FAILED = 3, 1


class Machine:
    """The devices that the checks use.

    Attributes
    ----------
    kind : str
        ``"cuda"``, or ``"cpu"`` in a rehearsal.
    single, pair, whole : Backend
        The first GPU alone; that and the CPU; all GPUs and the CPU. The CPU computes in one
        thread, as in a profile.
    """

    def __init__(self, rehearse: bool) -> None:
        self.kind = "cpu" if rehearse else "cuda"
        self.single: Backend = CpuBackend(1) if rehearse else CudaBackend(("cuda:0",))
        self.pair: Backend = (
            CpuBackend(2) if rehearse else CudaBackend(("cuda:0", "cpu"), threads=1)
        )
        self.whole = self.pair
        if not rehearse and torch.cuda.device_count() > 1:
            gpus = [f"cuda:{gpu}" for gpu in range(torch.cuda.device_count())]
            self.whole = CudaBackend((*gpus, "cpu"), threads=1)

    def allocated(self) -> int:
        """Bytes of tensors on the GPU."""
        return 0 if self.kind == "cpu" else torch.cuda.memory_allocated(0)


def random_placement(graph: Graph, backend: Backend, rng: np.random.Generator) -> Placement:
    """Draw a device for every op, and mostly an order."""
    devices = rng.integers(0, len(backend.device_names), graph.n_ops)
    return Placement(devices, rng.permutation(graph.n_ops) if rng.random() < 0.7 else None)


def check_parity(machine: Machine) -> dict[str, Any]:
    """Compare random placements of every workload with the sequential run on the CPU."""
    found = {}
    rng = np.random.default_rng(0)
    for name, sizes in WORKLOADS.items():
        graph = make(name, **sizes)
        reference = run_sequential(graph, make_tensors(graph))
        worst = 0.0
        for backend in dict.fromkeys((machine.single, machine.pair, machine.whole)):
            with Engine(graph, backend) as engine:
                for _ in range(PLACEMENTS):
                    run = engine.run(random_placement(graph, backend, rng), timeout=60)
                    parity = compare_outputs(graph, run.outputs, reference)
                    worst = max(worst, parity.difference / parity.tolerance)
        found[name] = worst
    if max(found.values()) > 1.0:
        raise AssertionError(f"outputs differ, in tolerances: {found}")
    return {"placements": PLACEMENTS, "difference_in_tolerances": found}


def check_faults(machine: Machine) -> dict[str, Any]:
    """Inject faults again and again; after each the engine works and nothing is left."""
    from faults import FaultyBackend, no_fault

    graph = make("ffnn", **WORKLOADS["ffnn"])
    placement = Placement([op % 2 for op in range(graph.n_ops)])
    sent = [
        op
        for op in range(graph.n_ops)
        if any((op - v) % 2 for v in graph.dst[graph.src == op].tolist())
    ]
    on_gpu = [op for op in range(4, graph.n_ops) if op % 2 == 0]
    device = "cpu" if machine.kind == "cpu" else "cuda:0"

    def fill() -> None:
        torch.empty(2**60 if device == "cpu" else 2**45, device=device)

    def hang() -> None:
        while True:
            time.sleep(1e-3)

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

    def fail() -> None:
        raise ValueError("bad")

    def lose() -> None:
        raise DeviceLostError("gone")

    kinds: list[tuple[str, str, Callable[[], None], type[BaseException], float | None]] = [
        ("op raises", "at_op", fail, OpError, None),
        ("copier fails", "at_transfer", fail, TransferError, None),
        ("out of memory", "at_op", fill, DeviceMemoryError, None),
        ("out of memory in a copy", "at_transfer", fill, DeviceMemoryError, None),
        ("device lost", "at_op", lose, DeviceLostError, None),
        ("op hangs", "at_op", hang, RunTimeoutError, 0.5),
        ("interrupt", "at_op", interrupt, KeyboardInterrupt, None),
    ]
    backend = FaultyBackend(machine.pair)
    counts = dict.fromkeys((name for name, *_ in kinds), 0)
    reference = run_sequential(graph, make_tensors(graph))
    with Engine(graph, backend) as engine:
        engine.run(placement, timeout=60)
        bytes_before = files_before = 0
        for number in range(FAULTY_RUNS):
            name, where, fault, expected, timeout = kinds[number % len(kinds)]
            # Hangs cost their time limit: one in five rounds is enough.
            if timeout is not None and number // len(kinds) % 5:
                name, where, fault, expected, timeout = kinds[0]
            struck = (sent if where == "at_transfer" else on_gpu)[number % len(on_gpu) // 2]

            def strike(op: int, *devices: int, struck: int = struck, fault: Any = fault) -> None:
                if op == struck:
                    fault()

            setattr(backend, where, strike)
            try:
                engine.run(placement, timeout=timeout)
            except expected as error:
                if isinstance(error, EngineError) and error.op != struck:
                    raise AssertionError(f"{name}: names op {error.op}, not {struck}") from error
            else:
                raise AssertionError(f"{name}: the run did not fail")
            backend.at_op = backend.at_transfer = no_fault
            counts[name] += 1
            left = [t.name for t in threading.enumerate() if t.name.startswith("doppler ")]
            if left:
                raise AssertionError(f"{name}: threads are left: {left}")
            if number == 2 * len(kinds):
                bytes_before, files_before = machine.allocated(), _open_files()
        grown = machine.allocated() - bytes_before, _open_files() - files_before
        if grown[0] > MORE_BYTES or grown[1] > MORE_FILES:
            raise AssertionError(f"bytes on the GPU and open files have grown by {grown}")
        run = engine.run(placement, timeout=60)
        if not compare_outputs(graph, run.outputs, reference).equal:
            raise AssertionError("outputs differ after the faults")
    return counts


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def check_hanging_kernel(machine: Machine) -> dict[str, Any]:
    """Let a kernel take longer than the time limit: it cannot be stopped, which is said."""
    from faults import FaultyBackend, no_fault

    backend = FaultyBackend(machine.single)
    graph = make("ffnn", **WORKLOADS["ffnn"])
    placement = Placement([0] * graph.n_ops)

    def stall(op: int, device: int) -> None:
        if op == 5:
            if machine.kind == "cpu":
                time.sleep(2.0)
            else:
                torch.cuda._sleep(int(4e9))  # type: ignore[no-untyped-call]

    with Engine(graph, backend) as engine:
        engine.run(placement, timeout=60)
        backend.at_op = stall
        try:
            engine.run(placement, timeout=0.3)
        except RunTimeoutError as error:
            message, backend.at_op = str(error), no_fault
        else:
            raise AssertionError("the run did not time out")
        engine.run(placement, timeout=60)
    return {"message": message}


def check_lost_device(machine: Machine) -> dict[str, Any]:
    """Break the GPU's context for good, in a process of its own."""
    if machine.kind == "cpu":
        return {"message": "not rehearsed"}
    done = subprocess.run(
        [sys.executable, __file__, "--lose-device"],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    if done.returncode != 0:
        raise AssertionError(f"{done.stdout} {done.stderr[-500:]}")
    return {"message": done.stdout.strip()}


def lose_device() -> int:
    """Let a kernel fail an assertion, after which the process cannot use the GPU."""
    from faults import FaultyBackend

    backend = FaultyBackend(CudaBackend(("cuda:0",)))
    graph = make("ffnn", **WORKLOADS["ffnn"])
    placement = Placement([0] * graph.n_ops)

    def strike(op: int, device: int) -> None:
        if op == 5:
            torch.zeros(4, device="cuda:0")[torch.tensor([1 << 20], device="cuda:0")]

    backend.at_op = strike
    engine = Engine(graph, backend)
    try:
        engine.run(placement, timeout=30)
    except DeviceLostError as error:
        print(error, flush=True)
        # What torch would clean up at the end needs the context that is gone.
        os._exit(0)
    return FAILED


def check_overhead(machine: Machine) -> dict[str, Any]:
    """Run a graph of 2,000 ops that do next to nothing; microseconds for each, all in."""
    from engine import trivial_graph

    graph = trivial_graph()
    found = {}
    for name, backend in (("single", machine.single), ("pair", machine.pair)):
        rng = np.random.default_rng(0)
        placement = Placement(rng.integers(0, len(backend.device_names), graph.n_ops))
        seconds = []
        with Engine(graph, backend) as engine:
            for _ in range(8):
                began = time.perf_counter()
                engine.run(placement, timeout=60)
                seconds.append(time.perf_counter() - began)
        found[f"{name}_us"] = statistics.median(seconds[2:]) / graph.n_ops * 1e6
    return found


def check_idleness(machine: Machine) -> dict[str, Any]:
    """Find the longest time in which a device idled while an op placed on it was ready."""
    graph = make("llama_layer", **REFINED)
    rng = np.random.default_rng(0)
    with Engine(graph, machine.pair) as engine:
        runs = [engine.run(random_placement(graph, machine.pair, rng)).trace for _ in range(25)]
    idle = [longest_idle(graph, trace) * 1e3 for trace in runs[5:]]
    return {"longest_ms": max(idle), "median_ms": statistics.median(idle), "runs": len(idle)}


def check_profile(machine: Machine) -> dict[str, Any]:
    """Profile the machine with the ops of the graph that is refined."""
    from doppler.profiling import profile

    graph = make("llama_layer", **REFINED)
    count = len(machine.whole.device_names)
    found = profile(machine.kind, count, [graph], budget=PROFILE_SECONDS)
    problem = Problem(graph, found.cluster)
    # What the profile foretells, for the placements that the next check starts from.
    placement = place(problem, "heft", budget=0.0)
    with Engine(graph, machine.whole) as engine:
        runs = [engine.run(placement, timeout=60).makespan for _ in range(7)]
    rates = {
        name: {**device, "measured": len(device["measured"])}
        for name, device in found.to_json()["devices"].items()
    }
    return {
        "seconds": found.seconds,
        "devices": rates,
        "links": found.to_json()["links"],
        "heft_simulated_s": simulate(problem, placement).makespan,
        "heft_measured_s": statistics.median(runs[2:]),
        "cluster": found.cluster,
    }


def check_refinement(machine: Machine, problem: Problem) -> dict[str, Any]:
    """Refine the placement of a heuristic on the real devices."""
    from doppler.refinement.refiner import Refiner
    from doppler.refinement.settings import Guard

    champion = place(problem, "critical_path", budget=0.0)
    began = time.perf_counter()
    waits = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Engine(problem.graph, machine.whole) as engine,
    ):
        engine.run(champion, timeout=60)
        with Refiner(problem, champion, directory=folder, guard=Guard(max_regret=0.05)) as refiner:
            episodes = 0
            while episodes < EPISODES and time.perf_counter() - began < REFINE_SECONDS:
                asked = time.perf_counter()
                placement = refiner.next()
                waits.append(time.perf_counter() - asked)
                try:
                    run = engine.run(placement, timeout=60)
                except EngineError as error:
                    refiner.failed(str(error))
                else:
                    refiner.observe(run.makespan, trace=run.trace)
                episodes += 1
        refined, regret = refiner.champion, refiner.mean_regret
        kinds = [run.kind for run in refiner.history]
        first, last = [], []
        for _ in range(15):
            first.append(engine.run(champion, timeout=60).makespan)
            last.append(engine.run(refined, timeout=60).makespan)
    found = {
        "episodes": episodes,
        "seconds": time.perf_counter() - began,
        "first_champion_s": statistics.median(first),
        "last_champion_s": statistics.median(last),
        "mean_regret": regret,
        "runs": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "next_p99_ms": float(np.quantile(waits, 0.99)) * 1e3,
    }
    if episodes < EPISODES:
        raise AssertionError(f"only {episodes} of {EPISODES} episodes in time: {found}")
    return found


class Branches(torch.nn.Module):
    """Two branches of convolutions, and a layer on both: something for two devices to share."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Conv2d(8, 16, size, padding=size // 2),
                torch.nn.BatchNorm2d(16),
                torch.nn.ReLU(),
                torch.nn.AdaptiveAvgPool2d(4),
                torch.nn.Flatten(),
            )
            for size in (3, 5)
        )
        self.head = torch.nn.Linear(512, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map [batch, 8, height, width] to [batch, 10]."""
        logits: torch.Tensor = self.head(
            torch.cat([branch(images) for branch in self.branches], dim=1)
        )
        return logits


def check_model(machine: Machine) -> dict[str, Any]:
    """Compile a model for the GPU and the CPU, run and train it, and compare with the model."""
    torch.manual_seed(0)
    devices = ["cpu:0", "cpu:1"] if machine.kind == "cpu" else ["cuda:0", "cpu"]
    model, images = Branches().eval(), torch.randn(16, 8, 32, 32)
    found: dict[str, Any] = {}
    with torch.no_grad():
        expected = model(images)
    for name, shard in (("whole", None), ("sharded", {"batch": 2})):
        with compile(model, (images,), devices, shard=shard, budget=0.5) as placed:
            rng = np.random.default_rng(0)
            for _ in range(5):
                placed.placement = Placement(rng.integers(2, size=placed.graph.n_ops))
                gap = float((placed(images).cpu() - expected).abs().max() / expected.abs().max())
                if gap > 1e-3:
                    raise AssertionError(f"{name}: outputs differ by {gap:.3g} of the largest")
            found[name] = {"ops": placed.graph.n_ops, **placed.measured}

    def loss(output: torch.Tensor) -> torch.Tensor:
        return output.square().mean()

    (gradient,) = torch.autograd.grad(loss(model(images)), [model.head.weight])
    with compile(model, (images,), devices, training=True, loss=loss, budget=0.5) as placed:
        placed(images)
        step = model.head.weight.grad
        assert step is not None
        gap = float((step.cpu() - gradient).abs().max() / gradient.abs().max())
        if gap > 1e-3:
            raise AssertionError(f"gradients differ by {gap:.3g} of the largest")
        found["training"] = {"ops": placed.graph.n_ops, **placed.measured}
    return found


def run_checks(machine: Machine) -> dict[str, Any]:
    """Run one check after the other; one that fails does not keep the rest from running."""
    began = time.perf_counter()
    results: dict[str, Any] = {
        "gpu": None if machine.kind == "cpu" else torch.cuda.get_device_name(0),
        "rehearsal": machine.kind == "cpu",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "devices": list(machine.whole.device_names),
    }
    failures: dict[str, str] = {}

    def attempt(name: str, check: Callable[[], dict[str, Any]]) -> None:
        print(f"{time.perf_counter() - began:6.1f} s  {name}", file=sys.stderr, flush=True)
        try:
            results[name] = check()
        except (AssertionError, DopplerError, RuntimeError, subprocess.SubprocessError) as error:
            failures[name] = f"{type(error).__name__}: {error}"
            print(f"          {failures[name]}", file=sys.stderr, flush=True)

    try:
        attempt("parity", lambda: check_parity(machine))
        attempt("faults", lambda: check_faults(machine))
        attempt("model", lambda: check_model(machine))
        attempt("hanging_kernel", lambda: check_hanging_kernel(machine))
        attempt("lost_device", lambda: check_lost_device(machine))
        attempt("overhead", lambda: check_overhead(machine))
        attempt("idleness", lambda: check_idleness(machine))
        attempt("profile", lambda: check_profile(machine))
        if "profile" in results:
            problem = Problem(make("llama_layer", **REFINED), results["profile"].pop("cluster"))
            attempt("refinement", lambda: check_refinement(machine, problem))
        else:
            failures["refinement"] = "not run: the profile failed"
    except KeyboardInterrupt:
        failures["time"] = f"interrupted after {time.perf_counter() - began:.0f} s"
    results.get("profile", {}).pop("cluster", None)
    results["seconds"] = time.perf_counter() - began
    results["failures"] = failures
    results["passed"] = not failures
    return results


def main() -> int:
    """Run the checks and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rehearse", action="store_true", help="without a GPU")
    parser.add_argument("--lose-device", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    # A shell that starts a script in the background lets it ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if arguments.lose_device:
        return lose_device()
    try:
        machine = Machine(arguments.rehearse)
    except EngineError as error:
        print(json.dumps({"gpu": None, "passed": False, "error": str(error)}))
        return NO_GPU
    results = run_checks(machine)
    print(json.dumps(results))
    return 0 if results["passed"] else FAILED


if __name__ == "__main__":
    sys.exit(main())
