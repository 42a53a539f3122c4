"""What may be imported when: the core needs none of the pipeline's tools, and torch comes late."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCK = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def run(code: str) -> str:
    """Run ``code`` in a new interpreter and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_works_without_the_pipeline_tools_and_without_torch() -> None:
    absent = {"dvc", "prefect", "wandb", "torch", "torch_geometric"}
    code = BLOCK.format(absent=absent) + "import doppler; print(doppler.__version__)"
    assert run(code).strip()


def test_every_public_name_is_there_at_first_use() -> None:
    import doppler

    code = """
import doppler
for name in doppler.__all__:
    getattr(doppler, name)
    assert name in dir(doppler)
print(doppler.workloads.make("ffnn", tiles=1).n_ops)
"""
    assert int(run(code)) > 0
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = doppler.simulat


def test_importing_doppler_loads_none_of_the_pipeline_tools() -> None:
    code = (
        "import doppler, sys; print(sorted({'dvc', 'prefect', 'wandb', 'torch'} & {*sys.modules}))"
    )
    assert run(code).strip() == "[]"


# What takes longer to import than placing a graph takes.
HEAVY = {"torch", "torch_geometric", "networkx", "scipy.sparse", "scipy.optimize", "scipy.stats"}
COMMANDS = {
    "--help": {*HEAVY, "numba", "numpy", "pydantic", "rich"},
    "place workload:ffnn --cluster uniform:2 --budget 0": {*HEAVY, "jinja2"},
    "compare workload:ffnn --cluster uniform:2 --budget 0 --methods doppler,heft": HEAVY,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_import_nothing_heavy(command: str) -> None:
    code = f"""
import sys
from doppler.cli import main
try:
    main({command.split()!r})
except SystemExit as stop:
    assert not stop.code, stop.code
assert not {COMMANDS[command]!r} & {{*sys.modules}}, {COMMANDS[command]!r} & {{*sys.modules}}
"""
    assert run(code)
