"""dvc.yaml against the sources: an edit makes those stages stale that import what was edited."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parents[2]
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = util.spec_from_file_location("stages", ROOT / "scripts/stages.py")
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sources(script: ModuleType):
    return script.Sources(ROOT)


def stale(path: Path) -> set[str]:
    """Stages that DVC runs again after an edit of a file."""
    names = {
        str(each.relative_to(ROOT)) for each in (path, *path.parents) if each.is_relative_to(ROOT)
    }
    return {stage for stage, what in STAGES.items() if names & {*what["deps"]}}


def test_dvc_yaml_lists_what_the_flows_import(script, sources) -> None:
    text = (ROOT / "dvc.yaml").read_text()
    assert script.brought_up_to_date(text, sources) == text, "run 'python scripts/stages.py'"


def test_an_edit_of_a_module_makes_the_stages_stale_that_import_it(sources) -> None:
    closures = {stage: sources.closure(stage) for stage in STAGES}
    for module, path in sources.paths.items():
        assert stale(path) == {stage for stage in STAGES if module in closures[stage]}, module
    assert stale(ROOT / "requirements.lock") == {*STAGES}


def test_an_edit_of_refinement_trains_nothing_anew(sources) -> None:
    files = list((ROOT / "src/doppler/refinement").rglob("*.*"))
    assert len(files) > 10
    assert set().union(*map(stale, files)) == {"refine"}
    assert stale(ROOT / "src/doppler/refinement/guard.py") == {"refine"}


def test_an_edit_of_what_people_look_at_trains_nothing_anew() -> None:
    for folder in ("cli", "viewer", "evaluation", "registry"):
        for path in (ROOT / "src/doppler" / folder).rglob("*.*"):
            assert not stale(path) & {"graphs", "traces", "imitate", "reinforce"}, path


def test_every_file_of_data_belongs_to_the_module_that_reads_it(script, sources) -> None:
    for module, path in script.DATA.items():
        assert module in sources.paths
        assert (ROOT / path).exists()
    kept = [path for path in (ROOT / "src/doppler").rglob("*") if path.is_file()]
    for path in (path for path in kept if "__pycache__" not in path.parts):
        name = str(path.relative_to(ROOT))
        known = (script.PRETRAINED, *script.DATA.values())
        assert path.suffix == ".py" or path.name == "py.typed" or name.startswith(known), (
            f"{name}: who reads it?"
        )


@pytest.mark.slow
def test_what_python_loads_for_a_flow_is_what_was_read(sources) -> None:
    pytest.importorskip("prefect")
    code = """
import importlib, os, sys
import common, networkx, numba, scipy.sparse.csgraph, torch, torch_geometric  # once for all stages
for stage in sys.argv[1:]:
    if not os.fork():
        importlib.import_module(stage)
        ours = [name for name in sys.modules if name.split(".")[0] in ("doppler", "training_set")]
        os.write(1, f"{stage} {' '.join(ours)}\\n".encode())
        os._exit(0)
    os.wait()
"""
    path = os.pathsep.join([str(ROOT / "flows"), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-c", code, *STAGES],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    loaded = {line.split()[0]: {*line.split()[1:]} for line in done.stdout.splitlines()}
    assert {*loaded} == {*STAGES}
    for stage, modules in loaded.items():
        assert len(modules) > 10
        assert modules <= sources.closure(stage)


FILES = {
    "flows/stage.py": "import common\n\n\nclass Params(common.Base):\n    seed: int\n",
    "flows/common.py": "from doppler import Late\n",
    "src/doppler/__init__.py": "if TYPE_CHECKING:\n    from doppler.late import Late\n",
    "src/doppler/late.py": "def load():\n    from doppler.part.inner import thing\n",
    "src/doppler/part/__init__.py": "import doppler.package\n",
    "src/doppler/part/inner.py": "if TYPE_CHECKING:\n    import doppler.typed\n",
    "src/doppler/package.py": "",
    "src/doppler/typed.py": "import doppler.other\n",
    "src/doppler/other.py": "",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_packages_late_imports_and_names_of_the_front_count_and_types_do_not(
    script, project
) -> None:
    found = script.Sources(project).closure("stage")
    assert found == {
        *("stage", "common", "doppler", "doppler.late"),
        *("doppler.part", "doppler.part.inner", "doppler.package"),
    }


def test_a_whole_package_is_listed_by_its_folder_and_what_is_no_source_stays(
    script, project
) -> None:
    before = (
        "stages:\n  stage:\n    cmd: python flows/stage.py\n    deps:\n      - data/graphs\n"
        "      - src/doppler/gone.py\n    params:\n      - none\n    outs:\n      - models/it\n"
    )
    made = script.brought_up_to_date(before, script.Sources(project))
    stage = yaml.safe_load(made)["stages"]["stage"]
    assert stage["deps"] == [
        *("data/graphs", "flows/common.py", "flows/stage.py", "requirements.lock"),
        *("src/doppler/__init__.py", "src/doppler/late.py", "src/doppler/package.py"),
        "src/doppler/part",
    ]
    assert stage["params"] == ["seed"]
    assert stage["outs"] == ["models/it"]


def test_an_import_that_cannot_be_read_is_refused(script, project) -> None:
    (project / "src/doppler/late.py").write_text("import_module(name)\n")
    with pytest.raises(SystemExit, match=r"late\.py: imports what no reader of it can know"):
        script.Sources(project).closure("stage")
