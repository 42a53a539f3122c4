"""Improve the deployed policy on this machine; promote only what is proven faster.

One run at a time: whoever comes while another is at it waits for it, then is skipped. It may be
killed at any moment; the next run goes on from what is left.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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
)
from doppler.engine import Backend, Engine, make_backend
from doppler.errors import DopplerError
from doppler.graph import Graph
from doppler.graph.fingerprint import fingerprint
from doppler.params import Params, load_params
from doppler.placement import Placement
from doppler.policy.checkpoint import PRETRAINED, load_policy, read_header, save_policy
from doppler.refinement.health import Health, check_device, health_markdown
from doppler.refinement.history import History
from doppler.refinement.lock import Holder, OccupiedError, hold_machine
from doppler.refinement.paired_test import PairedResult, compare_paired
from doppler.refinement.refiner import Refiner
from doppler.refinement.report import (
    RefinementReport,
    refinement_markdown,
    refinement_report,
)
from doppler.refinement.session import measurement, refine, run_metrics, save_refined
from doppler.refinement.settings import NightlyParams
from doppler.refinement.start import (
    CLUSTER,
    PLACEMENT,
    Devices,
    Start,
    same_placement,
    start_anew,
    start_from,
)
from doppler.registry import POLICY, Registry, Version, describe_origin
from doppler.tracking import track
from storage import Storage, commit

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

STATE = Path(".cache/nightly")
# What an interrupted run had come to; discarded at the end of a run.
WORK = STATE / "work"
REPORT = Path("reports/refinement.html")
TRAINED = Path("models/policy.safetensors")
# Why nothing is compared.
SAME = "the challenger places the graph as the champion does"


class Refined(NamedTuple):
    """What refining came to."""

    challenger: Version
    runs: History
    mean_regret: float


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
def check(name: str, backend: Backend, device: int | None, timeout: float) -> Health:
    """Let a device compute what is known."""
    return check_device(backend, device, timeout)


@step("find the champion")
def find_champion(
    storage: Storage, registry: Registry, graph: Graph, settings: NightlyParams, seed: int
) -> tuple[Version, Start]:
    """Take the champion, or make the first of the policy that the pipeline trained."""
    devices = Devices(settings.backend, settings.devices, settings.profile_seconds, settings.budget)
    champion, measured = registry.champion, WORK / CLUSTER
    if champion is not None:
        return champion, start_from(champion, graph, devices, measured, seed)
    policy = TRAINED if TRAINED.exists() else PRETRAINED
    start = start_anew(graph, devices, policy, measured, seed)
    copied = save_policy(load_policy(policy), WORK / POLICY, read_header(policy)["info"])
    placement = start.placement.save(WORK / PLACEMENT)
    storage.begin()
    first = registry.add(
        {POLICY: copied, PLACEMENT: placement, CLUSTER: measured},
        origin=origin(graph, settings, seed),
    )
    return registry.promote(first.id, {"reason": f"the first version, from {policy}"}), start


@step("refine")
def improve(
    storage: Storage,
    registry: Registry,
    champion: Version,
    start: Start,
    backend: Backend,
    settings: NightlyParams,
    seed: int,
    until: float,
) -> Refined:
    """Refine until a moment of the monotonic clock, and register what it came to."""
    graph = start.problem.graph
    # Another champion or other devices begin anew.
    state = WORK / f"{champion.id}-{start.problem.fingerprint[:16]}"
    with (
        Refiner(
            start.problem,
            start.placement,
            policy=load_policy(start.policy),
            directory=state,
            guard=settings.guard,
            seed=seed,
            # The machine is here to refine: learn as much as there is to learn after every run.
            background=False,
        ) as refiner,
        Engine(graph, backend) as engine,
    ):
        refine(refiner, engine, seconds=until - time.monotonic(), timeout=settings.timeout)
    info = {"stage": "nightly", "seed": seed, "parent": champion.id, "training": [graph.name]}
    files = save_refined(refiner, WORK / "challenger", info)
    storage.begin()
    challenger = registry.add(
        files,
        parent=champion.id,
        origin=origin(graph, settings, seed),
        metrics={"runs": len(refiner.history), "mean_regret": refiner.mean_regret},
    )
    return Refined(challenger, refiner.history, refiner.mean_regret)


@step("compare {challenger.id} with {champion.id}")
def compare(
    champion: Version,
    challenger: Version,
    start: Start,
    backend: Backend,
    settings: NightlyParams,
    seed: int,
) -> PairedResult | None:
    """Run champion and challenger in turn; None if they would run alike."""
    placement = Placement.load(challenger.path(PLACEMENT))
    if same_placement(start.placement, placement):
        return None
    with Engine(start.problem.graph, backend) as engine:
        return compare_paired(
            measurement(engine, start.placement, settings.timeout),
            measurement(engine, placement, settings.timeout),
            pairs=settings.pairs,
            confidence=settings.confidence,
            min_gain=settings.min_gain,
            looks=settings.looks,
            warmup=1,
            problems=[start.problem.graph.name],
            seed=seed,
        )


@step("promote or keep")
def decide(
    storage: Storage, registry: Registry, challenger: Version, result: PairedResult | None
) -> None:
    """Enter the decision and its evidence, and record the registry."""
    evidence = {"reason": SAME} if result is None else result.to_json()
    # A run before this one may have decided, and been killed before it could tell.
    if registry.status(challenger.id) == "challenger":
        if result is not None and result.promote:
            registry.promote(challenger.id, evidence)
        else:
            registry.reject(challenger.id, evidence)
    for left in registry.challengers:
        why = f"never compared: its refinement was interrupted, {challenger.id} went on from it"
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
    refined: Refined,
    result: PairedResult | None,
    params: Params,
) -> None:
    """Show the night as a page, in Prefect and in W&B."""
    settings, challenger = params.nightly, refined.challenger
    night = RefinementReport(
        runs=[{**run._asdict(), "mean_regret": run.regret} for run in refined.runs],
        decision=result,
        champion=champion.id,
        challenger=challenger.id,
        max_regret=settings.guard.max_regret,
        versions=registry.to_json()["versions"],
        backend=settings.backend,
        title=f"Doppler: nightly refinement, {began}",
    )
    refinement_report(night, REPORT)
    markdown = refinement_markdown(night)
    publish_page("nightly", markdown)
    promoted = result is not None and result.promote
    with track("nightly", None, params.model_dump(mode="json")) as trackers:
        for run in refined.runs:
            trackers.log(run_metrics(run), step=run.run)
        trackers.log(figures(refined, result), step=len(refined.runs) + 1)
        trackers.log_artifact(
            challenger.to_json(),
            {name: challenger.path(name) for name in challenger.files},
            aliases=["champion"] if promoted else [],
        )
        trackers.report(night.title, markdown, ["regret", "measured_s"])


def figures(refined: Refined, result: PairedResult | None) -> dict[str, float]:
    """Sum up the night for W&B."""
    found: dict[str, float] = {"promoted": 0.0}
    if result is not None:
        ratios = {"ratio": result.ratio, "low": result.low, "high": result.high}
        found = {"promoted": float(result.promote)} | {
            f"challenger_{name}": value for name, value in ratios.items() if value is not None
        }
    return {"runs": len(refined.runs), "mean_regret": refined.mean_regret, **found}


def origin(graph: Graph, settings: NightlyParams, seed: int) -> dict[str, object]:
    """Say where a version comes from."""
    return describe_origin(
        graph=graph.name,
        graph_fingerprint=fingerprint(graph),
        backend=settings.backend,
        devices=settings.devices,
        seed=seed,
    )


def refine_tonight(params: Params) -> str:
    """Do all of a night's work; return what was decided.

    Raises
    ------
    DopplerError
        If a device is unhealthy: nothing has been changed then; or if a part fails for good.
    """
    settings, began = params.nightly, datetime.now(UTC).isoformat(timespec="seconds")
    storage, registry = Storage(STATE), Registry()
    print(pull(storage))
    graph = params.graphs[settings.graph].build()
    backend = make_backend(settings.backend, settings.devices)
    places: list[tuple[str, int | None]] = [(n, i) for i, n in enumerate(backend.device_names)]
    health = [
        check(name, backend, device, settings.timeout) for name, device in [*places, ("all", None)]
    ]
    publish("devices", "Devices", health_markdown(health))
    unhealthy = [f"{each.device} ({each.finding})" for each in health if not each.healthy]
    if unhealthy:
        raise DopplerError(f"nothing was refined, unhealthy are {', '.join(unhealthy)}")
    until = time.monotonic() + settings.seconds
    champion, start = find_champion(storage, registry, graph, settings, params.seed)
    # Another one every night that has another champion.
    seed = params.seed + champion.number
    refined = improve(storage, registry, champion, start, backend, settings, seed, until)
    challenger = refined.challenger
    result = compare(champion, challenger, start, backend, settings, seed)
    decide(storage, registry, challenger, result)
    said = f"{champion.id} stays champion: {SAME}" if result is None else result.text
    decision = f"{challenger.id} against {champion.id}: {said}"
    print(decision)
    print(push(storage, f"Nightly refinement: {decision}", settings.commit))
    report(began, registry, champion, refined, result, params)
    discard(WORK)
    return decision


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
