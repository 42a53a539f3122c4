"""Place the models of examples/, beside what else places them: benchmarks/models.json.

``python benchmarks/models.py simulate`` captures each model in full size, on the meta device, and
simulates every placement of it on clusters of GPUs. ``python benchmarks/models.py run`` runs models
in small size on two devices of the CPU, one thread each, and on one such device. Both replace their
own entries of the file and leave the others; ``--examples`` and ``--clusters`` choose.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from layer_maps import BALANCED, FILLED, by_modules, data_parallel, device_map

from doppler import Cluster, Graph, Placement, Problem, place, simulate
from doppler.capture.capture import Captures
from doppler.errors import CaptureError, DopplerError, MemoryLimitError
from doppler.files import read_text, write_atomic
from doppler.heuristics.pipeline import (
    GPIPE,
    ONE_F_ONE_B,
    backward_of,
    pipeline,
    program_rank,
)
from doppler.viewer.units import format_seconds

if TYPE_CHECKING:
    from torch import Tensor

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "benchmarks" / "models.json"
sys.path.append(str(ROOT))

from examples import EXAMPLES  # noqa: E402
from examples.building import build  # noqa: E402

CLUSTERS = ("a100x4", "p100x4", "v100_2x4")
# Examples of which is asked that two cores run them faster than one.
RUN = ("inception:model", "experts:model", "llama:model")
# What is simulated: the forward pass of a batch, of one sample, or a training step.
BATCH, SINGLE, TRAINING = KINDS = ("batch", "single", "training")
# Seconds of search for each model on each cluster.
BUDGET = 8.0
WARM_UP = 2
Shard = Mapping[str, int]


@dataclass(frozen=True)
class Answer:
    """What a placement comes to.

    Attributes
    ----------
    seconds : float or None
        None: it does not fit in memory, or cannot be made.
    note : str
        How it came about, or what is wrong with it.
    """

    seconds: float | None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"seconds": self.seconds, "note": self.note}


class Variants:
    """A model captured in several ways.

    Parameters
    ----------
    name : str
        ``MODULE:FUNCTION`` of the examples.
    size : str
    training : bool
        Capture a training step: its loss is the mean square of what the model returns first.
    **changes
        Of the numbers of that size.
    """

    def __init__(self, name: str, size: str, training: bool = False, **changes: int) -> None:
        self.model, inputs = build(name, size, **changes)
        self._captures = Captures(
            self.model, inputs, training=training, loss=_mean_square if training else None
        )
        self._graphs: dict[tuple[tuple[str, int], ...], Graph | str] = {}

    def problem(self, cluster: Cluster, **shard: int) -> Problem:
        """Make the problem of the model, sharded so, on a cluster.

        Raises
        ------
        CaptureError
            If it cannot be captured so.
        """
        key = tuple(shard.items())
        if key not in self._graphs:
            try:
                self._graphs[key] = self._captures.graph(shard).graph
            except CaptureError as error:
                self._graphs[key] = str(error)
        found = self._graphs[key]
        if isinstance(found, str):
            raise CaptureError(found)
        return Problem(found, cluster)


def _mean_square(output: Any) -> Tensor:
    from torch.utils import _pytree as pytree

    first: Tensor = pytree.tree_leaves(output)[0]
    return first.square().mean()


def answer(problem: Problem, placement: Placement, note: str = "") -> Answer:
    """Simulate a placement, and look whether it fits in memory."""
    found = simulate(problem, placement)
    if (found.peak_memory > problem.arrays.capacity).any():
        over = float((found.peak_memory - problem.arrays.capacity).max())
        return Answer(None, f"lacks {over / 1e9:.1f} GB on a device")
    return Answer(found.makespan, note)


def best(answers: Sequence[Answer]) -> Answer:
    """Return the fastest; if none fits, the first."""
    fitting = [each for each in answers if each.seconds is not None]
    return min(fitting, key=lambda each: each.seconds or 0.0) if fitting else answers[0]


def one_device(variants: Variants, cluster: Cluster) -> Answer:
    """Put everything on the first device, in the order of the program: what eager mode does."""
    problem = variants.problem(cluster)
    return answer(problem, Placement([0] * problem.n_ops, program_rank(problem.graph)))


def layer_map(variants: Variants, cluster: Cluster, how: str) -> Answer:
    """Put whole modules where accelerate puts them."""
    found = device_map(variants.model, cluster, how)
    if found is None:
        return Answer(None, "accelerate leaves parameters on the disk")
    problem = variants.problem(cluster)
    return answer(problem, by_modules(problem.graph, found))


def pipelined(variants: Variants, cluster: Cluster) -> Answer:
    """Take the best pipeline over schedules and numbers of microbatches."""
    return best([*_sharded(variants, cluster, _pipeline_of)])


def split_batch(variants: Variants, cluster: Cluster) -> Answer:
    """Give each device all parameters and its share of the batch."""
    return best([*_sharded(variants, cluster, _parallel_of)])


def _pipeline_of(problem: Problem, parts: int) -> Answer:
    backward = backward_of(problem.graph)
    names = (GPIPE, ONE_F_ONE_B) if backward.any() else (GPIPE,)
    return best(
        [
            answer(
                problem, pipeline(problem, name, parts, backward), f"{name}, {parts} microbatches"
            )
            for name in names
        ]
    )


def _parallel_of(problem: Problem, parts: int) -> Answer:
    return answer(problem, data_parallel(problem, parts), f"batch in {parts} parts")


def _sharded(
    variants: Variants, cluster: Cluster, of: Callable[[Problem, int], Answer]
) -> Iterator[Answer]:
    for parts in (cluster.n_devices, 2 * cluster.n_devices):
        try:
            yield of(variants.problem(cluster, batch=parts), parts)
        except CaptureError as error:
            yield Answer(None, str(error))


def doppler(variants: Variants, cluster: Cluster, budget: float) -> Answer:
    """Place the model whole and sharded in several ways, with an equal part of the time each."""
    count = cluster.n_devices
    shards: list[Shard] = [{}, {"batch": count}, {"batch": 2 * count}, {"tensor": count}]
    answers = []
    for shard in shards:
        try:
            problem = variants.problem(cluster, **shard)
            placement = place(problem, budget=budget / len(shards), jitter=0.0)
        except (CaptureError, MemoryLimitError) as error:
            answers.append(Answer(None, str(error)))
            continue
        how = ", ".join(f"{kind} in {parts} parts" for kind, parts in shard.items()) or "whole"
        answers.append(answer(problem, placement, how))
    return best(answers)


def simulated(
    name: str,
    size: str,
    clusters: Sequence[str],
    budget: float,
    kind: str = BATCH,
) -> list[dict[str, Any]]:
    """Place a model in every way on every cluster: for one of ``KINDS``."""
    changes = {"batch": 1} if kind == SINGLE else {}
    variants = Variants(name, size, kind == TRAINING, **changes)
    rows = []
    for label in clusters:
        began = time.perf_counter()
        cluster = Cluster.load(label)
        problem = variants.problem(cluster)
        found = {
            "one device": one_device(variants, cluster),
            FILLED: layer_map(variants, cluster, FILLED),
            BALANCED: layer_map(variants, cluster, BALANCED),
            "pipeline": pipelined(variants, cluster),
            "data parallel": split_batch(variants, cluster),
            "doppler": doppler(variants, cluster, budget),
        }
        rows.append(
            {
                "example": name,
                "kind": kind,
                "cluster": label,
                "size": size,
                "budget_s": budget,
                "ops": problem.n_ops,
                "parameter_bytes": _parameter_bytes(problem.graph),
                "answers": {key: each.to_json() for key, each in found.items()},
            }
        )
        print(line(rows[-1], time.perf_counter() - began), flush=True)
    return rows


def _parameter_bytes(graph: Graph) -> float:
    from doppler.graph.shared_tiles import shared_tiles

    return shared_tiles(graph).total


def told(entry: Mapping[str, Any]) -> str:
    """Sum up runs for the terminal."""
    seconds = entry["seconds"]
    ratios = ", ".join(
        f"{key} {format_seconds(each)} ({seconds['one device'] / each:.2f} x)"
        for key, each in seconds.items()
    )
    return f"{entry['example']}: {ratios}"


def line(row: Mapping[str, Any], seconds: float) -> str:
    """Sum up a row for the terminal."""
    answers = row["answers"]
    told = ", ".join(
        f"{key} {'-' if each['seconds'] is None else format_seconds(each['seconds'])}"
        for key, each in answers.items()
    )
    return (
        f"{row['example']}@{row['cluster']}: {told} ({answers['doppler']['note']}; {seconds:.0f} s)"
    )


def run(name: str, rounds: int = 20, budget: float = BUDGET) -> dict[str, Any]:
    """Run a model on two devices of one thread each, and beside it on one, by turns.

    One device is eager mode with one thread. The layer maps are run by Doppler's engine.
    """
    import torch

    from doppler.placed import compile as place_model

    torch.set_num_threads(1)
    devices = ["cpu:0", "cpu:1"]
    model, inputs = build(name, "small")
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    times: dict[str, list[float]] = {}
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        placed = stack.enter_context(place_model(model, inputs, devices, threads=1, budget=budget))
        models: dict[str, Callable[..., object]] = {"one device": model, "doppler": placed}
        for how in (FILLED, BALANCED):
            peer = stack.enter_context(
                place_model(model, inputs, devices, threads=1, shard=None, budget=0.0)
            )
            found = device_map(model, Cluster.uniform(2, memory=1e12), how)
            assert found is not None
            peer.placement = by_modules(peer.graph, found)
            models[how] = peer
        for turn in range(WARM_UP + rounds):
            for key, each in models.items():
                began = time.perf_counter()
                each(*args, **kwargs)
                if turn >= WARM_UP:
                    times.setdefault(key, []).append(time.perf_counter() - began)
        return {
            "example": name,
            "size": "small",
            "rounds": rounds,
            "ops": placed.graph.n_ops,
            "parts": int(placed.graph.shards.max()) + 1,
            "seconds": {key: median(each) for key, each in times.items()},
        }


def load(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the report, or start one.

    Raises
    ------
    DopplerError
        If the file is damaged.
    """
    if not path.exists():
        return {"simulated": [], "run": []}
    try:
        found = json.loads(read_text(path, "report", DopplerError))
        return {key: list(found[key]) for key in ("simulated", "run")}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DopplerError(f"{path}: is no report of this benchmark ({error})") from None


