"""What Stage III knows, plans and learns; one thread, no clock, so that it can be repeated."""

from __future__ import annotations

import base64
import copy
import json
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from doppler.errors import CheckpointError, DopplerError, PlacementError
from doppler.files import write_atomic
from doppler.placement import Placement
from doppler.policy.network import DualPolicy
from doppler.policy.rollout import GREEDY, SAMPLE
from doppler.problem import Problem
from doppler.refinement.budget import Spent, next_error
from doppler.refinement.calibration import (
    Calibration,
    Factors,
    Observations,
    TraceFactors,
    observations,
)
from doppler.refinement.candidates import Option, Options
from doppler.refinement.guard import Ledger
from doppler.refinement.history import (
    CANDIDATE,
    CHALLENGER,
    CHAMPION,
    EPISODE,
    REFERENCE,
    History,
)
from doppler.refinement.journal import Journal
from doppler.refinement.policy_update import Feedback, PolicyLearner
from doppler.refinement.settings import ErrorBudget, Guard
from doppler.refinement.trial import Trial, Verdict
from doppler.schedule.ranks import rank_of
from doppler.search.anneal import COLD, SMALL_HOT, SMALL_MOVES, Annealer
from doppler.simulator import simulate

FORMAT = "doppler-refinement"
VERSION = 2

FloatArray = npt.NDArray[np.float64]

# Placements that the simulator is fitted to: those run last.
FITTED = 48
# Runs after which what was measured is no longer held against the simulator: systems change.
LASTING = 1000
# Change of a factor's logarithm that is worth making the problem anew for.
NOTICED = 0.002
# Changes of the explanations tried after a run.
CHANGES = 64
# Moves of a search of the calibrated simulator, and of those one slice of work.
MOVES, SLICE_OPS = 4000, 20_000
# The best options, from one of which a search starts, and the states of a search that are compared
# with jitter.
STARTS, SNAPSHOTS = 4, 12
# Runs between two batches of the policy's episodes, and updates of it by the simulator.
POLICY_EVERY = 8
# How often an option is tried before it has to become a challenger or be left alone.
TRIES = 2
# What a challenger must promise, as a share of the champion's seconds.
LEAST_GAIN = 0.003
# How far explanations must disagree about a placement, as the deviation of logarithms, for its
# run to be worth its cost.
WORTH_KNOWING = 0.03
# First runs of placements whose surprises count, and the fewest that do.
SURPRISES, ENOUGH_SURPRISES = 20, 5
# Share of the chances to explore on which what is promising is left for what is unknown, and of
# these, on which that is tried.
CURIOSITY = 0.25


@dataclass(frozen=True, eq=False)
class Plan:
    """A production run to come.

    Attributes
    ----------
    option : Option
    kind : str
        See :mod:`doppler.refinement.history`.
    predicted : float
        Seconds; nan where nothing was asked.
    """

    option: Option
    kind: str
    predicted: float = math.nan


