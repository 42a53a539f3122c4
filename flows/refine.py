"""Stage III: policy and placement improve on real devices. models/refined, reports/refine.*."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from common import discard, flow, main, markdown_table, publish, step, track, write_metrics
from doppler.graph.fingerprint import fingerprint
from doppler.graph.workloads.settings import Graphs
from doppler.refinement.campaign import Campaign, RefinementResult, Start
from doppler.refinement.promotion import Promotion
from doppler.refinement.session import run_metrics
from doppler.refinement.settings import RefineParams
from doppler.registry import POLICY
from doppler.settings import Seed, Settings
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


def campaign_of(params: Params) -> Campaign:
    """Make the campaign, with its state where a run with this input keeps it."""
    settings = params.refine
    graph = params.graphs[settings.graph].build()
    digest = hashlib.sha256(settings.model_dump_json(exclude={"episodes", "promotion"}).encode())
    digest.update(f"{params.seed} {fingerprint(graph)}".encode() + POLICY_FILE.read_bytes())
    return Campaign(graph, settings, params.seed, STATE / digest.hexdigest()[:16])


@step("measure the devices and place the graph")
def begin(campaign: Campaign) -> Start:
    """Measure the machine, and let the policy place the graph on what was found."""
    return campaign.start({POLICY: POLICY_FILE})


@step("refine")
def improve(campaign: Campaign, start: Start, episodes: int) -> RefinementResult:
    """Learn from runs on the devices."""
    with training_bar("refine") as bar:
        return campaign.refine(
            start,
            episodes=episodes,
            progress=lambda done, refiner: bar(
                done, episodes, {"mean_regret": refiner.mean_regret}
            ),
        )


@step("compare")
def compare(campaign: Campaign, start: Start, refined: RefinementResult) -> Promotion:
    """Compare what the refinement came to with what it began with."""
    return campaign.compare(start, refined)


@step("save")
def save(
    campaign: Campaign, start: Start, refined: RefinementResult, decision: Promotion, params: Params
) -> dict[str, float]:
    """Leave what won and the reports; return the metrics."""
    metrics = {**refined.metrics, **decision.metrics}
    training = [campaign.graph.name]
    info = {"stage": "refine", "seed": params.seed, "training": training, "metrics": metrics}
    discard(REFINED)
    REFINED.mkdir(parents=True)
    files = campaign.save(start, refined, decision, info)
    for name, path in files.items():
        shutil.copyfile(path, REFINED / name)
    refined.runs.save_csv(CURVE)
    with track("refine", None, params) as trackers:
        for run in refined.runs:
            trackers.log(run_metrics(run), step=run.run)
        trackers.log_model("doppler-refine", files, info)
    write_metrics("reports/refine.json", metrics)
    return metrics


@flow(name="refine")
def stage(params: Params) -> None:
    """Refine on real devices."""
    campaign = campaign_of(params)
    start = begin(campaign)
    refined = improve(campaign, start, params.refine.episodes)
    decision = compare(campaign, start, refined)
    print(decision.text)
    metrics = save(campaign, start, refined, decision, params)
    publish("refine", "Refinement", markdown_table(("metric", "value"), metrics.items()))
    discard(STATE)


if __name__ == "__main__":
    main(stage, Params)
