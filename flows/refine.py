"""Stage III: the policy improves on real devices. models/refined, reports/refine.*."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

from common import discard, flow, main, markdown_table, publish, step, write_metrics
from doppler.engine import Engine, make_backend
from doppler.errors import EngineError
from doppler.graph.fingerprint import fingerprint
from doppler.graph.workloads.settings import Graphs
from doppler.placement import Placement
from doppler.policy.checkpoint import load_policy
from doppler.refinement.paired_test import compare_paired
from doppler.refinement.refiner import Refiner
from doppler.refinement.session import measurement, refine, run_metrics, save_refined
from doppler.refinement.settings import RefineParams
from doppler.refinement.start import CLUSTER, PLACEMENT, Devices, Start, same_placement, start_anew
from doppler.settings import Seed, Settings
from doppler.tracking import track
from doppler.training.progress import training_bar


class Params(Settings):
    """The sections that this stage reads."""

    seed: Seed
    graphs: Graphs
    refine: RefineParams


POLICY_FILE = Path("models/policy.safetensors")
REFINED = Path("models/refined")
CURVE = Path("reports/refine.csv")
# What a run that was killed goes on from, if it is run again with the same input.
STATE = Path(".cache/refine")


def state_of(params: Params) -> Path:
    """Where the state of a run with this input is kept."""
    settings = params.refine.model_dump_json(exclude={"episodes", "pairs"})
    digest = hashlib.sha256(f"{params.seed} {settings}".encode())
    digest.update(fingerprint(params.graphs[params.refine.graph].build()).encode())
    digest.update(POLICY_FILE.read_bytes())
    return STATE / digest.hexdigest()[:16]


@step("measure the devices and place the graph")
def begin(params: Params, state: Path) -> Start:
    """Measure the machine, and let the policy place the graph on what was found."""
    settings = params.refine
    devices = Devices(settings.backend, settings.devices, settings.profile_seconds, settings.budget)
    graph = params.graphs[settings.graph].build()
    first = state / PLACEMENT
    start = start_anew(graph, devices, POLICY_FILE, state / CLUSTER, params.seed)
    if first.exists():
        return Start(start.problem, Placement.load(first), start.policy)
    start.placement.save(first)
    return start


@step("refine")
def train(params: Params, start: Start, state: Path) -> dict[str, float]:
    """Refine, compare with the beginning, and save; return the metrics."""
    settings, graph = params.refine, start.problem.graph
    with Engine(graph, make_backend(settings.backend, settings.devices)) as engine:
        with (
            Refiner(
                start.problem,
                start.placement,
                policy=load_policy(start.policy),
                directory=state / "refiner",
                guard=settings.guard,
                seed=params.seed,
                # The machine is here to refine: learn as much as there is to learn after every run.
                background=False,
            ) as refiner,
            training_bar("refine") as bar,
        ):
            refine(
                refiner,
                engine,
                episodes=settings.episodes,
                timeout=settings.timeout,
                progress=lambda done: bar(
                    done, settings.episodes, {"mean_regret": refiner.mean_regret}
                ),
            )
        refined = refiner.champion
        ratio = compare(engine, start.placement, refined, params)
    metrics = {
        "runs": float(len(refiner.history)),
        "mean_regret": refiner.mean_regret,
        "failed": float(sum(math.isnan(run.measured) for run in refiner.history)),
        **ratio,
    }
    info = {"stage": "refine", "seed": params.seed, "training": [graph.name], "metrics": metrics}
    save_refined(refiner, REFINED, info)
    refiner.history.save_csv(CURVE)
    with track("refine", None, params.model_dump(mode="json")) as trackers:
        for run in refiner.history:
            trackers.log(run_metrics(run), step=run.run)
    write_metrics("reports/refine.json", metrics)
    return metrics


def compare(
    engine: Engine, before: Placement, after: Placement, params: Params
) -> dict[str, float]:
    """Measure how much faster the placement has become: the ratio of makespans, its interval."""
    if same_placement(before, after):
        return {"changed": 0.0, "ratio": 1.0, "low": 1.0, "high": 1.0}
    settings = params.refine
    result = compare_paired(
        measurement(engine, before, settings.timeout),
        measurement(engine, after, settings.timeout),
        pairs=settings.pairs,
        warmup=1,
        problems=[settings.graph],
        seed=params.seed,
    )
    if result.ratio is None or result.low is None or result.high is None:
        raise EngineError(f"refine: {result.text}")
    return {"changed": 1.0, "ratio": result.ratio, "low": result.low, "high": result.high}


@flow(name="refine")
def stage(params: Params) -> None:
    """Train the policy on real devices."""
    state = state_of(params)
    metrics = train(params, begin(params, state), state)
    publish("refine", "Refinement", markdown_table(("metric", "value"), metrics.items()))
    discard(STATE)


if __name__ == "__main__":
    main(stage, Params)
