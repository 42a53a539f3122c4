"""What teachers show: recorded, saved, loaded, and refused when it is not what it should be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import any_problem
from safetensors.numpy import save_file
from training_cases import small_case, small_policy, taught

from doppler import Placement, Problem, simulate
from doppler.errors import CheckpointError, ParamsError
from doppler.policy.checkpoint import save_policy
from doppler.training.case import TrainingCase
from doppler.training.demonstrations import Demonstrations, load_demonstrations, save_demonstrations
from doppler.training.teaching import TEACHERS, TraceSettings


def equal(a: Demonstrations, b: Demonstrations) -> bool:
    arrays = zip(map(np.asarray, a[:6]), map(np.asarray, b[:6]), strict=True)
    return a.fingerprint == b.fingerprint and all(
        x.dtype == y.dtype and np.array_equal(x, y) for x, y in arrays
    )


@pytest.mark.parametrize("teacher", sorted(TEACHERS))
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1))
def test_traces_are_episodes_that_the_policies_can_follow(
    tmp_path_factory: pytest.TempPathFactory, teacher: str, seed: int
) -> None:
    problem = any_problem(seed)
    traces = taught(problem, teacher, 2, seed)
    path = save_demonstrations(traces, tmp_path_factory.mktemp("traces") / "case.safetensors")
    assert equal(load_demonstrations(path, problem), traces)

    case = TrainingCase("case", problem, threads=1)
    policy = small_policy()
    weights = policy.weights(policy(case.inputs))
    allowed = case.roller.follow(weights, traces.order, traces.choice).record.allowed
    # Whatever the teacher holds for as good, the placement policy could choose there.
    assert not (traces.tied & ~allowed).any()
    for order, choice in zip(traces.order, traces.choice, strict=True):
        devices, priority = np.empty_like(choice), np.empty_like(order)
        devices[order], priority[order] = choice, np.arange(len(order))
        placement = Placement(devices, priority)
        assert np.isfinite(simulate(problem, placement).makespan)


@pytest.mark.parametrize("teacher", sorted(TEACHERS))
def test_traces_are_seeded_and_differ(teacher: str) -> None:
    problem = Problem(small_case(0, 30).problem.graph, small_case().problem.cluster)
    assert equal(taught(problem, teacher, 3, seed=1), taught(problem, teacher, 3, seed=1))
    first, second = taught(problem, teacher, 2, seed=1), taught(problem, teacher, 2, seed=2)
    assert not equal(first, second) or not first.tied.sum(axis=2).max() > 1


def test_a_trace_follows_each_hint_as_far_as_that_pays() -> None:
    case = small_case(0, 40)
    problem = case.problem
    spread, alone = np.arange(40, dtype=np.int32) % 3, np.zeros(40, np.int32)
    traces = taught(problem, "critical_path", 1, 0, [(spread, 50.0), (alone, 70.0)])
    assert traces.hint.tolist() == [-1, 0, 1]
    assert traces.seconds.tolist() == [50.0, 70.0]
    for index, hint in enumerate(traces.made_hints(problem)):
        assert np.array_equal(hint.devices, (spread, alone)[index])
        order, choice = traces.order[index + 1], traces.choice[index + 1]
        devices, priority = np.empty_like(choice), np.empty_like(order)
        devices[order], priority[order] = choice, np.arange(40)
        strict = Placement(hint.devices, priority)
        found = simulate(problem, Placement(devices, priority)).makespan
        assert found <= simulate(problem, strict).makespan * 1.1
        assert (traces.tied[index + 1].sum(axis=1) == 1).all()


def test_unknown_teacher() -> None:
    with pytest.raises(ParamsError, match="teacher: unknown teacher 'critical': did you mean 'cr"):
        TraceSettings(teacher="critical")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save_demonstrations(
        taught(small_case().problem, "critical_path", 2), tmp_path / "t.safetensors"
    )


def not_safetensors(path: Path) -> None:
    path.write_bytes(b"traces")


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def nothing(path: Path) -> None:
    path.unlink()


def a_policy(path: Path) -> None:
    save_policy(small_policy(), path)


def with_header(header: object) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        arrays = taught(small_case().problem, "critical_path", 1)._asdict()
        del arrays["fingerprint"]
        save_file(arrays, path, {"doppler": json.dumps(header)})

    return write


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (not_safetensors, "corrupt, or not a trace file"),
        (cut_short, "corrupt, or not a trace file"),
        (a_directory, "is a directory, not a trace file"),
        (a_policy, "a safetensors file, but not a trace of Doppler"),
        (nothing, "no such trace file; run the traces stage"),
        (with_header([]), "a safetensors file, but not a trace of Doppler"),
        (
            with_header({"format": "doppler-traces", "version": 0}),
            "trace version 0, this Doppler reads 2; run the traces stage",
        ),
        (
            with_header({"format": "doppler-traces", "version": 2, "fingerprint": "another"}),
            "recorded on another problem than .* on 'equal'; record it again",
        ),
    ],
)
def test_what_is_not_the_traces_of_the_problem(
    path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(path)
    with pytest.raises(CheckpointError, match=message) as error:
        load_demonstrations(path, small_case().problem)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_traces_of_another_problem(path: Path) -> None:
    with pytest.raises(CheckpointError, match="recorded on another problem than"):
        load_demonstrations(path, small_case(1).problem)


def twice_the_same_op(traces: Demonstrations) -> Demonstrations:
    traces.order[0, 1] = traces.order[0, 0]
    return traces


def last_op_first(traces: Demonstrations) -> Demonstrations:
    return traces._replace(order=np.ascontiguousarray(traces.order[:, ::-1]))


def far_device(traces: Demonstrations) -> Demonstrations:
    traces.choice[1, 2] = 3
    return traces


def own_choice_not_tied(traces: Demonstrations) -> Demonstrations:
    traces.tied[1, 4] = False
    return traces


def fewer_choices(traces: Demonstrations) -> Demonstrations:
    return traces._replace(choice=traces.choice[:1])


def fewer_devices(traces: Demonstrations) -> Demonstrations:
    return traces._replace(tied=traces.tied[:, :, :2])


def no_trace(traces: Demonstrations) -> Demonstrations:
    empty = {name: getattr(traces, name)[:0] for name in ("order", "choice", "tied", "hint")}
    return traces._replace(**empty)


def hint_that_is_not_there(traces: Demonstrations) -> Demonstrations:
    return traces._replace(hint=np.ones(2, np.int32))


def hint_on_a_far_device(traces: Demonstrations) -> Demonstrations:
    return traces._replace(hints=np.full((1, 12), 3, np.int32), seconds=np.ones(1))


def endless_hint(traces: Demonstrations) -> Demonstrations:
    return traces._replace(hints=np.zeros((1, 12), np.int32), seconds=np.full(1, np.inf))


def long_ints(traces: Demonstrations) -> Demonstrations:
    return traces._replace(order=traces.order.astype(np.int64))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (twice_the_same_op, "does not place every op once"),
        (last_op_first, "places an op before its inputs"),
        (far_device, "uses a device that the cluster lacks"),
        (own_choice_not_tied, "own choices are not among those"),
        (fewer_choices, "arrays of other shapes than 12 ops on 3 devices have"),
        (fewer_devices, "arrays of other shapes than 12 ops on 3 devices have"),
        (no_trace, "arrays of other shapes than 12 ops on 3 devices have"),
        (hint_that_is_not_there, "follows a hint that is not there"),
        (hint_on_a_far_device, "a hint uses a device that the cluster lacks"),
        (endless_hint, "the seconds of a hint are not finite numbers"),
        (long_ints, "arrays of other types than traces have"),
    ],
)
def test_traces_that_no_kernel_may_follow(
    path: Path, spoil: Callable[[Demonstrations], Demonstrations], message: str
) -> None:
    save_demonstrations(spoil(taught(small_case().problem, "critical_path", 2)), path)
    with pytest.raises(CheckpointError, match=message) as error:
        load_demonstrations(path, small_case().problem)
    assert str(error.value).endswith("; record the traces again")
