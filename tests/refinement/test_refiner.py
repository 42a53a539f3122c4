from __future__ import annotations

import dataclasses
import gc
import math
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from production import SMALL, believed, produce, really, refiner, renamed, simulated

from doppler import Placement, Problem, place, simulate
from doppler.errors import (
    CheckpointError,
    DopplerError,
    ParamsError,
    PlacementError,
    UnknownNameError,
)
from doppler.policy.checkpoint import load_policy, save_policy
from doppler.refinement.guard import RESERVE
from doppler.refinement.journal import Journal
from doppler.refinement.refiner import Refiner
from doppler.refinement.settings import Guard
from doppler.refinement.worker import LearnerProcess
from doppler.training.case import new_policy


@pytest.fixture(scope="module")
def problem() -> Problem:
    return believed()


@pytest.fixture(scope="module")
def champion(problem: Problem) -> Placement:
    return place(problem, "sibling_affinity", budget=0.0)


@pytest.mark.slow
def test_it_recovers_most_of_what_a_wrong_model_costs() -> None:
    problem = believed(large=True)
    truth = really(problem)
    stale = place(problem, budget=0.5)
    before = simulate(truth, stale).makespan
    best = simulate(truth, place(truth, budget=0.5)).makespan
    with refiner(problem, stale) as found:
        produce(found, simulated(truth), 250)
        after = simulate(truth, found.champion).makespan
        assert (before - after) / (before - best) > 0.6
        assert found.mean_regret <= 0.05
        assert max(run.regret for run in found.history) <= 0.05
        devices = [device.flops for device in found.problem.cluster.devices]
        assert np.argmin(devices) == 1
        assert devices[1] < 0.75 * np.median(devices)


