"""A refinement that was stopped and went on equals one that never was."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from production import believed, produce, really, refiner, simulated

from doppler import Placement, Problem, place
from doppler.refinement.events import Ran, parse_event
from doppler.refinement.history import CHALLENGER, EPISODE
from doppler.refinement.journal import read_journal
from doppler.refinement.planning import decide
from doppler.refinement.state import fold

RUNS, STOPS = 60, 50


@pytest.fixture(scope="module")
def problem() -> Problem:
    return believed()


@pytest.fixture(scope="module")
def champion(problem: Problem) -> Placement:
    return place(problem, "sibling_affinity", budget=0.0)


@pytest.mark.slow
def test_stopped_at_any_byte_and_resumed_is_as_never_stopped(
    problem: Problem, champion: Placement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("doppler.refinement.refiner.utc_now", lambda: "2026-12-01T00:00:00+00:00")
    run = simulated(really(problem))
    with refiner(problem, champion, directory=tmp_path / "whole") as found:
        produce(found, run, RUNS)
        assert {each.kind for each in found.history} >= {EPISODE, CHALLENGER}
    whole = (tmp_path / "whole" / "journal.jsonl").read_bytes()
    moments, path = random.Random(3), tmp_path / "stopped" / "journal.jsonl"
    done, stops = 0, 0
    while done < RUNS or stops < STOPS:
        with refiner(problem, champion, directory=path.parent) as found:
            produce(found, run, min(moments.randint(0, 5), RUNS - len(found.history)))
            done = len(found.history)
        assert whole.startswith(path.read_bytes())
        if stops < STOPS:
            # Killed in the middle of some line, or after it; of the latest runs some are lost.
            lost = moments.randint(0, min(5000, path.stat().st_size))
            os.truncate(path, path.stat().st_size - lost)
            done, stops = 0, stops + 1
    assert path.read_bytes() == whole
    ends = [
        {file.name for file in (tmp_path / each).glob("weights*")} for each in ("whole", "stopped")
    ]
    assert ends[0] == ends[1]


@pytest.mark.slow
def test_every_decision_beside_a_learning_process_follows_from_the_events_before(
    problem: Problem, champion: Placement, tmp_path: Path
) -> None:
    run, rounds = simulated(really(problem)), 0
    with refiner(problem, champion, directory=tmp_path, background=True, learn_share=1.0) as found:
        for _ in range(600):
            produce(found, run, 1)
            time.sleep(0.02)
            rounds = found.rounds
            if rounds > 5 and found.history[-1].kind == CHALLENGER:
                break
        assert found.error is None
    records, _ = read_journal(tmp_path / "journal.jsonl")
    events = [parse_event(record) for record in records]
    state = fold(problem, events[:2])
    for event in events[2:]:
        if isinstance(event, Ran):
            decision = decide(state)
            assert (decision.kind, decision.known.number) == (event.kind, event.placement)
            assert decision.predicted == event.predicted
        state.apply(event)
    assert state.rounds == rounds
