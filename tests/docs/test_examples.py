"""What the documents tell the reader to type works, and names things that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from documents import DOCUMENTS, ROOT, Session, blocks

LINK = re.compile(r"\]\(([^)#\s]+)(#[\w-]+)?\)")


@pytest.mark.slow
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_the_examples_of_a_document_run(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    session = Session(capsys)
    for block in blocks(path):
        session.run(block)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_links_lead_to_files(path: Path) -> None:
    targets = [target for target, _ in LINK.findall(path.read_text()) if "://" not in target]
    missing = [target for target in targets if not (path.parent / target).exists()]
    if missing == ["docs/timeline.svg"]:
        pytest.skip("docs/timeline.svg is not made yet: 'make repro', then 'make figures'")
    assert not missing


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_make_targets_and_parameters_exist(path: Path) -> None:
    text = "\n".join(block.text for block in blocks(path) if block.language == "sh")
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    for key in re.findall(r"-S '?([\w.]+)=", text):
        value = params
        for part in key.split("."):
            assert part in value, f"params.yaml has no {key}"
            value = value[part]
