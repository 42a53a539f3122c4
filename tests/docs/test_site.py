"""The site builds without a warning, and its reference has every name of the public interface."""

from __future__ import annotations

import subprocess
import sys
import zlib
from importlib import import_module
from pathlib import Path

import pytest
from documents import ROOT

import doppler

pytest.importorskip("mkdocs")


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = ["mkdocs", "build", "--strict", "-f", str(config), "-d", str(site)]
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT / "mkdocs.yml", folder)
    assert built.returncode == 0, built.stderr
    return folder


def names_of(site: Path) -> set[str]:
    """What the site's inventory lists, by the names under which it can be imported."""
    *_, packed = (site / "objects.inv").read_bytes().split(b"\n", 4)
    return {line.split()[0] for line in zlib.decompress(packed).decode().splitlines()}


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    known = names_of(site)
    missing = []
    for module in (doppler, *map(import_module, sorted({*doppler._MODULES.values()}))):
        exported = getattr(module, "__all__", ())
        if module is doppler.errors:
            exported = [
                name
                for name, value in vars(module).items()
                if isinstance(value, type) and value.__module__ == module.__name__
            ]
        for name in exported:
            value = getattr(module, name)
            home = getattr(value, "__module__", module.__name__)
            paths = {f"{module.__name__}.{name}", f"{home}.{name}", getattr(value, "__name__", "")}
            if not paths & known:
                missing.append(f"{module.__name__}.{name}")
    assert not missing, f"put into docs/reference: {', '.join(missing)}"


def test_the_reference_has_parameters_and_links(site: Path) -> None:
    page = (site / "reference/placement.html").read_text()
    assert "<td>\n                <code>budget</code>" in page
    assert 'href="errors.html#doppler.errors.MemoryLimitError"' in page


@pytest.mark.parametrize("link", ["missing.md", "index.md#missing", "[doppler.missing][]"])
def test_a_broken_link_stops_the_build(link: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    text = link if link.startswith("[") else f"[broken]({link})"
    (tmp_path / "docs/index.md").write_text(f"# Page\n\n{text}\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\nnav: [index.md]\nplugins: [autorefs]\n")
    built = build(config, tmp_path / "site")
    assert built.returncode != 0
    assert "missing" in built.stderr
