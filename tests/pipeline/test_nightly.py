"""The nightly refinement with a real Prefect server: served, killed, two at once, deployed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest
import yaml
from conftest import Clone  # type: ignore[attr-defined]

from doppler.registry import Registry

pytestmark = pytest.mark.slow

T = TypeVar("T")
PATIENCE = 300.0


def ask(server: str, path: str, body: dict | None = None) -> list[dict]:
    """Return records of a kind that the server holds."""
    request = urllib.request.Request(
        f"{server}/{path}/filter",
        data=json.dumps(body or {}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def runs(server: str, *states: str) -> list[dict]:
    """Return the runs of the flow that are in one of some states."""
    return ask(
        server,
        "flow_runs",
        {
            "flows": {"name": {"any_": ["nightly"]}},
            "flow_runs": {"state": {"name": {"any_": list(states)}}},
        },
    )


def wait_for(found: Callable[[], T], process: subprocess.Popen | None = None) -> T:
    """Return what is found once it is something."""
    deadline = time.monotonic() + PATIENCE
    while not (value := found()):
        assert process is None or process.poll() is None, "the process has ended"
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)
    return value


@pytest.fixture(scope="module")
def night(clone: Clone, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A checkout of its own, with the code that the other one has compiled."""
    path = tmp_path_factory.mktemp("night")
    for name in (".dvc", "flows", "models", "reports"):
        ignored = shutil.ignore_patterns("cache", "tmp", "policy*", "imitation*", "incumbents")
        shutil.copytree(clone.path / name, path / name, ignore=ignored)
    for name in (".dvcignore", ".gitignore", "params.yaml", "prefect.yaml"):
        shutil.copy(clone.path / name, path / name)
    more = {"DOPPLER_CHECKOUT": str(path), "PREFECT_RUNNER_POLL_FREQUENCY": "1"}
    made = Clone(path, clone.environment | more)
    made.run("git", "init", "-q", "-b", "main")
    made.run("git", "config", "user.name", "Test")
    made.run("git", "config", "user.email", "test@localhost")
    values = made.params()
    values["nightly"]["commit"] = True
    made.write_params(values)
    made.commit("A checkout")
    return made


