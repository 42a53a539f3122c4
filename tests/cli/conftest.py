"""Runs the command line in this process, and small files for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from doppler import Graph, save_graph
from doppler.cli.main import run


@dataclass(frozen=True)
class Done:
    """What a command left: its exit code, stdout and stderr."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """Return the one JSON object on stdout; nothing else may be there, nor on stderr."""
        assert self.code == 0, self.err
        assert self.err == ""
        assert self.out.count("\n") == 1
        values = json.loads(self.out, parse_constant=_refuse)
        assert isinstance(values, dict)
        return values

    def refusal(self) -> str:
        """Return the one line on stderr of a command that refused its input."""
        assert self.code == 2, (self.out, self.err)
        assert self.out == ""
        assert self.err.startswith("error: ")
        assert self.err.count("\n") == 1
        assert self.err.endswith("\n")
        return self.err


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


Cli = Callable[..., Done]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*arguments: object) -> Done:
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return call


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    """A diamond of four ops in the official text format."""
    graph = Graph.from_arrays([0, 0, 1, 2], [1, 2, 3, 3], [3, 4, 5, 6], [1, 1, 1, 1])
    path = tmp_path / "in" / "layer.txt"
    save_graph(graph, path, "text")
    return path


@pytest.fixture
def placement(cli: Cli, layer: Path) -> Path:
    """A placement of ``layer`` on two devices."""
    path = layer.parent / "placement.json"
    cli("place", layer, "--cluster", "uniform:2", "-m", "heft", "-o", path, "--json").json()
    return path


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small policy with random weights."""
    torch = pytest.importorskip("torch")
    from doppler.policy.checkpoint import save_policy
    from doppler.policy.frozen import Sizes
    from doppler.policy.network import DualPolicy

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("policy") / "small.safetensors"
    return save_policy(DualPolicy(Sizes(embedding=8, layers=1, hidden=8, code=4)), path)


@pytest.fixture
def small_memory(tmp_path: Path) -> Path:
    """A cluster of two devices with a megabyte each."""
    path = tmp_path / "small.yaml"
    path.write_text(
        "devices:\n"
        "  - {name: gpu, count: 2, flops: 1e12, memory_bandwidth: 1e11, memory: 1e6,"
        " launch_overhead: 1e-6}\n"
        "links:\n"
        "  - {between: [gpu, gpu], bandwidth: 1e10, latency: 1e-6, channel: pair}\n"
    )
    return path
