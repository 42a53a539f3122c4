"""Stage I: a new policy imitates the traces. models/imitation.safetensors, reports/imitate.*."""

from __future__ import annotations

from common import flow, main, markdown_table, publish, step, track, write_metrics
from doppler.policy.checkpoint import save_policy
from doppler.policy.features import FeatureSet
from doppler.policy.settings import PolicySettings
from doppler.training.case import new_policy
from doppler.training.imitation import ImitationSettings, imitate
from doppler.training.progress import training_bar
from training_set import TrainingSections, state_path, traced_cases, training_set


class Params(TrainingSections):
    """The sections that this stage reads."""

    policy: PolicySettings
    imitate: ImitationSettings


@step("imitate")
def train(params: Params) -> dict[str, float]:
    """Train and save the policy; return the metrics of the last updates."""
    chosen, shape = training_set(params), params.policy
    training, shown = traced_cases(chosen)
    policy = new_policy(params.seed, sizes=shape.sizes, features=FeatureSet.named(shape.features))
    with (
        track("imitate", "reports/imitate.csv", params) as trackers,
        training_bar("imitate") as bar,
    ):
        imitate(
            policy,
            training,
            shown,
            params.imitate,
            seed=params.seed,
            state=state_path("imitate"),
            tracker=trackers,
            progress=bar,
        )
        info = {"stage": "imitate", "seed": params.seed, "training": [case.name for case in chosen]}
        info["metrics"] = trackers.last
        saved = save_policy(policy, "models/imitation.safetensors", info)
        trackers.log_model("doppler-imitate", {saved.name: saved}, info)
    write_metrics("reports/imitate.json", trackers.last)
    return trackers.last


@flow(name="imitate")
def stage(params: Params) -> None:
    """Train the policy on the teacher's traces."""
    metrics = train(params)
    publish("imitate", "Imitation", markdown_table(("metric", "value"), metrics.items()))


if __name__ == "__main__":
    main(stage, Params)
