"""The loop: schedule, metrics, and checkpoints that are continued, replaced or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from training_cases import Rows, mixed_cases, small_case, small_policy, weights_of

from doppler.errors import CheckpointError
from doppler.policy.checkpoint import save_policy
from doppler.policy.network import DualPolicy
from doppler.tracking import CsvTracker
from doppler.training.case import TrainingCase
from doppler.training.incumbent import Incumbents
from doppler.training.loop import Loop, Progress, Schedule
from doppler.training.reinforce import ReinforceSettings, reinforce

UPDATES = 12

Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], object]


class Killed(BaseException):
    """Ends a run between two updates, as a signal would."""


def killer(after: int) -> Progress:
    def progress(done: int, total: int, metrics: Mapping[str, float]) -> None:
        if done == after:
            raise Killed

    return progress


def train(
    state: Path | None = None,
    *,
    policy: DualPolicy | None = None,
    cases: list[TrainingCase] | None = None,
    seed: int = 0,
    **options: Any,
) -> tuple[DualPolicy, Incumbents]:
    policy = policy or small_policy()
    settings = ReinforceSettings(updates=UPDATES, log_every=5, episodes=4, validate_every=3)
    incumbents = reinforce(
        policy,
        cases or mixed_cases(),
        settings,
        seed=seed,
        state=state,
        checkpoint_seconds=0.0,
        threads=1,
        **options,
    )
    return policy, incumbents


def rewrite(state: Path, change: Change) -> None:
    """Change the header and the tensors of a checkpoint, and write it again."""
    with safe_open(state, framework="pt") as file:
        header = json.loads(file.metadata()["doppler"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(header, tensors)
    save_file(tensors, state, {"doppler": json.dumps(header)})


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A checkpoint after 7 of the 12 updates."""
    path = tmp_path / "state.safetensors"
    with pytest.raises(Killed):
        train(path, progress=killer(8))
    return path


def test_a_run_that_stops_between_any_two_updates_ends_like_one_left_alone(tmp_path: Path) -> None:
    whole = CsvTracker(tmp_path / "whole.csv")
    policy, incumbents = train(tracker=whole)
    state = tmp_path / "state.safetensors"
    for after in (1, 2, 5, 8, 12):
        with pytest.raises(Killed):
            train(state, tracker=CsvTracker(tmp_path / "parts.csv"), progress=killer(after))
    resumed, found = train(state, tracker=CsvTracker(tmp_path / "parts.csv"))
    assert weights_of(resumed) == weights_of(policy)
    assert (tmp_path / "parts.csv").read_bytes() == whole.path.read_bytes()
    assert found.header() == incumbents.header()
    for name, best in incumbents.best.items():
        assert np.array_equal(best.devices, found.best[name].devices)
        assert np.array_equal(best.priority, found.best[name].priority)
    assert not state.exists()


def test_a_run_resumes_where_it_was(state: Path) -> None:
    calls: list[int] = []
    train(state, progress=lambda done, total, metrics: calls.append(done))
    assert calls == [8, 9, 10, 11, 12]


@pytest.mark.parametrize("change", ["seed", "policy", "cases", "settings", "features"])
def test_the_checkpoint_of_another_run_is_not_continued(
    tmp_path: Path, state: Path, change: str
) -> None:
    calls: list[int] = []

    def run(state: Path | None) -> DualPolicy:
        def progress(done: int, total: int, metrics: Mapping[str, float]) -> None:
            calls.append(done)

        if change == "settings":
            policy = small_policy()
            settings = ReinforceSettings(updates=UPDATES, log_every=5, episodes=5)
            reinforce(policy, mixed_cases(), settings, state=state, progress=progress)
            return policy
        options: dict[str, Any] = {}
        if change == "seed":
            options["seed"] = 1
        elif change == "policy":
            options["policy"] = small_policy(1)
        elif change == "cases":
            options["cases"] = mixed_cases()[:2]
        else:
            policy = small_policy()
            options["policy"] = DualPolicy(policy.sizes, type(policy.features).named("paper"))
            options["policy"].load_state_dict(policy.state_dict())
        return train(state, progress=progress, **options)[0]

    resumed = run(state)
    assert calls == list(range(1, UPDATES + 1))
    assert weights_of(resumed) == weights_of(run(None))
    assert not state.exists()


def test_the_metrics_of_another_run_do_not_stay(tmp_path: Path) -> None:
    csv = tmp_path / "metrics.csv"
    policy = small_policy()
    every = ReinforceSettings(updates=3, log_every=1, episodes=2)
    reinforce(policy, [small_case()], every, tracker=CsvTracker(csv))
    fewer = ReinforceSettings(updates=4, log_every=2, episodes=2)
    reinforce(policy, [small_case()], fewer, tracker=CsvTracker(csv))
    assert [line.split(",")[0] for line in csv.read_text().splitlines()] == ["step", "2", "4"]


