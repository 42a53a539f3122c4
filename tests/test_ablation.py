"""The ablation: its variants, its pairs, its intervals, and its files."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from doppler.heuristics import Solution
from doppler.methods import METHODS, solve
from doppler.params import load_params
from doppler.policy.frozen import Sizes
from doppler.policy.network import DualPolicy, policy_inputs

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def ablation() -> Iterator[ModuleType]:
    """Return benchmarks/ablation.py, imported as `python benchmarks/ablation.py` would."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module("ablation")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
        sys.modules.pop("ablation", None)


@pytest.fixture(scope="module")
def learned() -> DualPolicy:
    torch.manual_seed(3)
    policy = DualPolicy(Sizes(embedding=8, layers=1, hidden=8, code=4)).eval()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return policy


def run(ablation: ModuleType, variant: str, graph: str, seed: int, expected: float):
    return ablation.Run(variant, graph, "c", 0.5, seed, expected, expected, 0.5, "x")


def test_every_variant_is_of_a_method_and_a_policy_that_there_is(ablation: ModuleType) -> None:
    found, missing = ablation.policies("pretrained")
    for variant in ablation.VARIANTS.values():
        assert variant.method in METHODS
        assert variant.policy in {*found, *missing}
        assert set(variant.options.get("starts", ())) <= set(ablation.STARTS)
    assert ablation.VARIANTS["without policy"].options["starts"] == tuple(
        name for name in ablation.STARTS if name != "policy"
    )


def test_one_head_keeps_what_the_other_forgets(
    ablation: ModuleType, learned: DualPolicy, small_problem
) -> None:
    inputs = policy_inputs(small_problem)
    with torch.no_grad():
        whole, fresh = learned(inputs), ablation.untrained(learned)(inputs)
        select = ablation.one_head(learned, select=True)(inputs)
        place = ablation.one_head(learned, select=False)(inputs)
    torch.testing.assert_close(select.logits, whole.logits)
    torch.testing.assert_close(place.logits, fresh.logits)
    torch.testing.assert_close(place.node, whole.node)
    assert not torch.equal(whole.logits, fresh.logits)
    kept = ablation.one_head(learned, select=True)
    assert torch.equal(kept.direct.weight, ablation.untrained(learned).direct.weight)
    assert torch.equal(
        ablation.one_head(learned, select=False).direct.weight, learned.direct.weight
    )


@pytest.fixture(scope="module")
def small_problem():
    from doppler import Cluster, Problem, workloads

    return Problem(workloads.ffnn(8, 8, 16, 8), Cluster.uniform(2))


def test_effects_are_of_pairs_and_average_seeds_within_a_case(ablation: ModuleType) -> None:
    runs = [
        run(ablation, ablation.WHOLE, "a", 0, 1.0),
        run(ablation, ablation.WHOLE, "a", 1, 2.0),
        run(ablation, ablation.WHOLE, "b", 0, 10.0),
        run(ablation, "without policy", "a", 0, 1.1),
        run(ablation, "without policy", "a", 1, 2.2),
        run(ablation, "without policy", "b", 0, 12.1),
        # Without its pair, it tells nothing.
        run(ablation, "without policy", "b", 1, 99.0),
    ]
    (effect,) = ablation.effects(runs)
    assert (effect.variant, effect.group, effect.cases, effect.runs) == (
        *("without policy", "starts"),
        *(2, 3),
    )
    assert effect.ratio == pytest.approx((1.1 * 1.21) ** 0.5)
    half = 12.706 * math.log(1.1) / 2
    assert effect.high == pytest.approx(effect.ratio * math.exp(half), rel=1e-3)
    assert effect.low == pytest.approx(effect.ratio / math.exp(half), rel=1e-3)
    text = ablation.markdown([effect], {"paper": "no such policy file"})
    assert "| starts | without policy | +15.4% [" in text
    assert "Not measured: policy `paper` (no such policy file)." in text


def test_intervals_hold_the_mean_as_often_as_they_say(ablation: ModuleType) -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        mean, half = ablation.interval(rng.normal(0.3, 1.0, size=6).tolist())
        held += abs(mean - 0.3) <= half
    assert 0.92 <= held / 400 <= 0.98
    assert ablation.interval([2.0]) == (2.0, None)


def test_only_what_no_training_has_seen(ablation: ModuleType) -> None:
    params = load_params(ROOT / "params.yaml")
    everything = ablation.held_out(params, ["*"])
    assert len(everything) >= 20
    assert all(params.trained(case) == "none" for case in everything)
    assert ablation.held_out(params, ablation.CASES)


def test_a_report_is_written_and_gone_on_with(
    ablation: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls = []

    def search(problem, policy, **options) -> Solution:
        calls.append(options)
        return solve(problem, "heft" if "starts" in options else "round_robin")

    monkeypatch.setattr(ablation, "search", search)
    path = tmp_path / "ablation.json"
    arguments = ["--cases", "inception@uniform:8", "--variants", "*policy*", "--budgets", "0"]
    ablation.main([*arguments, "--seeds", "0", "--output", str(path)])
    data = json.loads(path.read_text())
    assert {each["variant"] for each in data["runs"]} == {
        *(ablation.WHOLE, "without policy", "policy alone")
    }
    assert calls[0] == {"budget": 0.0, "seed": 0, "jitter": 0.1}
    assert len(data["effects"]) == 2
    assert (tmp_path / "ablation.md").read_text().strip() in capsys.readouterr().out
    count = len(calls)
    ablation.main([*arguments, "--seeds", "0", "1", "--output", str(path), "--resume"])
    assert len(calls) == 2 * count
    assert json.loads(path.read_text())["runs"][:count] == data["runs"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cases", "x"], "--cases: nothing is named so"),
        (["--variants", "x"], "--variants: nothing is named so"),
        (["--policy", "none.safetensors"], "no such policy file"),
        (["--budgets", "0", "inf"], "budget is inf"),
        (["--seeds", "0", "-1"], "seed is -1"),
        (["--jitter", "nan"], "jitter is nan"),
    ],
)
def test_a_wrong_option_is_one_line(
    ablation: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    with pytest.raises(SystemExit) as caught:
        ablation.main([*arguments, "--output", str(tmp_path / "ablation.json")])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "change",
    [
        {"variant": "none"},
        {"variant": []},
        {"expected_makespan_s": "x"},
        {"makespan_s": -1.0},
        None,
    ],
)
def test_a_damaged_report_is_not_gone_on_with(
    ablation: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, object] | None,
) -> None:
    path = tmp_path / "ablation.json"
    one = {**run(ablation, "spmd", "g", 0, 1.0)._asdict(), **(change or {})}
    head = {"jitter": 0.1, "policy": "pretrained", "cores": ablation.cores()}
    path.write_text("[" * 100_000 if change is None else json.dumps({**head, "runs": [one]}))
    with pytest.raises(SystemExit) as caught:
        ablation.main(["--resume", "--output", str(path)])
    assert caught.value.code == 2
    assert f"{path}: is no report of an ablation" in capsys.readouterr().err