def test_equal_measurements_lead_to_equal_plans(problem: Problem, champion: Placement) -> None:
    histories = []
    for _ in range(2):
        with refiner(problem, champion, seed=3) as found:
            produce(found, simulated(really(problem)), 60)
            histories.append(list(found.history))
            assert {run.kind for run in found.history} > {"champion"}
    assert repr(histories[0]) == repr(histories[1])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_guard_holds_where_every_other_placement_is_bad(
    problem: Problem, champion: Placement, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    bad, worst = [1.2, 1.6, 3.0, 6.0][seed], 0.0
    with refiner(problem, champion, seed=seed) as found:
        for number in range(1, 161):
            placement = found.next()
            seconds = (1.0 if placement is champion else bad) * math.exp(0.05 * rng.normal())
            seconds *= 5.0 if rng.random() < 0.02 else 1.0
            found.observe(seconds)
            if found.history[-1].kind != "champion":
                worst = max(worst, found.history[-1].ratio - 1.0 - RESERVE)
            assert found.mean_regret <= 0.05 + worst / number + 1e-9
        assert found.champion is champion
        assert sum(run.kind == "champion" for run in found.history) > 100


def test_what_is_too_slow_by_the_simulator_is_not_tried(
    problem: Problem, champion: Placement
) -> None:
    run, tried = simulated(problem), 0
    with refiner(problem, champion, guard=Guard(margin=0.02)) as found:
        for number in range(80):
            expected = found._state.predicted(found._state.champion.number)
            found.observe(run(found.next(), number))
            last = found.history[-1]
            if last.kind in ("candidate", "episode"):
                tried += 1
                assert last.predicted <= 1.02 * expected * (1 + 1e-9)
    assert tried


def test_a_failed_placement_is_not_tried_again_and_the_champion_is_next(
    problem: Problem, champion: Placement
) -> None:
    failed: list[Placement] = []
    with refiner(problem, champion) as found:
        for number in range(80):
            placement = found.next()
            assert all(placement is not each for each in failed)
            if placement is champion:
                found.observe(1.0 + 0.01 * math.sin(number))
                continue
            failed.append(placement)
            found.failed("out of memory")
            assert found.next() is champion
            found.observe(1.0)
        assert failed
        assert found.mean_regret <= 0.05
        lost = [run for run in found.history if math.isnan(run.measured)]
        assert len(lost) == len(failed)


@pytest.mark.parametrize("background", [False, True])
def test_a_champion_that_fails_gives_way_to_the_one_before(
    problem: Problem, champion: Placement, tmp_path: Path, background: bool
) -> None:
    truth = really(problem)
    run = simulated(truth)
    with refiner(problem, champion, directory=tmp_path) as found:
        while found.champion is champion:
            produce(found, run, 1)
    with refiner(problem, champion, directory=tmp_path, background=background) as found:
        assert found.champion is not champion
        while True:
            placement = found.next()
            if placement is found.champion:
                break
            found.observe(run(placement, 0))
        found.failed("device lost")
        assert found.champion is champion
        assert found.next() is champion
        # The first champion is all that is left: it stays even if it fails.
        found.failed("device lost")
        assert found.next() is champion
        found.observe(1.0)


def test_any_text_may_say_why_a_run_failed(
    problem: Problem, champion: Placement, tmp_path: Path
) -> None:
    with refiner(problem, champion, directory=tmp_path) as found:
        for reason in ("cannot open '\udce9'", "a\nb\0", ""):
            found.next()
            found.failed(reason)
        assert found.error is None
    refiner(problem, champion, directory=tmp_path).close()


def test_an_interrupt_leaves_what_can_be_gone_on_with(
    problem: Problem, champion: Placement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    run = simulated(really(problem))
    with refiner(problem, champion, directory=tmp_path) as found:
        while (failing := found.next()) is champion:
            found.observe(run(failing, len(found.history)))
        with monkeypatch.context() as patched:
            patched.setattr(found._learner, "learn", interrupt)
            with pytest.raises(KeyboardInterrupt):
                found.failed("out of memory")
        assert found.next() is champion
        found.observe(1.0)
        assert found.error is None
        found.next()
        with monkeypatch.context() as patched:
            patched.setattr(found._state, "apply", interrupt)
            with pytest.raises(KeyboardInterrupt):
                found.observe(1.0)
        # Two runs of one number would make the journal one that nobody can read.
        produce(found, run, 2)
        with pytest.raises(DopplerError, match="interrupted"):
            found.close()
    refiner(problem, champion, directory=tmp_path).close()


def test_calls_out_of_order(problem: Problem, champion: Placement) -> None:
    found = refiner(problem, champion)
    with pytest.raises(DopplerError, match=r"observe\(\) was called, but no run is under way"):
        found.observe(1.0)
    with pytest.raises(DopplerError, match=r"failed\(\) was called, but no run is under way"):
        found.failed("no reason")
    found.next()
    with pytest.raises(DopplerError, match=r"call observe\(\) or failed\(\) first"):
        found.next()
    for wrong in (0.0, -1.0, float("nan"), float("inf"), "1", 10**400):
        with pytest.raises(DopplerError, match="must be seconds > 0"):
            found.observe(wrong)  # type: ignore[arg-type]
    other = Problem(problem.graph, type(problem.cluster).uniform(2))
    trace = simulate(other, Placement(np.zeros(problem.n_ops, int))).trace
    with pytest.raises(DopplerError, match="on 2 devices, but the problem has"):
        found.observe(1.0, trace=trace)
    trace = simulate(problem, champion).trace
    for contradicts in (
        dataclasses.replace(trace, device=trace.device + problem.n_devices),
        dataclasses.replace(trace, end=trace.end[:3]),
    ):
        with pytest.raises(DopplerError, match="observe: the trace contradicts itself"):
            found.observe(1.0, trace=contradicts)
    found.observe(1.0, trace=dataclasses.replace(trace, end=trace.end * 1e300))
    assert not np.isinf(found._state.traced[-1]).any()
    found.next()
    found.observe(np.float32(1.0))  # type: ignore[arg-type]
    found.close()
    found.close()
    with pytest.raises(DopplerError, match="the refiner is closed"):
        found.next()
    with pytest.raises(DopplerError, match="the refiner is closed"):
        found.observe(1.0)


def test_settings_out_of_range(problem: Problem, champion: Placement) -> None:
    with pytest.raises(DopplerError, match="learn_share is 0"):
        refiner(problem, champion, learn_share=0)
    with pytest.raises(UnknownNameError, match=r"part 'searching'.*search"):
        refiner(problem, champion, parts=["searching"])
    with pytest.raises(DopplerError, match="runtime is 'lifo'"):
        refiner(problem, champion, runtime="lifo")
    with pytest.raises(PlacementError, match="2 ops, but graph"):
        refiner(problem, Placement([0, 0]))
    for name, wrong in {
        **{"seed": 1.5, "parts": None, "policy": "pretrained", "directory": 5},
        **{"guard": 1, "budget": 1, "learning": 1},
    }.items():
        with pytest.raises(ParamsError, match=f"^{name} is .*, must be"):
            refiner(problem, champion, **{name: wrong})
    with pytest.raises(DopplerError, match=r"null .*; give another directory"):
        refiner(problem, champion, directory="a\0b")
    refiner(problem, champion, seed=-1).close()


def test_the_state_goes_on_in_another_process(
    problem: Problem, champion: Placement, tmp_path: Path
) -> None:
    truth = really(problem)
    with refiner(problem, champion, directory=tmp_path) as found:
        produce(found, simulated(truth), 70)
        before = list(found.history)
        regret, best, learned = found.mean_regret, found.champion, found.problem
        weights = found.policy.state_dict()
    with refiner(problem, champion, directory=tmp_path) as found:
        assert repr(list(found.history)) == repr(before)
        assert found.mean_regret == regret
        assert found.champion.devices.tolist() == best.devices.tolist()
        assert found.problem.fingerprint == learned.fingerprint
        for name, tensor in found.policy.state_dict().items():
            assert (tensor == weights[name]).all(), name
        produce(found, simulated(truth), 5)
        assert len(found.history) == 75


def test_lost_weights_cost_no_run(problem: Problem, champion: Placement, tmp_path: Path) -> None:
    with refiner(problem, champion, directory=tmp_path) as found:
        produce(found, simulated(really(problem)), 40)
        before = list(found.history)
    for weights in tmp_path.glob("weights-*"):
        weights.unlink()
    with refiner(problem, champion, directory=tmp_path) as found:
        assert repr(list(found.history)) == repr(before)
        produce(found, simulated(really(problem)), 3)


def test_a_foreign_or_corrupt_directory_is_refused(
    problem: Problem, champion: Placement, tmp_path: Path
) -> None:
    with refiner(problem, champion, directory=tmp_path) as found:
        produce(found, simulated(problem), 20)
        with pytest.raises(DopplerError, match="another refiner uses this directory"):
            refiner(problem, champion, directory=tmp_path)
    # The name of a cluster is not part of the problem.
    refiner(renamed(problem, "other"), champion, directory=tmp_path).close()
    with pytest.raises(DopplerError, match=r"journal.jsonl: belongs to another problem .*'ffnn'"):
        refiner(really(problem), champion, directory=tmp_path)
    with pytest.raises(DopplerError, match="began with another first champion"):
        refiner(problem, Placement(np.zeros(problem.n_ops, int)), directory=tmp_path)
    with pytest.raises(DopplerError, match="began with another run-time"):
        refiner(problem, champion, directory=tmp_path, runtime="fifo")
    with pytest.raises(DopplerError, match="began with other parts"):
        refiner(problem, champion, directory=tmp_path, parts=["search"])
    for weights in tmp_path.glob("weights-*"):
        weights.write_bytes(weights.read_bytes()[:-5])
    with (
        refiner(problem, champion, directory=tmp_path) as found,
        pytest.raises(CheckpointError, match="remove it to go on with the policy that"),
    ):
        _ = found.policy
    for weights in tmp_path.glob("weights-*"):
        weights.unlink()
    journal = tmp_path / "journal.jsonl"
    text = journal.read_bytes()
    journal.write_bytes(text.replace(b'"run":2,', b'"run":7,'))
    with pytest.raises(DopplerError, match="line 5 is corrupt"):
        refiner(problem, champion, directory=tmp_path)
    lines = text.splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:2], *lines[4:]]))
    with pytest.raises(DopplerError, match=r"cannot be taken up \(a run is missing\); remove"):
        refiner(problem, champion, directory=tmp_path)
    (tmp_path / "other").mkdir()
    Journal(tmp_path / "other" / "journal.jsonl").append('{"format":"another"}')
    with pytest.raises(DopplerError, match="not a journal of Stage III that this Doppler reads"):
        refiner(problem, champion, directory=tmp_path / "other")
    journal.write_bytes(text)
    refiner(problem, champion, directory=tmp_path).close()
    (tmp_path / "file").write_text("")
    with pytest.raises(DopplerError, match="give another directory"):
        refiner(problem, champion, directory=tmp_path / "file")