class Learner:
    """The state of Stage III and its decisions.

    Every method is for one thread. :meth:`record` and :meth:`plan` are short; :meth:`work` is a
    generator that pauses after every few milliseconds.

    Parameters
    ----------
    problem : Problem
        As believed.
    champion : Placement
    policy : DualPolicy
        Not changed; a copy of it is.
    guard : Guard
    seed : int
    runtime : {"priority", "fifo"}
    directory : path-like, optional
        Where the state is kept; what is there already is taken up.
    budget : ErrorBudget, optional
        Of false promotions.

    Raises
    ------
    PlacementError
        If the champion does not suit the problem.
    DopplerError
        If the directory holds another problem's state, or a corrupt one.
    """

    def __init__(
        self,
        problem: Problem,
        champion: Placement,
        policy: DualPolicy,
        guard: Guard,
        seed: int = 0,
        runtime: str = "priority",
        directory: str | Path | None = None,
        budget: ErrorBudget | None = None,
    ) -> None:
        champion.validate(problem)
        self.believed = problem
        self.problem = problem
        self.guard = guard
        self.budget = budget or ErrorBudget()
        self.runtime = runtime
        self.seed = seed
        self.policy = copy.deepcopy(policy)
        self.history = History()
        self.ledger = Ledger(guard)
        self.calibration = Calibration(problem, seed)
        self.trial: Trial | None = None
        self.spent: list[Spent] = []
        self._challenger: Option | None = None
        self._learner = PolicyLearner(self.policy, problem)
        self._faced = np.zeros(problem.n_devices + len(problem.cluster.links))
        self._options = Options(problem, runtime)
        first = self._options.add(champion, CHAMPION)
        if first is None:
            raise PlacementError("the champion does not fit in the memory of the devices")
        self._options.hand_out(first)
        self._champions = [first]
        self._must_recover = False
        self._fresh = False
        self._batch: deque[Feedback] = deque(maxlen=self._learner.batch)
        self._logs: dict[Option, FloatArray] = {}
        self._surprises: deque[float] = deque(maxlen=SURPRISES)
        self._rounds = 0
        self._plans = 0
        self._journal: Journal | None = None
        self._checkpoint: Path | None = None
        if directory is not None:
            self._open(Path(directory))

    # What production asks.

    @property
    def champion(self) -> Option:
        """The working champion."""
        return self._champions[-1]

    @property
    def usual(self) -> Plan:
        """A run of the working champion."""
        champion = self.champion
        return Plan(champion, CHAMPION, self._predicted(champion))

    def before(self, champion: Option) -> Option:
        """Return the champion that a champion took over from; the first one of itself."""
        champions = list(self._champions)
        return champions[max(0, champions.index(champion) - 1)]

    @property
    def has_work(self) -> bool:
        """Whether something was measured since :meth:`work` began last."""
        return self._fresh

    def plan(self, ahead: int = 0) -> Plan:
        """Decide on the next run, given all that was recorded.

        Parameters
        ----------
        ahead : int
            Champion runs that are under way and come before it.
        """
        usual = self.usual
        if self._must_recover:
            return usual
        if self.trial is not None and self._challenger is not None:
            challenger = self._challenger
            # A pair is paid for before it begins, so that nothing comes between its runs.
            if self.trial.between and not self.ledger.allows(
                self._ratio(challenger), ahead, challenger.number
            ):
                return usual
            if self.trial.turn == "champion":
                return Plan(self.champion, REFERENCE, usual.predicted)
            return Plan(challenger, CHALLENGER, self._predicted(challenger))
        self._plans += 1
        rng = np.random.default_rng([self.seed, 6, self._plans])
        option = self._promising(rng) if self.ledger.allows(1.0, ahead) else None
        if option is None or not self.ledger.allows(self._ratio(option, worst=True), ahead):
            return usual
        return Plan(option, option.kind, self._predicted(option))

    def record(
        self,
        plan: Plan,
        makespan: float | None,
        shown: TraceFactors | None = None,
        failed: str = "",
    ) -> None:
        """Take the outcome of a planned run and write it to the journal.

        Parameters
        ----------
        plan : Plan
        makespan : float, optional
            Seconds; None: the run failed.
        shown : TraceFactors, optional
            What its trace shows.
        failed : str
            Why it failed.
        """
        new = plan.option.number < 0
        number = self._options.hand_out(plan.option)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        verdict = self._take(plan, makespan, shown, now, None)
        if self._journal is None:
            return
        line: dict[str, Any] = {
            "run": len(self.history),
            "time": now,
            "kind": plan.kind,
            "placement": number,
            "predicted": None if math.isnan(plan.predicted) else plan.predicted,
        }
        if new:
            line |= _packed(plan.option)
        if makespan is None:
            line["failed"] = failed
        else:
            line["makespan"] = makespan
        if shown is not None:
            line["devices"], line["links"] = (
                [None if math.isnan(each) else each for each in part.tolist()] for part in shown
            )
        if verdict is not Verdict.OPEN:
            line["verdict"] = verdict.value
        self._journal.append(line)

    # What is learned in between.

    def work(self) -> Iterator[None]:
        """Learn from what was recorded, in slices."""
        self._fresh = False
        self._rounds += 1
        rng = np.random.default_rng([self.seed, 7, self._rounds])
        if self.ledger.baseline is not None:
            yield from self.calibration.see(self._observations(self._fitted()))
            yield from self.calibration.improve(CHANGES)
            self._face()
            yield
        if self._rounds % POLICY_EVERY == 1:
            yield from self._learn(rng)
        yield from self._search(rng)
        yield from self._foresee()

    def close(self) -> None:
        """Write the state and let go of files and threads."""
        try:
            self.save()
        finally:
            self._learner.close()
            if self._journal is not None:
                self._journal.close()

    def save(self) -> None:
        """Write the checkpoint; the journal is always up to date."""
        if self._checkpoint is None:
            return
        tensors = {f"policy/{k}": v.contiguous() for k, v in self.policy.state_dict().items()}
        for index, moments in self._learner.optimizer.state_dict()["state"].items():
            tensors |= {f"adam/{index}/{name}": tensor for name, tensor in moments.items()}
        tensors["explanations"] = torch.from_numpy(self.calibration.state)
        untried = self._options.untried
        header = {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": self.believed.fingerprint,
            "rounds": self._rounds,
            "plans": self._plans,
            "untried": [_packed(option) for option in untried],
        }
        write_atomic(self._checkpoint, save(tensors, {"doppler": json.dumps(header)}))

    def _take(
        self,
        plan: Plan,
        makespan: float | None,
        shown: TraceFactors | None,
        now: str,
        verdict: Verdict | None,
    ) -> Verdict:
        """Account for a run; ``verdict`` is what a trial came to when the run was recorded."""
        option, kind = plan.option, plan.kind
        option.runs += 1
        option.last = len(self.history) + 1
        baseline = self.ledger.baseline
        self._must_recover = makespan is None
        self.ledger.record(option.number, makespan)
        self.history.append(
            kind,
            option.number,
            plan.predicted,
            math.nan if makespan is None else makespan,
            math.nan if makespan is None or baseline is None else makespan / baseline,
            self.ledger.mean,
        )
        self._fresh = True
        if makespan is None:
            return self._failed(option, kind)
        option.logs.append(math.log(makespan))
        if shown is not None:
            self.calibration.see_trace(shown)
        if kind in (CANDIDATE, EPISODE) and baseline is not None:
            relative = self._relative(option)
            if option.runs == 1 and relative is not None:
                self._surprises.append(math.log(makespan / baseline) - float(relative[0]))
            order = self._order(option.placement)
            choice = option.placement.devices[order]
            advantage = 1.0 - makespan / baseline
            self._batch.append(Feedback(order, choice, advantage, kind == EPISODE))
        if kind in (CHALLENGER, REFERENCE):
            return self._judge(makespan, verdict)
        if kind != CHAMPION:
            self._challenge(option, now)
        elif (former := self.ledger.overtaking) is not None:
            self._test(self._options.tried[former], now)
        return Verdict.OPEN

    def _failed(self, option: Option, kind: str) -> Verdict:
        # There is always something to fall back on: the first champion, even if it failed.
        if option is not self._champions[0]:
            option.closed = True
        if option is self.champion and len(self._champions) > 1:
            self._champions.pop()
            champion = self.champion
            self.ledger.promote(champion.number, [math.exp(log) for log in champion.logs])
            self.ledger.drop(option.number)
            self.trial = None
        elif kind == CHALLENGER:
            self.ledger.drop(option.number)
            self.trial = None
        elif kind == REFERENCE and self.trial is not None:
            self.trial.observe(None)
        return Verdict.OPEN

    def _judge(self, makespan: float, verdict: Verdict | None) -> Verdict:
        # Of a run that was planned before its trial was called off, nothing follows.
        if self.trial is None or self._challenger is None:
            return Verdict.OPEN
        challenger = self._challenger
        found = self.trial.observe(makespan)
        verdict = verdict or found
        if verdict is Verdict.OPEN:
            return verdict
        self.trial = None
        seconds = [math.exp(log) for log in challenger.logs]
        if verdict is Verdict.PROMOTED:
            self._champions = [each for each in self._champions if each is not challenger]
            self._champions.append(challenger)
            self.ledger.promote(challenger.number, seconds)
        elif challenger in self._champions:
            self.ledger.keep(challenger.number, seconds)
        else:
            challenger.closed = True
        return verdict

    def _challenge(self, option: Option, now: str) -> None:
        """Let the test of an option begin, if its runs give reason to."""
        baseline = self.ledger.baseline
        if baseline is None or option.closed or option is self.champion:
            return
        measured = math.exp(float(np.median(option.logs)))
        if measured < baseline * (1.0 - LEAST_GAIN):
            self._test(option, now)

    def _test(self, challenger: Option, now: str) -> None:
        """Begin to test an option against the champion, if no test is under way."""
        error = next_error(self.budget, self.spent, now)
        if self.trial is not None or error == 0.0:
            return
        self.spent.append(Spent(now, error))
        self.trial = Trial(error, seed=[self.seed, 8, len(self.spent)])
        self._challenger = challenger

    # Predictions.

    def _fitted(self) -> list[Option]:
        since = len(self.history) - LASTING
        tried = [each for each in self._options.tried if each.logs and each.last > since]
        return sorted(tried, key=lambda option: option.last)[-FITTED:]

    def _observations(self, options: list[Option]) -> Observations:
        return observations(
            [option.placement for option in options],
            [option.logs for option in options],
            self.runtime,
        )

    def _foresee(self) -> Iterator[None]:
        """Predict every open option anew, as logarithms of seconds by explanation."""
        options = [self.champion, *self._open_options()]
        champion = self.champion
        found = yield from self.calibration.predict(self._observations(options))
        foreseen = {}
        for option, logs in zip(options, found.T, strict=True):
            if option.logs:
                # What its own runs show beyond the model, the more the more of them there are.
                off = float(np.median(option.logs)) - logs
                logs = logs + off * len(option.logs) / (len(option.logs) + 1.0)
            foreseen[option] = logs
        self._options.keep(
            {option: float((logs - foreseen[champion]).min()) for option, logs in foreseen.items()}
        )
        kept = {self.champion, champion, *self._open_options()}
        self._logs = {option: logs for option, logs in foreseen.items() if option in kept}

    def _open_options(self) -> list[Option]:
        tried = (
            option
            for option in self._options.tried
            if not option.closed and option is not self.champion and option.runs < TRIES
        )
        return [*tried, *self._options.untried]

    @property
    def _optimism(self) -> float:
        """By how much, as a logarithm, what looks best falls short of what it promises.

        A search finds above all what the simulator is wrong about.
        """
        if len(self._surprises) < ENOUGH_SURPRISES:
            return 0.0
        return max(0.0, float(np.median(self._surprises)))

    def _relative(self, option: Option) -> FloatArray | None:
        """Logarithm of an option's seconds over the champion's, by explanation."""
        logs = self._logs.get(option)
        champion = self._logs.get(self.champion)
        return None if logs is None or champion is None else logs - champion

    def _ratio(self, option: Option, worst: bool = False) -> float:
        relative = self._relative(option)
        if relative is None:
            return 1.0
        return math.exp(float(relative.max() if worst else relative[0]))

    def _predicted(self, option: Option) -> float:
        logs = self._logs.get(option)
        return math.nan if logs is None else math.exp(float(logs[0]))

    def _promising(self, rng: np.random.Generator) -> Option | None:
        """Return what to explore: what some explanation prefers, or what tells them apart."""
        limit = math.log1p(self.guard.margin)
        options, rows = [], []
        for option in self._open_options():
            relative = self._relative(option)
            if relative is not None and relative[0] <= limit and option.runs < TRIES:
                options.append(option)
                rows.append(relative if option.runs else relative + self._optimism)
        if not options:
            return None
        table = np.stack(rows)
        column = table[:, int(rng.integers(table.shape[1]))]
        best = int(column.argmin())
        if column[best] < -LEAST_GAIN and rng.random() >= CURIOSITY:
            return options[best]
        # Knowledge has its price: half of what may be spent, so that gains can always be tried.
        if self.ledger.mean > 0.5 * self.guard.max_regret:
            return None
        new = np.array([option.runs == 0 for option in options])
        curious = np.where(new, table.std(axis=1), 0.0)
        most = int(curious.argmax())
        return options[most] if curious[most] > WORTH_KNOWING and rng.random() < CURIOSITY else None

    # Search and policy.

    def _search(self, rng: np.random.Generator) -> Iterator[None]:
        """Look for a placement that is good by the calibration, or by another explanation."""
        kind = rng.random()
        which = int(rng.integers(1 << 30))
        if kind < 0.5:
            factors: Factors = self.calibration.factors
        elif kind < 0.85:
            factors = self.calibration.between(which, float(rng.choice([0.3, 0.6, 1.0])))
        else:
            factors = self.calibration.what_if(rng)
        problem = factors.problem(self.believed)
        yield
        starts = [each for each in [self.champion, *self._open_options()] if each in self._logs]
        starts.sort(key=lambda option: float(self._logs[option][0]))
        starts = starts[:STARTS] or [self.champion]
        start = starts[int(rng.integers(len(starts)))]
        annealer = Annealer(problem, 1, self.runtime, SMALL_MOVES)
        chain = annealer.chain(start.placement)
        yield
        steps = max(1, SLICE_OPS // problem.n_ops)
        slices = max(SNAPSHOTS, MOVES // steps)
        hot = SMALL_HOT * 10.0 ** rng.uniform(-1.5, 1.0)
        found: list[Placement] = []
        for number in range(slices):
            heat = hot * (COLD / hot) ** (number / slices)
            temperature = heat * min(chain.best, chain.reference)
            annealer.advance(chain, int(rng.integers(2**31)), steps, temperature)
            if (number + 1) % max(1, slices // SNAPSHOTS) == 0:
                best = chain.placement
                priority = best.priority if self.runtime == "priority" else None
                found.append(Placement(best.devices, priority))
            yield
        # What is best without jitter may be much worse with it.
        expected = self.calibration.expect(problem, found, self.runtime)
        self._options.add(found[int(expected.argmin())], CANDIDATE)
        yield

    def _face(self) -> None:
        """Let search and policy see the calibrated problem, if it has changed."""
        factors = np.log(np.concatenate(self.calibration.factors))
        if np.abs(factors - self._faced).max() > NOTICED:
            self._faced = factors
            self.problem = self.calibration.factors.problem(self.believed)
            self._learner.face(self.problem)

    def _learn(self, rng: np.random.Generator) -> Iterator[None]:
        """Update the policy, and let it propose."""
        best = min(
            [self.champion, *self._open_options()],
            key=lambda option: float(self._logs[option][0]) if option in self._logs else 0.0,
        )
        if len(self._batch) == self._batch.maxlen:
            yield from self._learner.from_runs(list(self._batch))
            self._batch.clear()
        order = self._order(best.placement)
        incumbent = Placement(best.placement.devices, rank_of(order))
        makespan = simulate(self.problem, best.placement, runtime=self.runtime).makespan
        seeds = rng.integers(2**31, size=self._learner.batch).tolist()
        yield from self._learner.from_simulator(incumbent, makespan, seeds, self.runtime)
        modes = [(GREEDY, [0]), (SAMPLE, rng.integers(2**31, size=4).tolist())]
        for mode, seeds in modes:
            episodes = self._learner.play(mode, seeds, self.runtime)
            for index in range(len(seeds)):
                if episodes.overflow[index] == 0.0:
                    placement = Placement(episodes.devices(index), episodes.priority(index))
                    self._options.add(placement, EPISODE)
            yield

    def _order(self, placement: Placement) -> npt.NDArray[np.int32]:
        """Return the ops as the simulator starts them, producers before consumers."""
        trace = simulate(self.problem, placement, runtime=self.runtime).trace
        start = np.empty(self.problem.n_ops)
        start[trace.op] = trace.start
        position = np.argsort(self.problem.arrays.order)
        return np.lexsort((position, start)).astype(np.int32)

    # What outlives the process.

    def _open(self, directory: Path) -> None:
        self._journal = Journal(directory / "journal.jsonl")
        self._checkpoint = directory / "checkpoint.safetensors"
        records, self._journal.records = self._journal.records, []
        first = self._options.tried[0]
        header = {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": self.believed.fingerprint,
            "runtime": self.runtime,
            **_packed(first),
        }
        try:
            if not records:
                self._journal.append(header)
                return
            self._check(records[0], header)
            for record in records[1:]:
                self._replay(record)
            self._restore()
        except BaseException:
            self._journal.close()
            raise

    def _check(self, found: Mapping[str, Any], header: Mapping[str, Any]) -> None:
        assert self._journal is not None
        path = self._journal.path
        if found.get("format") != FORMAT or found.get("version") != VERSION:
            raise DopplerError(
                f"{path}: not a journal of Stage III that this Doppler reads; "
                "give another directory"
            )
        if found.get("fingerprint") != header["fingerprint"]:
            raise DopplerError(
                f"{path}: belongs to another problem than {self.believed.graph.name!r} on "
                f"{self.believed.cluster.name!r}; give another directory"
            )
        for key, what in (
            ("runtime", "another run-time"),
            ("placed", "another first champion"),
            ("ranked", "another first champion"),
        ):
            if found.get(key) != header[key]:
                raise DopplerError(f"{path}: began with {what}; give another directory")

    def _replay(self, record: Mapping[str, Any]) -> None:
        assert self._journal is not None
        try:
            number = int(record["placement"])
            if number == len(self._options.tried):
                option = self._options.add(*_unpacked(record, self.believed))
                if option is None or option.number >= 0:
                    raise ValueError("a placement twice, or one that does not fit")
                self._options.hand_out(option)
            option = self._options.tried[number]
            predicted = record["predicted"]
            plan = Plan(option, record["kind"], math.nan if predicted is None else predicted)
            shown = None
            if "devices" in record:
                shown = TraceFactors(
                    *(np.array(record[key], np.float64) for key in ("devices", "links"))
                )
            verdict = Verdict(record.get("verdict", "open"))
            self._take(plan, record.get("makespan"), shown, record["time"], verdict)
            if record["run"] != len(self.history):
                raise ValueError("a run is missing")
        except (DopplerError, LookupError, TypeError, ValueError) as error:
            raise DopplerError(
                f"{self._journal.path}: run {len(self.history)} cannot be taken up ({error}); "
                f"remove {self._journal.path.parent} to start anew"
            ) from None

    def _restore(self) -> None:
        path = self._checkpoint
        if path is None or not path.exists():
            return
        try:
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {}).get("doppler", "{}"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if header["format"] != FORMAT or header["version"] != VERSION:
                raise ValueError("another format")
            if header["fingerprint"] != self.believed.fingerprint:
                raise ValueError("another problem")
            self.calibration.restore(tensors.pop("explanations").numpy())
            self._learner.restore(tensors)
            self._rounds, self._plans = int(header["rounds"]), int(header["plans"])
            for packed in header["untried"]:
                self._options.add(*_unpacked(packed, self.believed))
            self._face()
        except (
            SafetensorError,
            OSError,
            ArithmeticError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
            PlacementError,
        ) as error:
            raise CheckpointError(
                f"{path}: corrupt, or not of this refinement ({error}); remove it to go on from "
                "the journal alone"
            ) from None


def _packed(option: Option) -> dict[str, Any]:
    """Return an option's placement and kind as plain values."""
    placement = option.placement

    def text(array: npt.NDArray[np.int32]) -> str:
        return base64.b64encode(array.astype("<i4").tobytes()).decode()

    ranked = None if placement.priority is None else text(placement.priority)
    return {"placed": text(placement.devices), "ranked": ranked, "made": option.kind}


def _unpacked(record: Mapping[str, Any], problem: Problem) -> tuple[Placement, str]:
    def array(text: str) -> npt.NDArray[np.int32]:
        return np.frombuffer(base64.b64decode(text, validate=True), "<i4").astype(np.int32)

    ranked = record["ranked"]
    placement = Placement(array(record["placed"]), None if ranked is None else array(ranked))
    placement.validate(problem)
    return placement, str(record["made"])