def replace(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put new entries in the place of the old ones of the same example and cluster, in order."""

    def key(entry: Mapping[str, Any]) -> tuple[int, int, str]:
        order = KINDS.index(entry.get("kind", BATCH)), EXAMPLES.index(entry["example"])
        return *order, entry.get("cluster", "")

    entries = {key(each): each for each in old} | {key(each): each for each in new}
    return [entries[each] for each in sorted(entries)]


def save(path: Path, part: str, entries: Sequence[dict[str, Any]]) -> None:
    """Put entries into the report."""
    report = load(path)
    report[part] = replace(report[part], entries)
    write_atomic(path, json.dumps(report, indent=1, allow_nan=False) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a part of the benchmark; write what is there after every model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("simulate", "run"))
    parser.add_argument("--examples", nargs="+", choices=EXAMPLES, metavar="MODULE:FUNCTION")
    parser.add_argument("--clusters", nargs="+", default=CLUSTERS, help="presets")
    parser.add_argument("--kind", choices=KINDS, default=BATCH, help="what is simulated")
    parser.add_argument("--size", default="full", help="of the simulated models")
    parser.add_argument("--budget", type=float, default=BUDGET, help=f"seconds ({BUDGET:g})")
    parser.add_argument("--rounds", type=int, default=20, help="calls of each (20)")
    parser.add_argument("--output", type=Path, default=REPORT, help="the report to write")
    options = parser.parse_args(arguments)
    try:
        load(options.output)
        for name in options.examples or (EXAMPLES if options.part == "simulate" else RUN):
            if options.part == "simulate":
                rows = simulated(name, options.size, options.clusters, options.budget, options.kind)
                save(options.output, "simulated", rows)
            else:
                entry = run(name, options.rounds, options.budget)
                save(options.output, "run", [entry])
                print(told(entry), flush=True)
    except DopplerError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
