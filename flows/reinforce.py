"""Stage II: the policy improves on the simulator. models/policy.safetensors, reports/reinforce.*.

The best placement of every training case goes to models/incumbents.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from common import flow, main, markdown_table, publish, step, track, write_metrics
from doppler.cases import file_name
from doppler.placement import Placement
from doppler.policy.checkpoint import load_policy, save_policy
from doppler.training.progress import training_bar
from doppler.training.reinforce import ReinforceSettings, reinforce
from training_set import (
    TrainingSections,
    state_path,
    traced_cases,
    training_set,
    validation_set,
)

INCUMBENTS = Path("models/incumbents")


class Params(TrainingSections):
    """The sections that this stage reads."""

    reinforce: ReinforceSettings


class Row(NamedTuple):
    """What the artifact says of a case."""

    case: str
    makespan_s: float
    ratio_to_bound: float
    episode: int


@step("reinforce")
def train(params: Params) -> list[Row]:
    """Train and save the policy; return the incumbents."""
    chosen = training_set(params)
    training, shown = traced_cases(chosen)
    validation, _ = traced_cases(validation_set(params))
    policy = load_policy("models/imitation.safetensors")
    with track("reinforce", "reports/reinforce.csv", params) as trackers:
        with training_bar("reinforce") as bar:
            incumbents = reinforce(
                policy,
                training,
                params.reinforce,
                known=shown,
                validation=validation or None,
                seed=params.seed,
                state=state_path("reinforce"),
                tracker=trackers,
                progress=bar,
            )
        rows = []
        for each in training:
            best = incumbents.best.get(each.name)
            if best is None:
                continue
            info = {
                "method": "reinforce",
                "graph": each.problem.graph.name,
                "cluster": each.problem.cluster.name,
                "makespan_s": best.makespan,
                "episode": best.episode,
            }
            Placement(best.devices, best.priority, info).save(
                INCUMBENTS / f"{file_name(each.name)}.json"
            )
            ratio = best.makespan / each.problem.lower_bound
            rows.append(Row(each.name, best.makespan, ratio, best.episode))
        ratios = [row.ratio_to_bound for row in rows]
        metrics = trackers.last | {"incumbents_to_bound": float(np.exp(np.mean(np.log(ratios))))}
        names = [case.name for case in chosen]
        info = {"stage": "reinforce", "seed": params.seed, "training": names, "metrics": metrics}
        saved = save_policy(policy, "models/policy.safetensors", info)
        trackers.log_model("doppler-reinforce", {saved.name: saved}, info)
        write_metrics("reports/reinforce.json", metrics)
    return rows


@flow(name="reinforce")
def stage(params: Params) -> None:
    """Train the policy on the simulator."""
    rows = train(params)
    publish("reinforce", "Best placements of the training", markdown_table(Row._fields, rows))


if __name__ == "__main__":
    main(stage, Params)