@contextmanager
def started(night: Clone, script: str, *arguments: str) -> Iterator[subprocess.Popen]:
    """Run a flow's script in the background; killed at the end if it still runs."""
    log = night.path.parent / f"{night.path.name}.log"
    with log.open("a") as stream:
        process = subprocess.Popen(
            [sys.executable, f"flows/{script}", *arguments],
            cwd=night.path,
            env=night.environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
            # Also where the tests themselves ignore interrupts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    try:
        yield process
    except BaseException:
        print(log.read_text())
        raise
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def holder(night: Clone) -> dict | None:
    """Return the note of the run that holds the machine."""
    try:
        return json.loads((night.path / ".cache/nightly/lock.json").read_text())
    except FileNotFoundError:
        return None


def check_nothing_is_left(night: Clone) -> None:
    """Fail if anything is half-written or not recorded."""
    assert Registry(night.path / "models/registry").problems() == []
    assert holder(night) is None
    left = sorted(path.name for path in (night.path / ".cache/nightly").iterdir())
    assert left == ["lock"]
    assert sorted(os.listdir(night.path / "models/.registry.unfinished")) == [".gitignore", "lock"]
    for folder in ("models", "reports"):
        hidden = {name for name in os.listdir(night.path / folder) if name.startswith(".")}
        assert hidden <= {".gitignore", ".registry.unfinished"}
    assert "up to date" in night.dvc("status", "models/registry.dvc")
    assert night.run("git", "status", "--porcelain").stdout == ""


def test_served_killed_and_two_at_once(night: Clone, server: str) -> None:
    registry = Registry(night.path / "models/registry")
    with started(night, "serve.py", "--interval", "5") as serving:
        # It fires by itself and leaves a champion and a challenger that was decided on.
        first = wait_for(lambda: runs(server, "Completed"), serving)[0]
        assert first["deployment_id"] is not None
        assert first["state"]["message"].startswith("v2 against v1: ")
        assert registry.champion is not None
        assert [version.id for version in registry.versions()][:2] == ["v1", "v2"]

        # The next one is killed while it refines, and so is what serves it.
        def refining() -> dict | None:
            found = holder(night)
            begun = list((night.path / ".cache/nightly/work").glob("v*-*"))
            return found if begun and found and found["run"] != first["id"] else None

        killed = wait_for(refining, serving)
        serving.kill()
        serving.wait()
        os.kill(killed["pid"], signal.SIGKILL)
    assert killed["run"] in [run["id"] for run in runs(server, "Running")]
    known = [version.id for version in registry.versions()]

    # The one after goes on; another that comes meanwhile is skipped.
    with started(night, "serve.py", "--once") as going_on:
        heir = wait_for(
            lambda: (found := holder(night)) and found["run"] != killed["run"] and found, going_on
        )
        os.kill(heir["pid"], signal.SIGSTOP)
        try:
            done = night.run(sys.executable, "flows/nightly.py")
        finally:
            os.kill(heir["pid"], signal.SIGCONT)
        assert "Skipped: .cache/nightly/lock: a refinement is under way here" in done.stdout
        assert going_on.wait(PATIENCE) == 0
    (skipped,) = runs(server, "Skipped")
    assert skipped["state_type"] == "CANCELLED"
    assert f"by process {heir['pid']} since" in skipped["state"]["message"]
    assert heir["run"] in [run["id"] for run in runs(server, "Completed")]
    (crashed,) = runs(server, "Crashed")
    assert crashed["id"] == killed["run"]
    assert "was killed" in crashed["state"]["message"]
    assert len(registry.versions()) == len(known) + 1
    assert registry.challengers == ()
    check_nothing_is_left(night)

    # What it says of it.
    last = registry.versions()[-1].id
    assert last in (night.path / "reports/refinement.html").read_text()
    artifacts = {artifact["key"]: artifact["data"] for artifact in ask(server, "artifacts")}
    assert "# Doppler: nightly refinement" in artifacts["nightly"]
    assert "Of the month's error " in artifacts["nightly"]
    assert "| cpu1 | healthy |" in artifacts["devices"]
    assert "Nightly refinement: " in night.run("git", "log", "-1", "--format=%s").stdout

    # What was recorded comes back from the remote.
    shutil.rmtree(night.path / ".dvc/cache")
    shutil.rmtree(night.path / "models/registry")
    night.dvc("pull", "models/registry.dvc")
    check_nothing_is_left(night)


def test_serving_ends_cleanly_on_an_interrupt(night: Clone, server: str) -> None:
    def deployment() -> list[dict]:
        found = ask(server, "deployments")
        return [each for each in found if each["name"] == "nightly" and not each["paused"]]

    with started(night, "serve.py") as serving:
        schedules = wait_for(
            lambda: [
                each["schedule"]
                for found in deployment()
                for each in found["schedules"]
                if "cron" in each["schedule"]
            ],
            serving,
        )
        assert [(s["cron"], s["timezone"]) for s in schedules] == [("0 2 * * *", "UTC")]
        serving.send_signal(signal.SIGINT)
        assert serving.wait(PATIENCE) == 0
    assert not deployment()


def test_the_deployment_for_workers_is_what_the_parameters_say(night: Clone, server: str) -> None:
    (declared,) = yaml.safe_load((night.path / "prefect.yaml").read_text())["deployments"]
    settings = night.params()["nightly"]
    (schedule,) = declared["schedules"]
    assert (schedule["cron"], schedule["timezone"]) == (settings["cron"], settings["timezone"])

    prefect = (sys.executable, "-m", "prefect", "--no-prompt")
    pool = declared["work_pool"]["name"]
    night.run(*prefect, "work-pool", "create", pool, "--type", "process")
    night.run(*prefect, "deploy", "--name", declared["name"])
    (made,) = [each for each in ask(server, "deployments") if each["work_pool_name"] == pool]
    assert made["entrypoint"] == "flows/nightly.py:nightly"
    assert made["parameters"] == {"params_file": "params.yaml"}
    assert [each["schedule"]["cron"] for each in made["schedules"]] == [settings["cron"]]
    assert made["global_concurrency_limit"]["limit"] == 1
    assert made["concurrency_options"]["collision_strategy"] == "ENQUEUE"
    (step,) = made["pull_steps"]
    assert next(iter(step.values()))["directory"] == str(night.path)


def test_parameters_that_are_wrong_stop_it_before_anything(night: Clone) -> None:
    values = night.params()
    values["nightly"]["second"] = 1.0
    wrong = night.path.parent / "wrong.yaml"
    wrong.write_text(yaml.safe_dump(values))
    done = night.run(sys.executable, "flows/serve.py", "--params", str(wrong), code=2)
    assert done.stdout == ""
    assert "nightly: unknown parameter 'second': did you mean 'seconds'?" in done.stderr
    done = night.run(sys.executable, "flows/serve.py", "--cron", "61 2 * * *", code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("error: cron: '61 2 * * *' is no schedule")
    assert done.stderr.count("\n") == 1


WRONG = """
import sys
sys.path.insert(0, "flows")
import nightly
from doppler.refinement import health

right = health.run_sequential

def wrong(graph, tensors):
    return {op: value + 1.0 for op, value in right(graph, tensors).items()}

health.run_sequential = wrong
nightly.run_once("params.yaml")
"""


def test_an_unhealthy_device_ends_it_before_anything_is_changed(night: Clone, server: str) -> None:
    before = night.run("git", "status", "--porcelain").stdout
    versions = len(Registry(night.path / "models/registry").versions())
    done = night.run(sys.executable, "-c", WRONG, code=1)
    fault = "nothing was refined, unhealthy are cpu0 (computes probabilities wrong, off by up to 1)"
    assert f"DopplerError: {fault}, cpu1 (" in done.stderr
    assert fault in runs(server, "Failed")[0]["state"]["message"]
    assert len(Registry(night.path / "models/registry").versions()) == versions
    assert night.run("git", "status", "--porcelain").stdout == before
