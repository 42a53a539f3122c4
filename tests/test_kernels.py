"""Compiled kernels: kept for the next process, wherever that may write, and never trusted blindly.

Loading a module again stands for another process: nothing but files is left of the first.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numba import config
from unprivileged import unprivileged

from doppler.kernels import KernelCache

SOURCE = """
from doppler.kernels import kernel
FACTOR = 2

@kernel
def scaled(value):
    return FACTOR * value

@kernel
def shifted(value):
    return scaled(value) + 1
"""
CALLER = """
from doppler.kernels import kernel
from {name} import FACTOR, shifted

@kernel
def both(value):
    return FACTOR * shifted(value)
"""
RUN = "import small; print(small.shifted(3), sum(small.shifted.stats.cache_hits.values()))"
PLACES = ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME", "TMPDIR")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source" / "small.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    return path


@pytest.fixture
def load(monkeypatch) -> Callable[..., ModuleType]:
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setattr(KernelCache, "_told", False)

    def load(path: Path, name: str = "small") -> ModuleType:
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(path.read_text(), path, "exec"), vars(module))
        return module

    return load


def hits(kernel) -> int:
    return sum(kernel.stats.cache_hits.values())


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.nbc"))


def test_a_kernel_is_compiled_once_for_each_set_of_types(source, load) -> None:
    first = load(source)
    assert (first.shifted(3), first.shifted(0.5), hits(first.shifted)) == (7, 2.0, 0)
    again = load(source)
    assert (again.shifted(3), again.shifted(0.5), hits(again.shifted)) == (7, 2.0, 2)
    assert {path.parent for path in files(source.parent)} == {source.parent / "__pycache__"}
    assert len(files(source.parent)) == 4


@given(st.sampled_from(["emptied", "cut", "changed", "replaced"]), st.floats(0, 0.999))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_compiled_anew(source, load, caplog, damage: str, place: float) -> None:
    assert load(source).shifted(3) == 7
    for path in files(source.parent):
        whole = path.read_bytes()
        at = int(place * len(whole))
        changed = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
        damaged = {"emptied": b"", "cut": whole[:at], "changed": changed, "replaced": b"no code"}
        path.write_bytes(damaged[damage])
    again = load(source)
    assert (again.shifted(3), hits(again.shifted)) == (7, 0)
    repaired = load(source)
    assert (repaired.shifted(3), hits(repaired.shifted)) == (7, 1)
    assert caplog.text == ""


def test_an_edit_counts_wherever_the_kernel_is_called(source, load) -> None:
    caller = source.with_name("caller.py")
    caller.write_text(CALLER.format(name="small"))

    def both() -> int:
        load(source)
        return load(caller, "caller").both(3)

    assert both() == 14
    source.write_text(SOURCE.replace("value) + 1", "value) + 2"))
    assert both() == 16
    source.write_text(SOURCE.replace("FACTOR = 2", "FACTOR = 3"))
    assert both() == 30
    source.write_text(SOURCE.replace("FACTOR = 2", "# A comment.\nFACTOR = 2"))
    assert (both(), hits(sys.modules["caller"].both)) == (14, 1)


def test_an_edit_of_a_named_tuple_counts(source, load) -> None:
    text = """
from typing import NamedTuple
from doppler.kernels import kernel
class Pair(NamedTuple):
    low: int
    high: int
@kernel
def low(pair):
    return pair.low
"""
    source.write_text(text)
    module = load(source)
    assert module.low(module.Pair(low=1, high=2)) == 1
    source.write_text(text.replace("    low: int\n    high: int", "    high: int\n    low: int"))
    module = load(source)
    assert module.low(module.Pair(low=1, high=2)) == 1


def test_few_files_stay_of_a_kernel_that_is_edited_often(source, load) -> None:
    for number in range(12):
        source.write_text(SOURCE.replace("+ 1", f"+ {number}"))
        assert load(source).shifted(3) == 6 + number
    assert len(list(source.parent.rglob("small.shifted-*.nbc"))) == 8


def test_the_folder_that_the_user_named_is_the_only_one(
    source, load, tmp_path, monkeypatch
) -> None:
    load(source).shifted(3)
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "mine"))
    for number in range(2):
        module = load(source)
        assert (module.shifted(3), hits(module.shifted)) == (7, number)
    assert len(files(tmp_path / "mine")) == len(files(source.parent)) == 2


def in_process(source: Path, code: str = RUN, **places: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in PLACES}
    paths = [str(source.parent), *filter(None, sys.path)]
    return subprocess.run(
        unprivileged(sys.executable, "-c", code),
        env=environment
        | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
        | {name: str(path) for name, path in places.items()},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_who_may_not_write_beside_the_source_keeps_kernels_elsewhere(source, tmp_path) -> None:
    source.parent.chmod(0o555)
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir(0o555)
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    done = in_process(source, HOME=home, TMPDIR=temporary)
    assert (done.stdout, done.stderr) == ("7 0\n", "")
    assert len(files(home / ".cache" / "doppler")) == 2
    done = in_process(source, HOME=nowhere, TMPDIR=temporary)
    said = f"compiled kernels are kept in {temporary}/doppler-{os.getuid()} only ({source.parent}"
    assert done.stderr.startswith(said)
    assert (done.stdout, done.stderr.count("\n")) == ("7 0\n", 1)
    done = in_process(source, HOME=nowhere, TMPDIR=temporary)
    assert (done.stdout, done.stderr) == ("7 1\n", "")
    # A folder that others may write to could hold anything.
    (temporary / f"doppler-{os.getuid()}").chmod(0o777)
    done = in_process(source, HOME=nowhere, TMPDIR=temporary)
    assert done.stderr.startswith("compiled kernels are not kept, every start takes long (")
    assert done.stderr.endswith("set NUMBA_CACHE_DIR to a folder that can be written\n")
    assert (done.stdout, done.stderr.count("\n")) == ("7 0\n", 1)


def test_a_full_disk_is_one_warning(source, tmp_path) -> None:
    full = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); {RUN}"
    done = in_process(source, full, NUMBA_CACHE_DIR=tmp_path / "mine", HOME=tmp_path)
    assert done.stderr.startswith("compiled kernels are not kept")
    assert (done.stdout, done.stderr.count("\n")) == ("7 0\n", 1)
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".nbc", ".tmp")]