@pytest.mark.slow
def test_learning_beside_production_leaves_nothing_behind(
    problem: Problem, champion: Placement
) -> None:
    before, run = threading.active_count(), simulated(really(problem))
    with refiner(problem, champion, background=True, learn_share=1.0) as found:
        assert isinstance(found._learner, LearnerProcess)
        for number in range(2000):
            found.observe(run(found.next(), number))
            time.sleep(0.02)
            if found._state.weights is not None and found.history[-1].kind != "champion":
                break
        found.policy.eval()
        found.next()
        assert threading.active_count() == before
        directory, process = found._directory, found._learner._process
    assert found.error is None
    assert {run.kind for run in found.history} > {"champion"}
    assert process.returncode is not None
    del found
    gc.collect()
    assert not directory.exists()
    # Nor where nobody closes it.
    found = refiner(problem, champion, background=True)
    assert isinstance(found._learner, LearnerProcess)
    directory, process = found._directory, found._learner._process
    del found
    gc.collect()
    assert process.returncode is not None
    assert not directory.exists()


@pytest.mark.slow
def test_what_python_prints_as_it_starts_is_no_answer(
    problem: Problem, champion: Placement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('welcome', flush=True)")
    monkeypatch.syspath_prepend(tmp_path)
    # After the first answer it rests for longer than any clock can tell.
    with refiner(problem, champion, background=True, learn_share=1e-12) as found:
        for _ in range(2000):
            found.next()
            found.observe(1.0)
            if found.rounds:
                break
            time.sleep(0.02)
        assert found.rounds == 1
        produce(found, lambda placement, number: 1.0, 3)
        assert found.error is None


@pytest.mark.parametrize(
    "fault", ["journal", "killed", pytest.param("graph", marks=pytest.mark.slow)]
)
def test_production_goes_on_when_learning_fails(
    problem: Problem,
    champion: Placement,
    tmp_path: Path,
    fault: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = refiner(problem, champion, background=fault != "journal", directory=tmp_path)
    if fault == "journal":
        found._journal.close()
    elif fault == "killed":
        found._learner._process.kill()  # type: ignore[union-attr]
    else:
        (tmp_path / "graph.json").write_text("{}")
    for _ in range(2000):
        assert found.next() is found.champion
        found.observe(1.0)
        if found.error is not None:
            break
        time.sleep(0.02)
    produce(found, lambda placement, number: 1.0, 3)
    assert len(caplog.messages) == 1
    assert "production goes on with the champion" in caplog.messages[0]
    says = {
        "journal": "cannot be read or written",
        "killed": "learning process has ended with status -9",
        "graph": "graph.json",
    }
    with pytest.raises(DopplerError, match=says[fault]):
        found.close()
    refiner(problem, champion, directory=tmp_path).close()


def test_the_policy_given_is_not_changed_and_the_refined_one_can_be_saved(
    problem: Problem, champion: Placement, tmp_path: Path
) -> None:
    policy = new_policy(1, sizes=SMALL)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    with Refiner(problem, champion, policy=policy, background=False) as found:
        produce(found, simulated(really(problem)), 30)
        refined = found.policy
    assert all((policy.state_dict()[name] == tensor).all() for name, tensor in before.items())
    assert any((refined.state_dict()[name] != tensor).any() for name, tensor in before.items())
    load_policy(save_policy(refined, tmp_path / "policy.safetensors"))
