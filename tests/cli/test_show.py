"""``doppler show``: graphs, placements and traces, told apart by content."""

from __future__ import annotations

import json

import pytest


def test_a_graph_is_summed_up(cli, layer) -> None:
    done = cli("show", layer)
    assert done.code == 0
    assert "layer" in done.out
    values = cli("show", layer, "--json").json()
    assert (values["kind"], values["ops"], values["edges"]) == ("graph", 4, 4)
    assert values["levels"] == 3


def test_a_graph_becomes_one_page(cli, layer, tmp_path) -> None:
    page = tmp_path / "layer.html"
    done = cli("show", layer, "-o", page, "--json").json()
    assert done["output"] == str(page)
    assert page.read_text().lstrip().lower().startswith("<!doctype html")


def test_a_placement_alone_says_what_it_knows(cli, placement) -> None:
    values = cli("show", placement, "--json").json()
    assert values["kind"] == "placement"
    assert sum(values["by_device"].values()) == 4
    assert values["info"]["method"] == "heft"
    assert "heft" in cli("show", placement).out


def test_a_placement_with_its_graph_becomes_a_page(cli, layer, placement, tmp_path) -> None:
    page = tmp_path / "placement.html"
    cli("show", placement, "--graph", layer, "-o", page, "--json").json()
    assert "device 0" in page.read_text()
    cli("show", placement, "--graph", layer, "-c", "uniform:2", "-o", page, "--json").json()
    assert "gpu0" in page.read_text()


def test_a_timeline_is_simulated(cli, layer, placement, tmp_path) -> None:
    page = tmp_path / "run.html"
    arguments = ("show", placement, "--graph", layer, "-c", "uniform:2", "--timeline")
    values = cli(*arguments, "-o", page, "--json").json()
    assert values["makespan_s"] == pytest.approx(15.0)
    assert "gpu1" in page.read_text()
    assert "makespan" in cli(*arguments).out


def test_a_workload_can_be_shown(cli) -> None:
    values = cli("show", "workload:ffnn?tiles=2", "--json").json()
    assert values["graph"] == "ffnn"
    assert sum(values["kinds"].values()) == values["ops"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "page.html"], "give its graph too, with --graph"),
        (["--timeline"], "give its graph too, with --graph"),
        (["--graph", "missing.json"], "missing.json: no such file"),
        (["--graph", "workload:ffnn"], "places 4 ops"),
        (["--graph", "{layer}", "--timeline"], "give one with --cluster"),
    ],
)
def test_a_placement_needs_what_it_is_shown_with(
    cli, layer, placement, tmp_path, monkeypatch, arguments, message
) -> None:
    monkeypatch.chdir(tmp_path)
    filled = [part.format(layer=layer) for part in arguments]
    assert message in cli("show", placement, *filled).refusal()
    assert not list(tmp_path.glob("*.html"))


def test_a_graph_takes_no_options_of_a_placement(cli, layer) -> None:
    assert "is a graph" in cli("show", layer, "--timeline").refusal()


def test_damaged_files_are_refused(cli, layer, placement, tmp_path) -> None:
    cut = tmp_path / "cut.json"
    cut.write_text(placement.read_text()[:-20])
    assert "cut short" in cli("show", cut).refusal()
    trace = tmp_path / "trace.json"
    cli("simulate", layer, placement, "-c", "uniform:2", "--trace", trace, "--json").json()
    document = json.loads(trace.read_text())
    document["traceEvents"] = [{}]
    trace.write_text(json.dumps(document))
    assert "damaged trace" in cli("show", trace).refusal()
    for missing in (tmp_path, tmp_path / "missing.json"):
        assert str(missing) in cli("show", missing).refusal()
