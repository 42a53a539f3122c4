"""What docs/make.py writes into the documents is what the documents hold."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from documents import DOCUMENTS, ROOT

from doppler.cli.app import app
from doppler.cluster import presets
from doppler.errors import DopplerError
from doppler.evaluation.report import SUITES, CaseTimeline, Report
from doppler.evaluation.results import CaseResult, MethodResult
from doppler.graph import Graph


def case(graph: str, doppler: float, other: float, **more: Any) -> CaseResult:
    makespans = {"doppler": doppler, "critical_path": 3.0, "heft": other}
    methods = {
        name: MethodResult(seconds, 4.0, seconds * 1.5, 0.1, seconds * 1.5)
        for name, seconds in makespans.items()
    }
    best = min(doppler, 1.0)
    return CaseResult(graph, "p100x4", 10, 4, methods, best, 0.5, jitter=0.1, **more)


def test_a_row_names_the_best_other_method_in_both_columns_and_stresses_a_win(
    make: ModuleType,
) -> None:
    suites = {
        "suite": (case("won", 1.0, 2.0, trained="graph"), case("lost", 2.0, 1.0, trained="none")),
        "large": (case("deep", 1.0, 2.0),),
    }
    table = make.results_table(Report(suites))
    text = " ".join(table.split())
    won = "**1.000 s** | 3.000 s (heft) | **1.500 s** | 1.000 s |"
    assert f"| won † | p100x4 | 2.000 s (heft) | {won}" in table
    assert "| lost | p100x4 | 1.000 s (heft) | 2.000 s | 1.500 s (heft) | 3.000 s |" in table
    assert "in 1 of 2 cases by what is expected, and 1 of 2 with jitter off" in text
    assert "4.0 s (small graphs), 4.0 s (large graphs and several nodes)" in text
    assert "vary by 10%" in text
    assert "On the 1 case of graphs held out of training" in text
    assert "trained on (†)" in text
    assert "no training has seen" not in text


def test_every_rival_is_quoted_for_every_suite(make: ModuleType) -> None:
    suites = {"suite": (case("a", 1.0, 2.0),), "large": (case("b", 2.0, 1.0),)}
    table = make.results_table(Report(suites))
    assert "| method | Small graphs | Large graphs and several nodes |" in table
    assert "| heft | +100.0% (+100.0%) | -50.0% (-50.0%) |" in table
    assert "| critical_path | +200.0% (+200.0%) | +50.0% (+50.0%) |" in table


def test_zero_shot_results_are_told_in_one_sentence(make: ModuleType) -> None:
    methods = {"greedy": MethodResult(1.1, 0.1), "best_of_16": MethodResult(1.05, 0.1)}
    unseen = CaseResult("new", "uniform:3", 10, 3, methods, 1.0, 0.5)
    report = Report({"suite": (case("won", 1.0, 2.0),)}, (unseen,))
    text = " ".join(make.results_table(report).split())
    assert "On 1 case whose graphs no training has seen" in text
    assert "best of 16 5.0%" in text
    assert "greedy 10.0%" in text


def test_a_method_that_fits_nowhere_is_said_so(make: ModuleType) -> None:
    alone = CaseResult("big", "p100x4", 10, 4, {"doppler": MethodResult(1.0, 4.0)}, 1.0, 0.5)
    table = make.results_table(Report({"suite": (alone,)}))
    assert "| big | p100x4 | - | **1.000 s** | - | - | 1.000 s |" in table
    both = case("both", 1.0, 2.0)
    table = make.results_table(Report({"suite": (alone, both)}))
    assert "| heft | +100.0% (+100.0%), does not fit in 1 |" in table


def test_the_picture_is_of_a_case_that_the_policy_won(make: ModuleType) -> None:
    from doppler import Cluster, Placement, Problem, simulate

    graph = Graph.from_arrays([0], [1], [1.0, 1.0], [0.0, 0.0])
    trace = simulate(Problem(graph, Cluster.uniform(1)), Placement([0, 0])).trace
    runs = [
        CaseTimeline(name, cluster, method, trace, graph)
        for name, cluster, method in (
            ("chainmm", "p100x4", "heft"),
            ("ffnn", "p100x4", "doppler"),
            ("llama_layer", "p100x4", "doppler"),
        )
    ]
    assert make.chosen_timeline(runs) is runs[2]
    assert make.chosen_timeline(runs[:2]) is runs[1]
    assert make.chosen_timeline(runs[:1]) is runs[0]
    assert make.chosen_timeline([]) is None
    assert "llama_layer on p100x4, placed by doppler: 2.000 s" in make.picture(runs[2])


def test_markers_are_kept_and_missing_ones_are_named(make: ModuleType) -> None:
    text = "a\n<!-- x:begin by hand -->\nold\n<!-- x:end -->\nb\n"
    expected = "a\n<!-- x:begin by hand -->\nnew\n<!-- x:end -->\nb\n"
    assert make.replaced(text, "x", "new", "README.md") == expected
    with pytest.raises(DopplerError, match=r"README\.md: needs one pair of markers <!-- y:begin"):
        make.replaced(text, "y", "new", "README.md")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_numbers_of_the_code_are_as_they_are(make: ModuleType, path: Path) -> None:
    text = path.read_text()
    assert make.with_quotes(text, path.name) == text, "run 'make figures'"
    # A comment that no number stands before would never be looked at.
    assert text.count("<!-- = ") == len(make.QUOTE.findall(text))


def test_a_number_keeps_its_form(make: ModuleType) -> None:
    names = "doppler.search.anneal.QUIET_SHARE", "doppler.portfolio.MOST_FREE_OPS"
    for old, name, new in (
        ("1%", names[0], "50%"),
        ("1.5%", names[0], "50.0%"),
        ("1e-4", names[0], "5e-1"),
        ("-1%", names[0], "+50%"),
        ("7", names[1], "60,000"),
        ("7", f"{names[1]} / 1000", "60"),
        ("7", 'params["reinforce"]["jitter"]', "0.1"),
        ("7", 'default(doppler.place, "seed")', "0"),
    ):
        changed = make.with_quotes(f"(about {old}<!-- = {name} -->, so)", "a.md")
        assert changed == f"(about {new}<!-- = {name} -->, so)"


@pytest.mark.parametrize(
    "expression", ["doppler.search.nothing", "doppler.place", "1 / 0", "open", "params['x']"]
)
def test_a_number_without_a_source_is_refused(make: ModuleType, expression: str) -> None:
    with pytest.raises(DopplerError, match=r"^a\.md: " + re.escape(expression)):
        make.with_quotes(f"1<!-- = {expression} -->", "a.md")


def test_the_presets_are_named() -> None:
    text = (ROOT / "docs/cli.md").read_text()
    assert not [name for name in presets() if f"`{name}`" not in text]


def test_the_reference_holds_every_command_as_it_is(make: ModuleType) -> None:
    text = (ROOT / "docs/cli.md").read_text()
    tables = make.option_tables()
    names = [command.name for command in app.registered_commands]
    for group in app.registered_groups:
        names += [
            f"{group.name} {command.name}" for command in group.typer_instance.registered_commands
        ]
    assert list(tables) == names
    for name, table in tables.items():
        assert make.replaced(text, name, table, "docs/cli.md") == text, "run 'make figures'"


def test_the_readme_shows_the_results_of_the_reports(make: ModuleType, tmp_path: Path) -> None:
    """The reports that are committed, or those of a run of one's own that were put in already."""
    readme = (ROOT / "README.md").read_text()
    folders = [folder for folder in (ROOT / "reports", _committed(tmp_path)) if _complete(folder)]
    if not folders:
        pytest.skip("there are no reports yet: 'make repro' makes them")
    shown = [
        make.replaced(readme, "results", make.results_table(make.read_report(folder)), "README.md")
        == readme
        for folder in folders
    ]
    assert any(shown), "the results in README.md are of other reports: run 'make figures'"


def _complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("suite.json", "zero_shot.json"))


def _committed(folder: Path) -> Path:
    for name in (*(f"{suite}.json" for suite in SUITES), "zero_shot.json"):
        found = subprocess.run(
            ["git", "show", f"HEAD:reports/{name}"], cwd=ROOT, capture_output=True, check=False
        )
        if found.returncode == 0:
            (folder / name).write_bytes(found.stdout)
    return folder
