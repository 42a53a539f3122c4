"""The report: whole, escaped, and saying of every cell what its files say."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from sample_cells import ABLATION, EPISODES, QUALITY, Samples

from doppler.errors import DopplerError
from doppler.experiments.headings import HEADINGS
from doppler.experiments.report import (
    ExperimentReport,
    build_report,
    markdown,
    render_report,
    report_tables,
    write_report,
)
from doppler.experiments.results import load_results
from doppler.experiments.timelines import extremes, save_timelines
from doppler.experiments.verdict import VERDICTS

NASTY = "</td><script>alert(1)</script>|\"'&"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("cells")
    Samples(made).everything()
    return made


@pytest.fixture(scope="module")
def report(folder: Path) -> ExperimentReport:
    return build_report(folder)


class Balanced(HTMLParser):
    """Finds elements that are not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs) -> None:
        if tag not in ("meta", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        pass

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag


def assert_whole(page: str) -> None:
    text = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?://|src\s*=|@import|url\(|<link", text)
    assert page.startswith("<!DOCTYPE html>")
    Balanced(page)


def test_page_shows_every_experiment_and_claim(report: ExperimentReport) -> None:
    page = render_report(report)
    assert_whole(page)
    for name, (title, _) in HEADINGS.items():
        assert f'<h2 id="{name}">{title}</h2>' in page
    assert "Not run" not in page
    assert page.count('<td class="verdict ') == len(report.claims)
    for verdict in VERDICTS:
        count = sum(claim.verdict == verdict for claim in report.claims)
        assert f"<strong>{count} / {len(report.claims)}</strong>" in page
    assert page.index('id="verdicts"') < page.index('id="seconds"')
    assert "52.7%" in page
    assert "78.2%" in page
    assert "13.8%" in page


def test_every_experiment_may_be_missing(tmp_path: Path) -> None:
    empty = build_report(tmp_path)
    page = render_report(empty)
    assert_whole(page)
    assert page.count("Not run: there are no cells of this experiment.") == len(HEADINGS)
    assert empty.to_json()["cells"] == []
    assert "Not run" in markdown(empty)
    with pytest.raises(DopplerError, match="no such folder"):
        build_report(tmp_path / "nowhere")


@pytest.mark.parametrize("name", list(HEADINGS))
def test_each_experiment_stands_alone(folder: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to(folder / name)
    alone = build_report(tmp_path)
    page = render_report(alone)
    assert_whole(page)
    assert page.count("Not run: there are no cells of this experiment.") == len(HEADINGS) - 1
    assert {cell["experiment"] for cell in alone.cells} == {name}


def test_one_seed_of_one_case_is_shown_and_proves_nothing(tmp_path: Path) -> None:
    samples = Samples(tmp_path, seeds=1)
    samples.case("workloads", "chainmm", "p100x4")
    samples.transfer()
    samples.stages()
    report = build_report(tmp_path)
    assert_whole(render_report(report))
    told = [claim for claim in report.claims if claim.estimate and claim.none is not None]
    assert {claim.verdict for claim in told} == {"not reproduced"}
    assert {claim.remark for claim in told} == {"no interval"}


def test_a_damaged_cell_is_named_on_the_page(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "broken.json").write_text("{")
    (tmp_path / "timelines").mkdir()
    (tmp_path / "timelines" / "x.json").write_text("[]")
    report = build_report(tmp_path)
    page = render_report(report)
    assert "2 files were left out" in page
    assert "broken.json: line 1 column 2: not valid JSON" in page
    assert "broken.json" in markdown(report)


def test_json(report: ExperimentReport, tmp_path: Path) -> None:
    paths = write_report(report, tmp_path / "reports" / "experiments")
    assert [path.name for path in paths] == [
        "experiments.json",
        "experiments.html",
        "experiments.md",
    ]
    text = paths[0].read_text()
    assert len(text) < 2**19
    data = json.loads(text)
    assert list(data) == ["claims", "cells"]
    for claim in data["claims"]:
        assert claim["verdict"] in VERDICTS
        assert {"claim", "paper", "ours", "low", "high"} <= claim.keys()
    assert len(data["cells"]) == len(report.cells)
    cell = next(c for c in data["cells"] if c["experiment"] == "seconds")
    assert cell["given"]["seed"] == 0
    assert "workload" not in cell["given"]
    assert set(cell["result"]["makespan_s"]["priority, jitter 0.1"]) <= set(QUALITY)
    assert "curve" not in text
    assert "samples_s" not in text


def test_where_doppler_loses_it_is_said_in_a_table(
    tmp_path: Path, report: ExperimentReport
) -> None:
    assert "is above another method" not in render_report(report)
    samples = Samples(tmp_path, seeds=2, noise=0.0)
    samples.main("workloads", "won", "c", {"doppler": 1, "heft": 1.2})
    samples.main("workloads", "lost", "c", {"doppler": 1, "heft": 0.9})
    lost = build_report(tmp_path)
    section = next(each for each in lost.sections if each.name == "seconds")
    table = next(each for each in section.tables if "is above another" in each.title)
    assert not table.folded
    assert len(table.rows) == 2 * 4
    assert {row[0].text for row in table.rows} == {"lost on c"}
    assert {row[-1].text for row in table.rows} == {"+11.11%"}
    assert all(row[-1].bad for row in table.rows)
    assert "8 of 16 cells" in section.found
    for text in (render_report(lost), markdown(lost)):
        assert "+11.11%" in text


def test_tables_say_what_was_planted(report: ExperimentReport) -> None:
    tables = {table.title: table for each in report.sections for table in each.tables}
    ranking = tables["All methods"]
    assert [row[0].text for row in ranking.rows] == sorted(QUALITY, key=lambda m: QUALITY[m])
    gdp = next(row for row in ranking.rows if row[0].text == "gdp")
    assert gdp[2].value == pytest.approx(QUALITY["gdp"] - 1, abs=0.03)
    episodes = tables["Best placement of all episodes"]
    means = dict(zip(episodes.columns, episodes.rows[-1], strict=True))
    for method, factor in EPISODES.items():
        assert means[method].value == pytest.approx(factor, abs=0.03)
    variants = tables["Our policy: each variant against both policies whole"]
    above = {row[0].text: row[1].value for row in variants.rows}
    assert above["SEL only"] == pytest.approx(ABLATION["ours"]["SEL only"] - 1, abs=0.02)
    exponents = tables["Fitted exponents"]
    placeto = next(row for row in exponents.rows if row[1].text == "placeto")
    assert placeto[2].value == pytest.approx(2, abs=0.05)
    informed = tables["Jitter"]
    assert len(informed.rows) == 4
    for table in tables.values():
        assert {len(row) for row in table.rows} == {len(table.columns)}, table.title


def test_page_and_markdown_escape_every_name(tmp_path: Path) -> None:
    samples = Samples(tmp_path, seeds=2)
    samples.case(NASTY, NASTY, NASTY)
    samples.main("workloads", NASTY, NASTY, {"doppler": 1.0, NASTY: 0.9})
    samples.scaling({NASTY: 1.0})
    page = render_report(build_report(tmp_path))
    assert_whole(page)
    assert page.count("<script") == page.count("</script>") == 1
    text = markdown(build_report(tmp_path))
    for line in text.splitlines():
        if NASTY[:5] in line and line.startswith("| "):
            assert "</script>\\|" in line


def test_markdown_tables_are_complete(report: ExperimentReport) -> None:
    text = markdown(report)
    assert text.startswith("# ")
    columns = None
    for line in text.splitlines():
        if not line.startswith("|"):
            columns = None
            continue
        fields = len(re.findall(r"(?<!\\)\|", line))
        assert columns in (None, fields), line
        columns = fields
    assert len(text) < 100_000


def test_tables_for_trackers(report: ExperimentReport) -> None:
    tables = {table.name: table for table in report_tables(report)}
    assert len(tables["claims"].rows) == len(report.claims)
    assert {"seconds_1", "scaling_1", "exact_1"} <= tables.keys()
    for table in tables.values():
        assert {len(row) for row in table.rows} == {len(table.columns)}
        for row in table.rows:
            assert all(each is None or isinstance(each, str | float | int) for each in row)
    for claim, row in zip(report.claims, tables["claims"].rows, strict=True):
        assert row[1] == claim.claim


def test_timelines_of_the_best_and_the_worst_case(tmp_path: Path) -> None:
    samples = Samples(tmp_path, seeds=2, noise=0.0, budget=0.02)
    for graph, factor in (("far", 2.0), ("near", 1.1), ("between", 1.5)):
        samples.main("workloads", graph, "uniform:2", {"doppler": 1, "heft": factor})
    results = load_results(tmp_path)
    found = extremes(results)
    assert [(each.cell.given.graph, each.rival) for each in found] == [
        ("far", "heft"),
        ("near", "heft"),
    ]
    assert found[0].said == "best case, 50.0% below the best rival"
    assert found[1].said == "worst case, 9.1% below the best rival"
    saved = save_timelines(results, tmp_path / "timelines")
    assert len(saved) == 4
    (tmp_path / "timelines" / "best" / "stale.json").write_text("{")
    assert save_timelines(results, tmp_path / "timelines") == saved
    report = build_report(tmp_path)
    assert not report.faults
    drawn = [(each.graph, each.method) for each in report.timelines]
    assert drawn == [("far", "doppler"), ("far", "heft"), ("near", "doppler"), ("near", "heft")]
    page = render_report(report)
    assert_whole(page)
    assert "heft on near, uniform:2" in page
