"""docs/architecture.md is what the code does: its map, its names, and the ways it tells."""

from __future__ import annotations

import pkgutil
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from documents import DOCUMENTS, ROOT
from walk import entered

import doppler
from doppler.cli.main import run

PAGE = ROOT / "docs/architecture.md"
PARTS = {module.name for module in pkgutil.iter_modules(doppler.__path__)}
# Dotted names in backticks, of which the first part is a module of ours.
CODE = re.compile(r"`(?:doppler\.)?([a-z_]+(?:\.\w+)+)`")
FILES = (".csv", ".html", ".json", ".md", ".py", ".safetensors", ".yaml")
SMALL = "workload:ffnn?batch=16&inputs=8&hidden=8&outputs=8&tiles=2"


def names(text: str) -> list[str]:
    """What a text names of the package: ``graph.graph.Graph``."""
    found = CODE.findall(text)
    return [n for n in found if n.partition(".")[0] in PARTS and not n.endswith(FILES)]


def steps(section: str) -> list[str]:
    """The function of every step of a way, by the heading of its section."""
    text = PAGE.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    return [
        names(step)[0] for step in re.findall(r"^\d+\. (.*?)(?=^\d+\. |\n\n)", text, re.M | re.S)
    ]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_what_a_document_names_of_the_package_exists(make: ModuleType, path: Path) -> None:
    text = path.read_text()
    # Elsewhere a short name may be a parameter or a key: ``policy.features``.
    found = names(text) if path == PAGE else re.findall(r"`doppler\.([a-z_]+(?:\.\w+)+)`", text)
    for name in found:
        make.named(f"doppler.{name}")


def test_the_map_is_as_it_is_and_has_every_part(make: ModuleType) -> None:
    text, table = PAGE.read_text(), make.map_of_parts()
    assert make.replaced(text, "map", table, PAGE.name) == text, "run 'make figures'"
    assert not [part for part in PARTS if f"`{part}`" not in text]


def test_the_folders_are_there() -> None:
    told = PAGE.read_text().split("\n## Beside the package\n")[1]
    folders = [name for row in re.findall(r"^\| (`.*?) \|", told, re.M) for name in row.split(", ")]
    assert len(folders) > 6
    assert not [name for name in folders if not (ROOT / name.strip("`")).is_dir()]


NET = """
import torch

def example():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    return model.eval(), (torch.ones(4, 8),)
"""


def capture(stack: ExitStack) -> Callable[[], Any]:
    patch = stack.enter_context(pytest.MonkeyPatch.context())
    patch.setattr(sys, "path", [*sys.path])
    Path("traced_net.py").write_text(NET)
    arguments = ["capture", "traced_net:example", "-o", "net.json", "--shard", "batch=2"]
    return lambda: run(arguments)


def compile_and_call(_: ExitStack) -> Callable[[], Any]:
    import torch

    model, x = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU()).eval(), torch.ones(4, 8)

    def produce() -> None:
        with doppler.compile(model, (x,), ["cpu:0", "cpu:1"], shard=None, budget=0.1) as placed:
            placed(x)

    return produce


def load(_: ExitStack) -> Callable[[], Any]:
    assert run(["convert", SMALL, "layer.json"]) == 0
    return lambda: doppler.load_graph("layer.json")


def place(_: ExitStack) -> Callable[[], Any]:
    # Looking on takes time, on a busy machine all that there was for searching.
    budgets = iter(("0.5", "0.5", "2", "8"))
    arguments = ["--cluster", "uniform:4", "-o", "placement.json", "--budget"]
    return lambda: run(["place", SMALL, *arguments, next(budgets)])


def train(_: ExitStack) -> Callable[[], Any]:
    from doppler.policy.network import DualPolicy
    from doppler.training.case import TrainingCase
    from doppler.training.reinforce import ReinforceSettings, reinforce

    problem = doppler.Problem(doppler.workloads.ffnn(tiles=2), doppler.Cluster.uniform(2))
    settings = ReinforceSettings(updates=1, episodes=4)
    return lambda: reinforce(DualPolicy(), [TrainingCase("ffnn", problem)], settings)


def measure(_: ExitStack) -> Callable[[], Any]:
    assert run(["convert", SMALL, "graph.json"]) == 0
    made = ["place", "graph.json", "--cluster", "uniform:2", "--method", "round_robin"]
    assert run([*made, "-o", "placement.json"]) == 0
    return lambda: run(["run", "graph.json", "placement.json"])


def refine(stack: ExitStack) -> Callable[[], Any]:
    from doppler.refinement.refiner import Refiner

    problem = doppler.Problem(doppler.workloads.ffnn(tiles=2), doppler.Cluster.uniform(2))
    champion = doppler.place(problem, budget=0.0)
    refiner = stack.enter_context(Refiner(problem, champion, background=False))

    def produce() -> None:
        result = doppler.simulate(problem, refiner.next())
        refiner.observe(result.makespan, trace=result.trace)

    return produce


@pytest.mark.parametrize(
    ("section", "way"),
    [
        ("The way of a model", capture),
        ("The way of a placed model", compile_and_call),
        ("The way of a graph file", load),
        ("The way of `doppler place`", place),
        ("The way of a training batch", train),
        ("The way of a measured run", measure),
        ("The way of a run in production", refine),
    ],
)
def test_a_way_is_the_one_that_the_code_goes(
    section: str,
    way: Callable[[ExitStack], Callable[[], Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        call = way(stack)
        # Modules are imported and kernels compiled, on problems of their own, the first time.
        call()
        told = steps(section)
        assert len(told) > 3
        for _ in range(3 if way is place else 1):
            gone = [name.removeprefix("doppler.") for name in entered(call)]
            if set(told) <= set(gone):
                break
    assert [name for name in gone if name in told] == told