def test_one_torch_thread_within_and_as_many_as_before_after() -> None:
    before = torch.get_num_threads()
    inside: list[int] = []
    train(progress=lambda *_: inside.append(torch.get_num_threads()))
    assert set(inside) == {1}
    assert torch.get_num_threads() == before


def test_schedule() -> None:
    rows = Rows()
    loop = Loop(
        small_policy(),
        Schedule(updates=5, learning_rate=1e-2, final_learning_rate=1e-4, log_every=2),
        "",
        tracker=rows,
    )
    before = loop.policy.second.weight.detach().clone()

    def update(number: int) -> dict[str, float]:
        for parameter in loop.policy.parameters():
            parameter.grad = torch.full_like(parameter, 1e3)
        return {"number": number}

    loop.run(update)
    assert [step for step, _ in rows.rows] == [2, 4, 5]
    assert rows.column("number") == [0.5, 2.5, 4.0]
    rates = [10 ** -(2 + 0.5 * number) for number in range(5)]
    wanted = [(rates[0] + rates[1]) / 2, (rates[2] + rates[3]) / 2, rates[4]]
    assert rows.column("learning_rate") == pytest.approx(wanted)
    size = sum(parameter.numel() for parameter in loop.policy.parameters())
    assert rows.column("gradient_norm") == pytest.approx([1e3 * size**0.5] * 3, rel=1e-4)
    # Adam moves each weight by the learning rate where the gradient does not change.
    moved = (before - loop.policy.second.weight).detach().numpy()
    assert moved == pytest.approx(sum(rates), rel=1e-3)


def test_the_weights_with_the_lowest_score_are_kept() -> None:
    scores = iter([5.0, 3.0, 4.0, 2.0, 2.0, 6.0])
    rows, seen = Rows(), []
    loop = Loop(small_policy(), Schedule(updates=9, log_every=1), "", tracker=rows)

    def update(number: int) -> dict[str, float]:
        for parameter in loop.policy.parameters():
            parameter.grad = torch.ones_like(parameter)
        return {}

    def validate() -> float:
        seen.append(weights_of(loop.policy))
        return next(scores)

    loop.run(update, validate, 2)
    # At the start, after updates 2, 4, 6 and 8, and after the last; of equals the first.
    assert len(seen) == 6
    assert weights_of(loop.policy) == seen[3]
    assert rows.column("best_score") == [5, 3, 3, 3, 3, 2, 2, 2, 2]


def test_a_checkpoint_waits_for_its_time(tmp_path: Path) -> None:
    state = tmp_path / "state.safetensors"
    settings = ReinforceSettings(updates=3, episodes=2)
    with pytest.raises(Killed):
        reinforce(small_policy(), [small_case()], settings, state=state, progress=killer(2))
    assert not state.exists()


def not_safetensors(path: Path) -> None:
    path.write_bytes(b"checkpoint")


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def a_policy(path: Path) -> None:
    save_policy(small_policy(), path)


def a_list(path: Path) -> None:
    save_file({"a": torch.zeros(1)}, path, {"doppler": "[]"})


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("spoil", [not_safetensors, cut_short, a_policy, a_list, a_directory])
def test_what_is_no_checkpoint_is_refused(state: Path, spoil: Callable[[Path], None]) -> None:
    spoil(state)
    before = state.read_bytes() if state.is_file() else b""
    policy = small_policy()
    with pytest.raises(CheckpointError, match=r"not a training checkpoint.*; remove it") as error:
        train(state, policy=policy)
    assert str(error.value).startswith(str(state))
    assert "\n" not in str(error.value)
    assert weights_of(policy) == weights_of(small_policy())
    assert (state.read_bytes() if state.is_file() else b"") == before


def drop(name: str) -> Change:
    return lambda header, tensors: tensors.__delitem__(name)


def put(name: str, value: torch.Tensor) -> Change:
    return lambda header, tensors: tensors.update({name: value})


def set_header(name: str, value: object) -> Change:
    return lambda header, tensors: header.update({name: value})


@pytest.mark.parametrize(
    "change",
    [
        drop("policy/second.weight"),
        drop("adam/0/exp_avg"),
        drop("incumbent/graph1@equal3/devices"),
        put("policy/second.weight", torch.zeros(3)),
        put("adam/0/exp_avg", torch.zeros(3)),
        put("adam/999/exp_avg", torch.zeros(3)),
        put("adam/first/exp_avg", torch.zeros(3)),
        drop("best/second.weight"),
        put("best/second.weight", torch.zeros(3)),
        lambda header, tensors: header.pop("done"),
        set_header("done", "soon"),
        set_header("done", UPDATES + 1),
        set_header("incumbents", []),
        set_header("sums", 3),
    ],
)
def test_a_changed_checkpoint_is_refused(state: Path, change: Change) -> None:
    rewrite(state, change)
    policy = small_policy()
    with pytest.raises(CheckpointError, match="missing or changed; remove it to start anew"):
        train(state, policy=policy)
    assert weights_of(policy) == weights_of(small_policy())
