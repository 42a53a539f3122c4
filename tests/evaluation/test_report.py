"""The report: whole, escaped, and its figures those of the results."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any

import numpy as np
import pytest

from doppler import Cluster, Graph, Placement, Problem, simulate
from doppler.errors import DopplerError
from doppler.evaluation.curves import curves_svg, group_curves, load_curves
from doppler.evaluation.report import (
    CaseTimeline,
    Report,
    load_report,
    render_report,
    save_timeline,
    summarize,
    write_report,
)
from doppler.evaluation.results import CaseResult, MethodResult, save_results

NASTY = "</script><script>alert(1)</script>\"'&"


def case(
    graph: str, cluster: str = "p100x4", trained: str | None = None, **makespans: float
) -> CaseResult:
    methods = {
        name: MethodResult(value, 0.5, value * 1.02, value * 0.01, value * 1.1)
        for name, value in makespans.items()
    }
    return CaseResult(graph, cluster, 192, 4, methods, 1.0, 0.8, jitter=0.1, trained=trained)


@pytest.fixture
def timeline() -> CaseTimeline:
    graph = Graph.from_arrays([0, 0], [1, 2], [1.0, 1.0, 1.0], [0.1, 0.1, 0.1])
    trace = simulate(Problem(graph, Cluster.uniform(2)), Placement([0, 0, 1])).trace
    return CaseTimeline("ffnn", "p100x4", "doppler", trace, graph)


@pytest.fixture
def report(timeline) -> Report:
    suite = (
        case("ffnn", trained="case", doppler=1.05, critical_path=2.0, heft=1.5),
        case("chainmm", "uniform:4", trained="none", doppler=1.2, critical_path=1.8, heft=1.1),
    )
    large = (case("deep", "v100_4x4", trained="none", doppler=1.1, heft=2.2),)
    zero_shot = (case("held_out", greedy=1.08, best_of_16=1.01),)
    return Report({"suite": suite, "large": large}, zero_shot, timelines=(timeline,))


def assert_self_contained(page: str) -> None:
    text = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?://|src\s*=|@import|url\(|<link", text)
    assert page.startswith("<!DOCTYPE html>")
    assert page.rstrip().endswith("</html>")


def test_page_shows_every_case_and_method(report):
    page = render_report(report)
    assert_self_contained(page)
    for text in ("ffnn on p100x4", "chainmm on uniform:4", "held_out", "heft", "1.050 s"):
        assert text in page
    assert page.count("<details") == 3
    assert "Large graphs and several nodes" in page
    assert page.count("Expected at 10% jitter") == 2
    assert page.count("Without jitter</h3>") == 2
    assert page.count("The policy was trained on this case.") == 1
    assert page.count("Timeline of doppler") == 1
    assert 'href="#case-chainmm-uniform_4"' in page
    assert 'id="case-chainmm-uniform_4"' in page
    assert "1.071 s ± 1.0%" in page


def test_summary(report):
    everything = summarize(report)
    summary = everything["suites"]["suite"]
    assert summary["cases"] == 2
    assert summary["wins"] == summary["expected_wins"] == summary["expected_fifo_wins"] == 1
    assert summary["gap_closed"] == pytest.approx((0.95 + 0.75) / 2)
    assert summary["gap_closed_least"] == pytest.approx(0.75)
    assert summary["ratio_to_best"] == pytest.approx((1.05 * 1.2) ** 0.5)
    heft = summary["rivals"]["heft"]
    assert heft["cases"] == 2
    assert heft["makespan_s"] == pytest.approx((1.5 * 1.1 / (1.05 * 1.2)) ** 0.5)
    assert heft["expected_makespan_s"] == pytest.approx(heft["makespan_s"])
    assert everything["suites"]["large"]["rivals"]["heft"]["makespan_s"] == pytest.approx(2)
    assert everything["trained"]["cases"] == 1
    assert everything["held_out"]["cases"] == 2
    assert everything["held_out"]["rivals"]["heft"]["cases"] == 2
    assert everything["zero_shot"] == {
        "best_of_16": pytest.approx(1.01),
        "greedy": pytest.approx(1.08),
    }
    page = render_report(report)
    assert page.count("<strong>1 / 2</strong>") == 2, "the suite, and what was held out"
    assert page.count("<strong>1 / 1</strong>") == 2
    assert "<strong>+8.0%</strong>" in page


def test_page_without_results():
    page = render_report(Report({"suite": ()}))
    assert_self_contained(page)
    assert "<table" not in page
    assert summarize(Report({"suite": ()}))["suites"]["suite"]["gap_closed"] is None


def test_page_of_methods_that_differ_from_case_to_case():
    report = Report({"suite": (case("a", heft=1.0), case("b", doppler=90.0, random=1.5))})
    page = render_report(report)
    assert_self_contained(page)
    assert "90.00 s →" in page
    json.dumps(summarize(report), allow_nan=False)


def test_page_escapes_every_string(timeline, tmp_path):
    graph = Graph.build(
        1, [], [], names=[NASTY], kinds=[NASTY], meta_ops=[NASTY], compute_s=[1], transfer_s=[0]
    )
    trace = simulate(Problem(graph, Cluster.uniform(1)), Placement([0])).trace
    path = tmp_path / "m.csv"
    path.write_text(f'step,"{NASTY.replace(chr(34), chr(34) * 2)}",a/<b>,a/<i>\n1,2,3,4\n')
    methods = {NASTY: MethodResult(1.0, 0.1, extra={"origin": NASTY})}
    nasty = CaseResult(NASTY, NASTY, 1, 1, methods, 1.0, 0.5)
    page = render_report(
        Report(
            {NASTY: (nasty,)},
            (nasty,),
            {NASTY: load_curves(path)},
            (CaseTimeline(NASTY, NASTY, NASTY, trace, graph),),
            NASTY,
        )
    )
    assert page.count("<script") == page.count("</script>") == 1
    assert "alert(1)</script>" not in page
    assert "<b>" not in page.replace('<b style="', "")
    assert "<i>" not in page


def test_files_say_the_same(report, tmp_path):
    names = [path.name for path in write_report(report, tmp_path)]
    assert names == ["index.html", "report.json", "report.csv"]
    data = json.loads((tmp_path / "report.json").read_text())
    for name, suite in report.suites.items():
        assert data[name] == [one.to_json() for one in suite]
    assert data["zero_shot"] == [one.to_json() for one in report.zero_shot]
    assert data["summary"] == summarize(report)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "report.csv").read_text())))
    assert len(rows) == 10
    assert {r["set"] for r in rows} == {"suite", "large", "zero_shot"}
    row = next(r for r in rows if r["graph"] == "chainmm" and r["method"] == "heft")
    assert row["set"] == "suite"
    assert float(row["makespan_s"]) == 1.1
    assert float(row["ratio_to_best"]) == pytest.approx(1.1)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_report_comes_from_plain_files(report, timeline, tmp_path):
    files = {name: tmp_path / f"{name}.json" for name in report.suites}
    for name, suite in report.suites.items():
        save_results(suite, files[name])
    save_results(report.zero_shot, tmp_path / "zero_shot.json")
    (tmp_path / "m.csv").write_text("step,loss\n0,1.0\n1,0.5\n")
    path = save_timeline(timeline, tmp_path / "timelines")
    assert path.name == "ffnn-p100x4.json"
    again = load_report(
        files,
        tmp_path / "zero_shot.json",
        {"imitation": tmp_path / "m.csv"},
        tmp_path / "timelines",
    )
    assert again.suites == report.suites
    assert again.zero_shot == report.zero_shot
    assert [curve.name for curve in again.curves["imitation"]] == ["loss"]
    (kept,) = again.timelines
    assert (kept.graph, kept.cluster, kept.method) == ("ffnn", "p100x4", "doppler")
    np.testing.assert_allclose(kept.trace.end, timeline.trace.end)
    page = render_report(again)
    assert_self_contained(page)
    assert "Learning curves" in page


def test_refuses_a_timeline_of_no_case(timeline, tmp_path):
    path = save_timeline(timeline, tmp_path / "timelines")
    document = json.loads(path.read_text())
    del document["otherData"]["case"]
    path.write_text(json.dumps(document))
    save_results([], tmp_path / "suite.json")
    with pytest.raises(DopplerError, match="does not say which case"):
        load_report({"suite": tmp_path / "suite.json"}, timelines=tmp_path / "timelines")
    path.write_text("{")
    with pytest.raises(DopplerError, match="not valid JSON"):
        load_report({"suite": tmp_path / "suite.json"}, timelines=tmp_path / "timelines")


def test_curves_skip_gaps_and_words(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("step,loss,makespan/a,makespan/b,word\n0,1,,2,x\n1,nan,3,4,y\n2,0.5,5,inf,z\n")
    curves = load_curves(path)
    assert [curve.name for curve in curves] == ["loss", "makespan/a", "makespan/b"]
    assert curves[0].x.tolist() == [0, 2]
    assert curves[0].y.tolist() == [1, 0.5]
    assert {name: len(members) for name, members in group_curves(curves).items()} == {
        "loss": 1,
        "makespan": 2,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is empty"), ("loss\nhigh\n", "column 'loss' must count the steps")],
)
def test_refuses_another_csv(tmp_path, text, message):
    path = tmp_path / "m.csv"
    path.write_text(text)
    with pytest.raises(DopplerError, match=message):
        load_curves(path)


@pytest.mark.parametrize("values", [[3.0], [0.0, 0.0], [5.0] * 50, [-1.0, 1e9], [1e-9, 2e-9]])
def test_any_curve_can_be_drawn(tmp_path, values):
    path = tmp_path / "m.csv"
    path.write_text("step,x\n" + "".join(f"{i},{v}\n" for i, v in enumerate(values)))
    text = curves_svg("x", load_curves(path))
    points = [float(v) for v in re.findall(r"-?\d+\.?\d*(?=[, \"])", text.split("points=")[-1])]
    assert all(np.isfinite(points))
    assert "nan" not in text


def test_long_curves_are_thinned(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("step,x\n" + "".join(f"{i},{i % 7}\n" for i in range(100_000)))
    assert len(curves_svg("x", load_curves(path))) < 20_000


def test_report_of_a_large_suite_stays_small():
    makespans: dict[str, Any] = {f"method{i}": 1.0 + i / 10 for i in range(12)}
    page = render_report(
        Report({"suite": tuple(case(f"graph{i}", **makespans) for i in range(60))})
    )
    assert len(page) < 2_000_000
