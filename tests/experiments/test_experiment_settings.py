"""The parameter file of the experiments."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from doppler.errors import DopplerError
from doppler.experiments.names import EXPERIMENTS, experiment
from doppler.experiments.settings import SCALES, load_experiments

ROOT = Path(__file__).parents[2]


def write(tmp_path: Path, values: object) -> Path:
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_cells_at_every_scale(tmp_path: Path, scale: str, name: str) -> None:
    values = yaml.safe_load((ROOT / "experiments/params.yaml").read_text())
    path = write(tmp_path, {**values, "scale": scale})
    params = load_experiments(path, ROOT / "params.yaml")
    cells = params.cells(name)
    assert cells
    assert {cell.experiment for cell in cells} == {name} == {experiment(name).NAME}
    assert len({cell.name for cell in cells}) == len(cells)
    assert all(cell.seconds > 0 for cell in cells)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "must hold scale, miniature, reduced, full"),
        ({"scale": "huge"}, "unknown scale 'huge'"),
        ({"reducd": {}}, "unknown parameter 'reducd': did you mean 'reduced'"),
        (
            {"reduced": {"second": {}}},
            "reduced: unknown experiment 'second': did you mean 'seconds'",
        ),
        ({"reduced": []}, ""),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, values: object, message: str) -> None:
    path = write(tmp_path, values)
    if not message:
        assert load_experiments(path, ROOT / "params.yaml").sections == {}
        return
    with pytest.raises(DopplerError) as caught:
        load_experiments(path, ROOT / "params.yaml")
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"suites": {}, "seed": 1}, "reduced.seconds: unknown parameter 'seed': did you mean"),
        ({"suites": {"a": {"budget": -1.0, "cases": []}}}, "reduced.seconds: suites.a.cases"),
        (
            {"suites": {"a": {"budget": 1.0, "cases": [{"graphs": ["lama"], "clusters": ["x"]}]}}},
            "unknown graph 'lama'",
        ),
        ({"suites": {}, "methods": ["best"]}, "reduced.seconds: methods[0]: unknown method 'best'"),
    ],
)
def test_a_wrong_section_names_the_way_to_the_fault(
    tmp_path: Path, section: dict[str, object], message: str
) -> None:
    params = load_experiments(
        write(tmp_path, {"reduced": {"seconds": section}}), ROOT / "params.yaml"
    )
    with pytest.raises(DopplerError) as caught:
        params.cells("seconds")
    assert message in str(caught.value)
