"""Stage I: a new policy imitates the traces. models/imitation.safetensors, reports/imitate.*."""

from __future__ import annotations

from common import (
    flow,
    main,
    markdown_table,
    publish,
    state_path,
    step,
    traced_cases,
    training_set,
    write_metrics,
)
from doppler.params import Params
from doppler.policy.checkpoint import save_policy
from doppler.policy.features import FeatureSet
from doppler.policy.frozen import Sizes
from doppler.tracking import track
from doppler.training.case import new_policy
from doppler.training.imitation import ImitationSettings, imitate
from doppler.training.loop import Schedule
from doppler.training.progress import training_bar


@step("imitate")
def train(params: Params) -> dict[str, float]:
    """Train and save the policy; return the metrics of the last updates."""
    chosen, settings = training_set(params), params.imitate
    training, shown = traced_cases(chosen)
    sizes = params.policy.model_dump(exclude={"features"})
    policy = new_policy(
        params.seed, sizes=Sizes(**sizes), features=FeatureSet.named(params.policy.features)
    )
    with (
        track("imitate", "reports/imitate.csv", params.model_dump(mode="json")) as trackers,
        training_bar("imitate") as bar,
    ):
        imitate(
            policy,
            training,
            shown,
            ImitationSettings(
                Schedule(**settings.model_dump(exclude={"traces"})), traces=settings.traces
            ),
            seed=params.seed,
            state=state_path("imitate"),
            tracker=trackers,
            progress=bar,
        )
    info = {"stage": "imitate", "seed": params.seed, "training": [case.name for case in chosen]}
    save_policy(policy, "models/imitation.safetensors", {**info, "metrics": trackers.last})
    write_metrics("reports/imitate.json", trackers.last)
    return trackers.last


@flow(name="imitate")
def stage(params: Params) -> None:
    """Train the policy on the teacher's traces."""
    metrics = train(params)
    publish("imitate", "Imitation", markdown_table(("metric", "value"), metrics.items()))


if __name__ == "__main__":
    main(stage)
