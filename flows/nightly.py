"""Improve the deployed policy on this machine; promote only what is proven faster.

One run at a time: whoever comes while another is at it waits for it, then is skipped. It may be
killed at any moment; the next run goes on from what is left.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from common import (
    Cancelled,
    Completed,
    discard,
    exiting,
    find_server,
    flow,
    flow_run_id,
    mark_crashed,
    publish,
    publish_page,
    step,
    track,
)
from doppler.clock import utc_now
from doppler.errors import DopplerError
from doppler.params import Params, load_params
from doppler.policy.checkpoint import PRETRAINED
from doppler.refinement.budget import error_left
from doppler.refinement.campaign import Campaign, RefinementResult, Start
from doppler.refinement.health import Health, health_markdown
from doppler.refinement.lock import Holder, OccupiedError, hold_machine
from doppler.refinement.promotion import Promotion, errors_spent
from doppler.refinement.report import (
    RefinementReport,
    refinement_markdown,
    refinement_report,
)
from doppler.refinement.session import run_metrics
from doppler.registry import POLICY, Registry, Version
from storage import Storage, commit

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

STATE = Path(".cache/nightly")
# What an interrupted run had come to; discarded at the end of a run.
WORK = STATE / "work"
REPORT = Path("reports/refinement.html")
# Where the first version comes from: what the pipeline refined, else what it trained.
REFINED, TRAINED = Path("models/refined"), Path("models/policy.safetensors")


@step("close the books of a run that was killed")
def close_books(killed: Holder) -> str:
    """Let Prefect's page show as crashed what could not say so itself."""
    mark_crashed(killed.run, f"process {killed.pid} was killed; a later run has gone on from it")
    return f"process {killed.pid}, at it since {killed.since}, was killed: going on from it"


@step("pull")
def pull(storage: Storage) -> str:
    """Bring the registry that is recorded."""
    return storage.pull()


@step("check {name}")
def check(name: str, campaign: Campaign, device: int | None) -> Health:
    """Let a device compute what is known."""
    return campaign.check(device)


@step("find the champion")
def find_champion(
    storage: Storage, registry: Registry, campaign: Campaign
) -> tuple[Version, Start]:
    """Take the champion, or make the first of what the pipeline came to."""
    champion = registry.champion
    if champion is not None:
        return champion, campaign.start(champion.paths())
    files = {path.name: path for path in REFINED.glob("*")}
    if POLICY in files:
        source = str(REFINED)
    elif TRAINED.exists():
        files, source = {POLICY: TRAINED}, str(TRAINED)
    else:
        files, source = {}, PRETRAINED
    start = campaign.start(files)
    storage.begin()
    first = registry.add(campaign.save_start(start, files), origin=campaign.origin)
    return registry.promote(first.id, {"reason": f"the first version, from {source}"}), start


@step("refine")
def improve(campaign: Campaign, champion: Version, start: Start, until: float) -> RefinementResult:
    """Refine until a moment of the monotonic clock."""
    # Another champion begins anew.
    return campaign.refine(start, champion.id, seconds=until - time.monotonic())


@step("compare with {champion.id}")
def compare(
    registry: Registry,
    campaign: Campaign,
    champion: Version,
    start: Start,
    refined: RefinementResult,
) -> Promotion:
    """Compare what the refinement came to with the champion."""
    return campaign.compare(start, refined, errors_spent(registry.history.events), utc_now())


@step("register")
def register(
    storage: Storage,
    registry: Registry,
    campaign: Campaign,
    champion: Version,
    start: Start,
    refined: RefinementResult,
    decision: Promotion,
) -> Version:
    """Add what was decided on as a challenger."""
    training = [campaign.graph.name]
    info = {"stage": "nightly", "seed": campaign.seed, "parent": champion.id, "training": training}
    files = campaign.save(
        start, refined, decision, info, champion.paths(), losers=not decision.promote
    )
    storage.begin()
    return registry.add(files, parent=champion.id, origin=campaign.origin, metrics=refined.metrics)


@step("promote or keep")
def decide(storage: Storage, registry: Registry, challenger: Version, decision: Promotion) -> None:
    """Enter the decision and its evidence, and record the registry."""
    # A try before this one may have decided, and failed to record it.
    if registry.status(challenger.id) == "challenger":
        enter = registry.promote if decision.promote else registry.reject
        enter(challenger.id, decision.evidence)
    for left in registry.challengers:
        why = f"never decided on: its refinement was interrupted, {challenger.id} went on from it"
        registry.reject(left.id, {"reason": why})
    storage.record()


