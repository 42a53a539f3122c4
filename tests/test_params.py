"""The parameter file: what it accepts, and the one line it answers to all else."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from doppler.cases import Case, Grid, cases
from doppler.errors import ParamsError
from doppler.parameter_file import SECTIONS, load_sections
from doppler.params import Params, load_params
from doppler.settings import Settings

SHIPPED = Path(__file__).parents[1] / "params.yaml"


@pytest.fixture
def values() -> dict:
    return load_params(SHIPPED).model_dump(mode="json")


@pytest.fixture
def load(tmp_path: Path):
    def load(values: object) -> Params:
        path = tmp_path / "params.yaml"
        path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
        return load_params(path)

    return load


def change(values: dict, key: str, value: object) -> None:
    *sections, last = key.split(".")
    for section in sections:
        values = values[section]
    values[last] = value


def test_the_shipped_file_is_valid_and_survives_a_round_trip(values, load) -> None:
    assert load(values) == load_params(SHIPPED)


def test_it_says_what_is_trained_on() -> None:
    params = load_params(SHIPPED)
    assert len(set(params.evaluated)) == len(params.evaluated)
    assert {name for name in params.evaluate.suites} == {"suite", "large", "operators"}
    seen = cases(params.training)
    assert params.trained(seen[0]) == "case"
    assert params.trained(Case(seen[0].graph, "elsewhere")) == "graph"
    held_out = cases(params.evaluate.zero_shot)
    assert {params.trained(case) for case in held_out} == {"none"}


def test_what_is_left_out_has_the_default_of_its_owner_and_all_else_must_be_given(
    values, load
) -> None:
    assert set(SECTIONS) == set(Params.model_fields)
    for name, section in Params.model_fields.items():
        fields = getattr(section.annotation, "model_fields", {})
        for key, field in fields.items():
            fewer = {**values, name: {k: v for k, v in values[name].items() if k != key}}
            if field.is_required():
                with pytest.raises(ParamsError, match=rf"params.yaml: {name}.{key} is missing$"):
                    load(fewer)
            else:
                assert getattr(getattr(load(fewer), name), key) == field.get_default()
    for name in SECTIONS:
        with pytest.raises(ParamsError, match=rf"params.yaml: {name} is missing$"):
            load({k: v for k, v in values.items() if k != name})


def test_a_stage_reads_its_own_sections_alone(values, tmp_path: Path) -> None:
    class Stage(Settings):
        seed: int

    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump({**values, "refine": {"graph": 5}}))
    assert load_sections(path, Stage) == Stage(seed=values["seed"])
    path.write_text(yaml.safe_dump({**values, "refin": {}}))
    with pytest.raises(ParamsError, match="unknown parameter 'refin': did you mean 'refine'"):
        load_sections(path, Stage)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("sede", 1, r"unknown parameter 'sede': did you mean 'seed'\?"),
        (
            "reinforce.learning_rat",
            1e-3,
            r"reinforce: unknown parameter 'learning_rat': did you mean 'learning_rate'\?",
        ),
        ("graphs.ffnn.tile", {}, r"graphs.ffnn: unknown parameter 'tile': did you mean 'tiles'\?"),
        ("seed", -1, r"seed is -1, must be greater than or equal to 0"),
        ("seed", True, r"seed is True, must be a whole number"),
        ("imitate.updates", 0, r"imitate.updates is 0, must be greater than or equal to 1"),
        ("imitate.updates", "many", r"imitate.updates is 'many', must be a whole number"),
        ("imitate.learning_rate", 0.0, r"imitate.learning_rate is 0.0, must .* greater than 0"),
        ("imitate.learning_rate", float("nan"), r"imitate.learning_rate is nan"),
        ("imitate.learning_rate", float("inf"), r"imitate.learning_rate is inf, must .* finite"),
        ("reinforce.episodes", 1, r"reinforce.episodes is 1, must .* greater than or equal to 2"),
        ("evaluate.jitter", 1.0, r"evaluate.jitter is 1.0, must .* less than 1"),
        ("evaluate.search", -1.0, r"evaluate.search is -1.0, must .* greater than or equal to 0"),
        (
            "evaluate.large.budget",
            -1.0,
            r"evaluate.large.budget is -1.0, must .* greater than or equal",
        ),
        ("policy.sizes.layer", 2, r"policy.sizes: .*'layer': did you mean 'layers'\?"),
        (
            "policy.sizes.layers",
            0,
            r"policy.sizes: layers is 0, must be a whole number from 1 to 4096",
        ),
        ("policy.sizes.layers", "2", r"policy.sizes: layers is '2', must be a whole number"),
        ("policy.features", "all", r"policy.features is 'all', must .*'full' or 'paper'"),
        ("graphs", {}, r"graphs is {}, must .* at least 1 item"),
        ("refine.backend", "cdua", r"refine.backend is 'cdua', must .*'cpu' or 'cuda'"),
        ("refine.graph", "fnn", r"refine.graph: unknown graph 'fnn': did you mean 'ffnn'\?"),
        ("refine.episode", 5, r"refine: unknown parameter 'episode': did you mean 'episodes'\?"),
        ("nightly.graph", "fnn", r"nightly.graph: unknown graph 'fnn': did you mean 'ffnn'\?"),
        ("nightly.seconds", 0.0, r"nightly.seconds is 0.0, must .* greater than 0"),
        ("nightly.error_budget.error", 0.6, r"nightly.error_budget.error is 0.6, .* equal to 0.5"),
        ("refine.promotion.pairs", 5, r"refine: promotion.pairs is 5, must be at least 8: fewer"),
        ("nightly.promotion.policy_pairs", 7, r"nightly: promotion.policy_pairs is 7, must be at"),
        ("nightly.wait", -1.0, r"nightly.wait is -1.0, must .* greater than or equal to 0"),
        ("nightly.cron", "0 2 * *", r"nightly.cron is '0 2 \* \*', must match pattern"),
        (
            "nightly.timezone",
            "Europe/Berln",
            r"nightly.timezone: 'Europe/Berln' is not a time zone: did you mean 'Europe/Berlin'\?",
        ),
        (
            "graphs.ffnn.workload",
            "fnn",
            r"graphs.ffnn.workload: unknown workload 'fnn': did you mean 'ffnn'\?",
        ),
        (
            "traces.teacher",
            "critical_pat",
            r"traces.teacher: unknown teacher 'critical_pat': did you mean 'critical_path'\?",
        ),
        (
            "graphs.bad/name",
            {"workload": "ffnn", "sizes": {}, "tiles": {}},
            r"graphs: a key is",
        ),
        ("training", [], r"training is \[\], must .* at least 1 item"),
        (
            "training",
            [{"graphs": ["fnn"], "clusters": ["p100x4"]}],
            r"training: unknown graph 'fnn': did you mean 'ffnn'\?",
        ),
        (
            "training",
            [{"graphs": ["ffnn"], "clusters": ["p100x5"]}],
            r"training: .*'p100x5'.*did you mean 'p100x4'\?",
        ),
        (
            "evaluate.zero_shot",
            [{"graphs": ["ffnn"], "clusters": ["h100x8"]}],
            r"evaluate.zero_shot: ffnn is trained on; name a graph that is not",
        ),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_file_and_the_key(
    values, load, key, value, message
) -> None:
    change(values, key, value)
    with pytest.raises(ParamsError, match=rf"params.yaml: {message}") as raised:
        load(values)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold the sections seed, graphs"),
        ("- 1", "must hold the sections seed, graphs"),
        ("seed: [1", "not valid YAML in line 2"),
        ("seed: 1\nseed: 2", "not valid YAML in line 2 .key 'seed' is given twice"),
        ("seed: !!python/object/apply:os.getcwd []", "not valid YAML in line 1"),
    ],
)
def test_text_that_is_no_parameter_file(load, text, message) -> None:
    with pytest.raises(ParamsError, match=message):
        load(text)


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match=r"none\.yaml: no such file"):
        load_params(tmp_path / "none.yaml")
    with pytest.raises(ParamsError, match="is a directory"):
        load_params(tmp_path)


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "1.0e-3", "0.001"])
def test_every_way_to_write_a_number_is_a_number(values, load, text) -> None:
    change(values, "imitate.learning_rate", 0.5)
    written = yaml.safe_dump(values).replace("learning_rate: 0.5", f"learning_rate: {text}")
    assert load(written).imitate.learning_rate == 1e-3


def test_cases_are_all_pairs_each_once_in_order() -> None:
    grids = [
        Grid(graphs=["a", "b"], clusters=["x", "y"]),
        Grid(graphs=["b"], clusters=["y", "z"]),
    ]
    assert cases(grids) == [
        Case("a", "x"),
        Case("a", "y"),
        Case("b", "x"),
        Case("b", "y"),
        Case("b", "z"),
    ]
    assert str(Case("a", "uniform:4")) == "a@uniform:4"
    assert Case("a", "uniform:4").file_name == "a@uniform-4"
    assert Case("a", "clusters/lab.yaml").file_name == "a@clusters-lab.yaml"
