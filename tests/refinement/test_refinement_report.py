"""The page of a refinement: whole, escaped, and its figures those of the runs."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from doppler.refinement.history import CANDIDATE, CHAMPION, ProductionRun
from doppler.refinement.paired_test import PairedResult, compare_paired
from doppler.refinement.report import (
    RefinementReport,
    refinement_markdown,
    refinement_report,
    render_refinement,
)
from doppler.registry import POLICY, Registry

NASTY = "</script><script>alert(1)</script>\"'&|"


@pytest.fixture
def decision() -> PairedResult:
    rng = np.random.default_rng(0)
    return compare_paired(
        lambda: 0.010 * np.exp(0.02 * rng.standard_normal(2)),
        lambda: 0.0095 * np.exp(0.02 * rng.standard_normal(2)),
        problems=["ffnn", "llama_layer"],
    )


def regret_curve(count: int) -> list[ProductionRun]:
    rng = np.random.default_rng(1)
    measured = 0.01 * np.exp(0.03 * rng.standard_normal(count))
    regret = np.cumsum(measured / 0.01 - 1) / np.arange(1, count + 1)
    rows = [
        ProductionRun(
            i, CANDIDATE if i % 4 else CHAMPION, i % 4, 0.0098, seconds, seconds / 0.01, mean
        )
        for i, (seconds, mean) in enumerate(zip(measured.tolist(), regret.tolist(), strict=True))
    ]
    rows[count // 2] = rows[1]._replace(measured=math.nan, ratio=math.nan)
    return rows


@pytest.fixture
def report(decision, tmp_path) -> RefinementReport:
    registry = Registry(tmp_path / "registry")
    (tmp_path / "policy").write_bytes(b"weights")
    for i in range(2):
        registry.add({POLICY: tmp_path / "policy"}, metrics={"ratio": 1.0 - i / 10})
    registry.promote("v1", {"by": "hand"})
    registry.promote("v2", decision.to_json())
    return RefinementReport(
        runs=regret_curve(300),
        decision=decision,
        champion="v1",
        challenger="v2",
        max_regret=0.05,
        said="placement: a gain",
        error=0.05,
        error_left=0.0375,
        versions=registry.to_json()["versions"],
        backend="emulated",
    )


def assert_whole(page: str) -> None:
    text = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?://|src\s*=|@import|url\(|<link", text)
    assert page.startswith("<!DOCTYPE html>")

    class Balance(HTMLParser):
        open: list[str]

        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in {"meta", "br", "wbr", "input"}:
                self.open.append(tag)

        def handle_startendtag(self, tag: str, attrs: object) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    parser = Balance()
    parser.open = []
    parser.feed(page)
    assert parser.open == []


def test_the_page_shows_decision_regret_runs_budget_and_registry(report, decision, tmp_path):
    path = refinement_report(report, tmp_path / "reports" / "refinement.html")
    page = path.read_text()
    assert_whole(page)
    for text in (
        decision.text[1:],
        "300 production runs, 1 failed, backend emulated",
        "v2 against v1",
        "the guard allows 5.0%",
        "the last 200, 100 before them are left out",
        "limit of the guard",
        "Placement: a gain.",
        "3.75% of 5.00% is left",
        "ratio 0.9",
    ):
        assert text in page, text
    assert page.count('<svg xmlns="http://www.w3.org/2000/svg" class="curve"') == 3
    assert page.count('<i class="own"') == decision.pairs
    assert page.count(">failed<") >= 1
    assert "champion</td>" in page


def test_the_interval_stands_where_it_is(report, decision) -> None:
    page = render_refinement(report)
    low, high = (float(x) for x in re.search(r"M([\d.]+) 10H([\d.]+)M", page).groups())
    assert decision.high < 1
    assert low < high < 50


def test_nothing_in_a_name_gets_out_of_its_place(decision) -> None:
    result = replace(decision, problems=(NASTY, NASTY[1:]))
    report = RefinementReport(
        [],
        result,
        NASTY,
        NASTY,
        said=NASTY,
        versions=[{"id": NASTY, "metrics": {NASTY: 1.0}, "origin": {"git": NASTY}}],
        backend=NASTY,
        title=NASTY,
    )
    page = render_refinement(report)
    assert_whole(page)
    assert "<script>alert" not in page
    markdown = refinement_markdown(report)
    rows = [line for line in markdown.splitlines() if line.startswith("| </scr")]
    assert rows
    assert all("\\|" in row for row in rows)


NOTHING_KNOWN = ProductionRun(1, CHAMPION, 0, math.nan, math.nan, math.nan, 0.0)


@pytest.mark.parametrize("runs", [[], [NOTHING_KNOWN]])
def test_little_is_enough(runs) -> None:
    report = RefinementReport(runs)
    assert_whole(render_refinement(report))
    assert refinement_markdown(report).startswith("# Doppler: refinement")


def test_a_challenger_that_failed_is_said_so() -> None:
    def fail() -> float:
        raise RuntimeError("op 'mm' was lost")

    result = compare_paired(lambda: 1.0, fail)
    report = RefinementReport([], result, "v1", "v2")
    for text in (render_refinement(report), refinement_markdown(report)):
        assert "kept" in text
        assert "failed in pair 1" in text


def test_a_tie_has_an_interval_of_no_width() -> None:
    page = render_refinement(RefinementReport([], compare_paired(lambda: 1.0, lambda: 1.0)))
    assert "M50.00 10H50.00M" in page


def test_markdown_says_the_same(report, decision) -> None:
    text = refinement_markdown(report)
    assert "\n## v2 against v1\n" in text
    assert decision.text[1:] in text
    assert "Placement: a gain." in text
    assert "Of the month's error 3.75% of 5.00% is left." in text
    assert "| v2 | champion |" in text
    assert re.search(r"\| candidate \| 22\d \| 1 \|", text)
    assert text.count("\n# ") == 0


def test_nothing_is_written_where_it_cannot_be(report, tmp_path: Path) -> None:
    from doppler.errors import DopplerError

    with pytest.raises(DopplerError, match="cannot be written"):
        refinement_report(report, tmp_path)