@step("push")
def push(storage: Storage, message: str, commits: bool) -> str:
    """Send the registry to the remote, and commit what is recorded of it on request."""
    said = storage.push()
    return f"{said}; {commit(message)}" if commits else said


@step("report")
def report(
    began: str,
    registry: Registry,
    champion: Version,
    challenger: Version,
    refined: RefinementResult,
    decision: Promotion,
    params: Params,
) -> None:
    """Show the night as a page, in Prefect and in W&B."""
    settings = params.nightly
    spent = errors_spent(registry.history.events)
    night = RefinementReport(
        runs=list(refined.runs),
        decision=decision.placement.result,
        said=decision.text,
        champion=champion.id,
        challenger=challenger.id,
        max_regret=settings.guard.max_regret,
        error=settings.error_budget.error,
        error_left=error_left(settings.error_budget, spent, began),
        versions=registry.to_json()["versions"],
        backend=settings.backend,
        title=f"Doppler: nightly refinement, {began}",
    )
    refinement_report(night, REPORT)
    markdown = refinement_markdown(night)
    publish_page("nightly", markdown)
    with track("nightly", None, params) as trackers:
        for run in refined.runs:
            trackers.log(run_metrics(run), step=run.run)
        metrics = {**refined.metrics, **decision.metrics, "error_left": night.error_left or 0.0}
        trackers.log(metrics, step=len(refined.runs) + 1)
        trackers.log_artifact(
            challenger.to_json(),
            challenger.paths(),
            aliases=["champion"] if decision.promote else [],
        )
        trackers.report(night.title, markdown, ["regret", "measured_s"])


def refine_tonight(params: Params) -> str:
    """Do all of a night's work; return what was decided.

    Raises
    ------
    DopplerError
        If a device is unhealthy: nothing has been changed then; or if a part fails for good.
    """
    settings, began = params.nightly, utc_now()
    storage, registry = Storage(STATE), Registry()
    print(pull(storage))
    champion = registry.champion
    # Another one for every champion, the first of which is v1.
    seed = params.seed + (1 if champion is None else champion.number)
    campaign = Campaign(params.graphs[settings.graph].build(), settings, seed, WORK)
    health = [check(name, campaign, device) for name, device in campaign.devices.items()]
    publish("devices", "Devices", health_markdown(health))
    unhealthy = [f"{each.device} ({each.finding})" for each in health if not each.healthy]
    if unhealthy:
        raise DopplerError(f"nothing was refined, unhealthy are {', '.join(unhealthy)}")
    until = time.monotonic() + settings.seconds
    champion, start = find_champion(storage, registry, campaign)
    refined = improve(campaign, champion, start, until)
    decision = compare(registry, campaign, champion, start, refined)
    challenger = register(storage, registry, campaign, champion, start, refined, decision)
    decide(storage, registry, challenger, decision)
    said = f"{challenger.id} against {champion.id}: {decision.text}"
    print(said)
    print(push(storage, f"Nightly refinement: {said}", settings.commit))
    report(began, registry, champion, challenger, refined, decision, params)
    discard(WORK)
    return said


@flow(name="nightly", log_prints=True)
def nightly(params_file: str = "params.yaml") -> State[None]:
    """Improve the deployed policy, or be skipped if another run is at it.

    Parameters
    ----------
    params_file : str
        Read when the run begins, so that a change of it counts from the next run on.
    """
    params = load_params(params_file)
    settings = params.nightly
    try:
        with hold_machine(settings.lock, settings.wait, flow_run_id()) as killed:
            if killed is not None:
                print(close_books(killed))
            return Completed(message=refine_tonight(params))
    except OccupiedError as error:
        return Cancelled(name="Skipped", message=str(error))


def run_once(params_file: str) -> int:
    """Run the flow in this process; say how it ended, and return the exit code."""
    load_params(params_file)
    find_server()
    state = nightly(params_file, return_state=True)
    failure = state.result(raise_on_failure=False) if state.is_failed() else None
    if isinstance(failure, DopplerError):
        raise failure
    print(f"{state.name}: {state.message}")
    return 0 if state.is_completed() or state.name == "Skipped" else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", default="params.yaml", metavar="FILE")
    with exiting():
        sys.exit(run_once(parser.parse_args().params))
