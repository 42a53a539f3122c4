"""The page about a placed model: whole in itself, and of this model's devices."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from placed_models import Branches, X, place
from torch import nn

from doppler.errors import DopplerError
from doppler.placed import PlacedModel
from doppler.placement import Placement


@pytest.fixture(scope="module")
def placed() -> PlacedModel:
    found = place(Branches(), fusion=0)
    found.placement = Placement([op % 2 for op in range(found.graph.n_ops)])
    found(X)
    return found


def test_the_page_names_devices_memory_and_transfers(placed: PlacedModel, tmp_path: Path) -> None:
    page = placed.report(tmp_path / "new" / "page.html").read_text()
    assert "Branches" in page
    for device in ("cpu0", "cpu1"):
        assert device in page
    assert "times as fast as one device" in page
    sent = placed.execution.trace.transfer_op.tolist()
    assert sent
    for op in sent:
        assert placed.graph.names[op] in page
    assert "measured, the last call" in page


def test_the_page_needs_nothing_else(placed: PlacedModel, tmp_path: Path) -> None:
    page = placed.report(tmp_path / "page.html").read_text()
    assert not re.search(r"""(src|href)=["']?(https?:|//|file:)""", page)
    assert not re.search(r"@import|url\((?!['\"]?(data:|#))", page)


def test_names_of_a_model_are_text_in_the_page(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("<b>&", nn.Linear(8, 8))
    page = place(model, name="<script>alert(1)</script>").report(tmp_path / "page.html").read_text()
    assert "<script>alert" not in page
    assert "<b>&" not in page


def test_a_page_can_be_made_before_a_call_and_for_a_cluster_alone(tmp_path: Path) -> None:
    model = Branches().to("meta")
    placed = place(model, (X.to("meta"),), None, cluster="a100x4")
    page = placed.report(tmp_path / "page.html").read_text()
    assert "gpu0" in page
    assert "measured, the last call" not in page


@pytest.mark.parametrize("path", [5, None, ""])
def test_a_page_that_cannot_be_written_says_so(placed: PlacedModel, path: object) -> None:
    with pytest.raises(DopplerError):
        placed.report(path)  # type: ignore[arg-type]
