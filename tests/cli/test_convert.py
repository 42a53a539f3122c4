"""``doppler convert``: formats, their defaults and their limits."""

from __future__ import annotations

import numpy as np
import pytest

from doppler import load_graph


def test_there_and_back(cli, layer, tmp_path) -> None:
    as_json, back = tmp_path / "layer.json", tmp_path / "layer.txt"
    first = cli("convert", layer, as_json, "--json").json()
    assert (first["format"], first["ops"], first["edges"]) == ("doppler", 4, 4)
    assert cli("convert", as_json, back, "--json").json()["format"] == "text"
    np.testing.assert_array_equal(load_graph(back).compute_s, load_graph(layer).compute_s)


def test_the_option_decides_over_the_ending(cli, layer, tmp_path) -> None:
    out = tmp_path / "layer.txt"
    assert cli("convert", layer, out, "--to", "doppler", "--json").json()["format"] == "doppler"
    assert out.read_text().startswith("{")


def test_a_workload_becomes_a_file(cli, tmp_path) -> None:
    out = tmp_path / "ffnn.json"
    done = cli("convert", "workload:ffnn?batch=64&tiles=2", out)
    assert done.code == 0
    assert "ffnn" in done.out
    assert load_graph(out).specs is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "jsn"], "unknown graph format 'jsn'"),
        (["--to", "text"], ""),
    ],
)
def test_what_a_format_cannot_hold_is_refused(cli, tmp_path, arguments, message) -> None:
    out = tmp_path / "out"
    assert message in cli("convert", "workload:ffnn", out, *arguments).refusal()
    assert not out.exists()


def test_an_output_that_cannot_be_written_is_refused(cli, layer, tmp_path) -> None:
    assert "cannot be written" in cli("convert", layer, tmp_path).refusal()
