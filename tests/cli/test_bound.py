"""``doppler bound``: what no placement can beat."""

from __future__ import annotations

import sys

import pytest

from doppler import Placement


def test_json_holds_both_bounds(cli, layer) -> None:
    done = cli("bound", layer, "-c", "uniform:2", "--json").json()
    assert done["simple_bound_s"] == pytest.approx(14.0)
    # Device 0 waits for a transfer of one second in, and for another one out.
    assert done["bound_s"] == pytest.approx(15.0, rel=1e-2)
    assert "makespan_s" not in done


def test_the_optimum_is_proven_and_written(cli, layer, tmp_path) -> None:
    pytest.importorskip("ortools")
    path = tmp_path / "best.json"
    done = cli("bound", layer, "-c", "uniform:2", "--exact", "-o", path, "--json").json()
    assert done["makespan_s"] == done["bound_s"] == 15.0
    assert done["proven"] is True
    assert Placement.load(path).devices.size == 4
    again = cli("simulate", layer, path, "-c", "uniform:2", "--json").json()
    assert again["makespan_s"] == 15.0


def test_people_see_whether_it_is_proven(cli, layer) -> None:
    pytest.importorskip("ortools")
    assert "lower bound" in cli("bound", layer, "-c", "uniform:2").out
    assert "the optimum, proven" in cli("bound", layer, "-c", "uniform:2", "--exact").out


def test_what_cannot_be_is_refused(cli, layer, tmp_path, monkeypatch) -> None:
    assert "only with --exact" in cli("bound", layer, "-c", "uniform:2", "-o", "x").refusal()
    done = cli("bound", "workload:ffnn?tiles=8", "-c", "p100x4", "--exact")
    assert "exact optima are for up to 200" in done.refusal()
    monkeypatch.delitem(sys.modules, "doppler.exact.model", raising=False)
    monkeypatch.setitem(sys.modules, "ortools", None)
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    done = cli("bound", layer, "-c", "uniform:2", "--exact")
    assert "pip install 'doppler[exact]'" in done.refusal()
