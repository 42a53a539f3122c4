"""A small clone of the project with a Prefect server of its own; real Git, DVC and Prefect."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Clone:
    """A clone of the project, and the environment in which its commands run."""

    path: Path
    environment: dict[str, str]

    def run(self, *command: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run a command in the clone; fail unless it exits with ``code`` (None: any)."""
        done = subprocess.run(
            command,
            cwd=self.path,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        if code is not None:
            assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
        return done

    def dvc(self, *arguments: str, code: int | None = 0) -> str:
        """Run DVC and return what it printed on stdout."""
        return self.run(sys.executable, "-m", "dvc", *arguments, code=code).stdout

    def commit(self, message: str) -> None:
        """Commit everything that Git does not ignore."""
        self.run("git", "add", "-A")
        self.run("git", "commit", "-q", "-m", message)

    def params(self) -> dict:
        """Return what params.yaml holds."""
        return yaml.safe_load((self.path / "params.yaml").read_text())

    def write_params(self, values: dict) -> None:
        """Replace params.yaml."""
        (self.path / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))


def small(values: dict) -> dict:
    """Cut the shipped parameters down to seconds, with every key kept."""
    few = {"m": 8, "k": 8, "n": 8, "p": 8, "q": 8}
    graph = {"workload": "chainmm", "sizes": few, "tiles": 1}
    values["graphs"] = {
        "small": graph,
        "smaller": {**graph, "tiles": {"m": 2, "k": 1, "n": 1, "p": 1, "q": 1}},
        "held_out": {**graph, "tiles": 2},
        "large": {**graph, "tiles": 3},
        "grid": {"workload": "lstm_grid", "sizes": {"steps": 3, "layers": 2}, "tiles": {}},
    }
    values["training"] = [{"graphs": ["small", "smaller"], "clusters": ["uniform:2"]}]
    values["generated"].update(training=1, ops=[200, 800], validation=1, validation_ops=[200, 800])
    values["traces"].update(count=2, hints=1)
    values["policy"]["sizes"] = {"embedding": 8, "layers": 1, "hidden": 8, "code": 2}
    values["imitate"].update(updates=2, log_every=1)
    values["reinforce"].update(updates=3, episodes=4, log_every=1, styles=1)
    values["evaluate"].update(
        suite={"budget": 0.01, "cases": [{"graphs": ["small"], "clusters": ["p100x4"]}]},
        large={"budget": 0.01, "cases": [{"graphs": ["large"], "clusters": ["v100_2x4"]}]},
        operators={"budget": 0.01, "cases": [{"graphs": ["grid"], "clusters": ["uniform:2"]}]},
        zero_shot=[{"graphs": ["held_out"], "clusters": ["uniform:3"]}],
        zero_shot_large=[{"graphs": ["held_out"], "clusters": ["uniform:4"]}],
        search=0.01,
        samples=2,
        jitter_seeds=2,
    )
    system = {"graph": "smaller", "profile_seconds": 0.5, "budget": 0.1}
    values["refine"].update(system, episodes=40)
    values["nightly"].update(system, seconds=2.0, wait=1.0)
    for section in ("refine", "nightly"):
        values[section]["promotion"].update(pairs=12, policy_pairs=0)
    return values


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Prefect server on this machine, stopped at the end."""
    home = tmp_path_factory.mktemp("prefect")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api"
    with (home / "server.log").open("w") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "prefect", "server", "start", "--no-ui"),
                *("--host", "127.0.0.1", "--port", str(port)),
            ],
            env=os.environ
            | {
                "DO_NOT_TRACK": "1",
                "PREFECT_HOME": str(home),
                "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + 180
        while not answers(f"{url}/health"):
            assert process.poll() is None, (home / "server.log").read_text()
            assert time.monotonic() < deadline, (home / "server.log").read_text()
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(url: str) -> bool:
    """Whether a server answers at the address."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory, server: str) -> Clone:
    """The files that Git tracks here, in a repository of their own, with small parameters."""
    pytest.importorskip("dvc")
    path = tmp_path_factory.mktemp("clone")
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, tracked.stdout.split("\0")):
        # Results of an earlier run would make this one do nothing; the experiments are a pipeline
        # of their own.
        if name in ("dvc.lock", "experiments/dvc.lock") or not (ROOT / name).is_file():
            continue
        if name == "experiments/dvc.yaml":
            continue
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, path / name)
    for compiled in (ROOT / "src").glob("**/__pycache__/*.nbc"):
        (path / compiled.relative_to(ROOT)).parent.mkdir(exist_ok=True)
        shutil.copy(compiled, path / compiled.relative_to(ROOT))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "WANDB_"))}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(path / "src"),
        "DVC_NO_ANALYTICS": "1",
        "PREFECT_API_URL": server,
        "PREFECT_HOME": str(tmp_path_factory.mktemp("home")),
    }
    clone = Clone(path, environment)
    clone.write_params(small(clone.params()))
    clone.run("git", "init", "-q", "-b", "main")
    clone.run("git", "config", "user.name", "Test")
    clone.run("git", "config", "user.email", "test@localhost")
    clone.commit("The project with small parameters")
    return clone


@pytest.fixture(scope="session")
def reproduced(clone: Clone) -> Clone:
    """The clone after ``dvc repro``, its results committed."""
    clone.dvc("repro")
    clone.commit("Results")
    return clone
