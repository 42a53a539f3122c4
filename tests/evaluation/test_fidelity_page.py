"""The page of a fidelity measurement shows every point, and names as they are, not as HTML."""

from __future__ import annotations

import json
import re
from pathlib import Path

from fidelity_points import LINE, point

from doppler.evaluation.fidelity import Fidelity
from doppler.evaluation.fidelity_page import render_fidelity, save_fidelity, scatter_svg


def test_the_page_shows_every_point_and_escapes_names(tmp_path: Path) -> None:
    nasty = point("<script>alert(1)</script>", 1.0, 1.5)
    result = Fidelity("<b>layer", 20, 2, (*LINE, nasty))
    page = render_fidelity([result], {"machine": "a & b"})
    assert page.count("<circle") == 6
    assert "<script>alert" not in page
    assert "<b>layer" not in page
    assert "a &amp; b" in page
    assert not re.search(r"(src|href)=", page)
    files = save_fidelity([result], tmp_path / "f.json", tmp_path / "f.html")
    assert [path.name for path in files] == ["f.html", "f.json"]
    assert list(json.loads((tmp_path / "f.json").read_text())) == ["<b>layer"]


def test_a_drawing_stays_inside_its_frame() -> None:
    drawn = scatter_svg(Fidelity("layer", 20, 2, LINE))
    for across, down in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', drawn):
        assert 0 < float(across) < 460
        assert 0 < float(down) < 380
