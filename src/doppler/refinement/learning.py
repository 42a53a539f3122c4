"""What is learned from production runs: a function of the state."""

from __future__ import annotations

import copy
import hashlib
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.torch import load, save
from torch import Tensor

from doppler.errors import CheckpointError, MemoryLimitError
from doppler.files import write_atomic
from doppler.placement import Placement
from doppler.policy.checkpoint import load_policy
from doppler.policy.network import DualPolicy
from doppler.policy.rollout import GREEDY, SAMPLE
from doppler.problem import Problem
from doppler.refinement.calibration import JITTER_EVERY, Calibrator, factors_of, observations
from doppler.refinement.candidates import KnownPlacement, placement_key
from doppler.refinement.events import CALIBRATION, POLICY_GRADIENT, SEARCH, Found, Learned
from doppler.refinement.history import CANDIDATE, EPISODE
from doppler.refinement.policy_update import (
    PolicyLearner,
    Trajectory,
    drawn_order,
    start_order,
)
from doppler.refinement.state import State, notice
from doppler.search.anneal import COLD, SMALL_HOT, SMALL_MOVES, Annealer
from doppler.simulator import check_memory
from doppler.training.optimizer_state import tensors_of

FloatArray = npt.NDArray[np.float64]

# Moves between two changes of a search's temperature.
STEP_OPS = 20_000
# Problems as they were when episodes were drawn that the policy has yet to learn from.
KEPT_PROBLEMS = 8


class Learner:
    """Learns, one round at a time.

    What it keeps between rounds saves time only: a round depends on the state alone, and on the
    file of the weights that the state names.

    Parameters
    ----------
    problem : Problem
        As believed.
    policy : DualPolicy
        What the refinement began with; it is copied.
    directory : pathlib.Path
        Of the weights.
    """

    def __init__(self, problem: Problem, policy: DualPolicy, directory: Path) -> None:
        self.believed = problem
        self.directory = directory
        self.policy = copy.deepcopy(policy)
        self._calibrator = Calibrator(problem)
        self._updated = PolicyLearner(self.policy, problem)
        self._weights: str | None = None
        self._first = {name: each.clone() for name, each in self._updated.tensors().items()}
        self._problems: dict[bytes, Problem] = {}

    def close(self) -> None:
        """Let go of threads."""
        self._updated.close()

    def learn(self, state: State) -> Learned:
        """Calibrate, update the policy, search, and predict what the placements known take.

        Raises
        ------
        CheckpointError
            If the weights cannot be read.
        DopplerError
            If the new ones cannot be written.
        """
        number = state.rounds + 1
        rng = np.random.default_rng([state.seed, 7, number])
        explanations, jitter = self._calibrate(state, number)
        noticed = notice(state.noticed, explanations[0], self.believed.n_devices)
        problem = self._problem(noticed)
        starts = self._best(state)
        found: list[Found] = []
        learned_from, weights = 0, None
        if number % state.learning.policy.every == 1 % state.learning.policy.every:
            self._load(state)
            self._updated.problem, self._updated.settings = problem, state.learning.policy
            if POLICY_GRADIENT in state.parts:
                # Whoever interrupts an update leaves weights that are nobody's.
                self._weights = ""
                learned_from, changed = self._update(state, problem, starts[0], rng)
                weights = self._save(state) if changed else None
                self._weights = weights or state.weights
            found += self._draw(rng, state)
        if SEARCH in state.parts:
            factors = self._calibrator.other(explanations, rng)
            if CALIBRATION not in state.parts:
                factors = factors_of(explanations[0], self.believed.n_devices)
            start = starts[int(rng.integers(min(state.learning.starts, len(starts))))]
            searched = factors.problem(self.believed)
            best = self._search(searched, start.placement, state, jitter, rng)
            found.append(Found(kind=CANDIDATE, devices=best.devices, priority=best.priority))
        found, dropped, numbers, table = self._predict(state, explanations, jitter, found)
        return Learned(
            round=number,
            after=len(state.history),
            explanations=explanations.astype(np.float32).ravel(),
            jitter=jitter,
            found=tuple(found),
            dropped=tuple(dropped),
            predicted=np.array(numbers, np.int32),
            predictions=table.astype(np.float32).ravel(),
            weights=weights,
            learned_from=learned_from,
        )

    def _calibrate(self, state: State, number: int) -> tuple[FloatArray, float]:
        explanations, jitter = state.explanations, state.jitter
        if CALIBRATION not in state.parts or state.ledger.baseline is None:
            return explanations, jitter
        since = len(state.history) - state.learning.lasting
        tried = [each for each in state.known.values() if each.logs and each.last > since]
        tried = sorted(tried, key=lambda each: each.last)[-state.learning.fitted :]
        placements = [each.placement for each in tried]
        seen = observations(placements, [each.logs for each in tried], state.runtime)
        if number % JITTER_EVERY == 1:
            jitter = self._calibrator.jitter(explanations[0], seen, jitter)
        rng = np.random.default_rng([state.seed, 5, number])
        explanations = self._calibrator.fit(explanations, jitter, seen, state.traced, rng)
        # As whoever reads the event will see them.
        return explanations.astype(np.float32).astype(np.float64), jitter

    def _best(self, state: State) -> list[KnownPlacement]:
        """Return the champion and what may still be tried, by what was predicted last."""

        def expected(known: KnownPlacement) -> float:
            seconds = state.predicted(known.number)
            if seconds is None:
                return math.exp(float(np.median(known.logs))) if known.logs else math.inf
            return seconds

        return sorted([state.champion, *state.open_placements()], key=expected)

    def _update(
        self, state: State, problem: Problem, best: KnownPlacement, rng: np.random.Generator
    ) -> tuple[int, bool]:
        """Update the policy; say up to which run it has learned, and whether it has changed."""
        batch, learned_from = [], 0
        for each in state.feedback:
            known = state.known[each.placement]
            learned_from = each.run
            steps = known.log_probabilities
            if known.seen is None:
                seen, order = problem, start_order(problem, known.placement, state.runtime)
            else:
                seen, order = self._problem(known.seen), drawn_order(known.placement)
            choice = known.placement.devices[order]
            batch.append(Trajectory(seen, order, choice, each.cost, steps))
        changed = False
        if len(batch) < state.learning.policy.enough:
            learned_from = 0
        else:
            changed = self._updated.from_runs(batch)
        if CALIBRATION in state.parts:
            seeds = rng.integers(2**31, size=self._updated.batch_size).tolist()
            self._updated.from_simulator(best.placement, seeds, state.runtime)
            changed = True
        return learned_from, changed

    def _draw(self, rng: np.random.Generator, state: State) -> list[Found]:
        """Let the policy propose: what it thinks best, and a sample of what it does."""
        found = []
        sampled = rng.integers(2**31, size=state.learning.policy.drawn).tolist()
        for mode, seeds in ((GREEDY, [0]), (SAMPLE, sampled)):
            episodes = self._updated.play(mode, seeds, state.runtime)
            steps = self._updated.log_probabilities(episodes.record)
            for index in range(len(seeds)):
                found.append(
                    Found(
                        kind=EPISODE,
                        devices=episodes.devices(index),
                        priority=episodes.priority(index),
                        log_probabilities=steps[index] if mode == SAMPLE else None,
                    )
                )
        return found

    def _search(
        self,
        problem: Problem,
        start: Placement,
        state: State,
        jitter: float,
        rng: np.random.Generator,
    ) -> Placement:
        """Anneal from a placement; return what is best with jitter of what it passed by."""
        settings, runtime = state.learning, state.runtime
        annealer = Annealer(problem, 1, runtime, SMALL_MOVES)
        chain = annealer.chain(start)
        steps = max(1, STEP_OPS // problem.n_ops)
        slices = max(settings.snapshots, settings.moves // steps)
        hot = SMALL_HOT * 10.0 ** rng.uniform(-1.5, 1.0)
        found: list[Placement] = []
        for number in range(slices):
            heat = hot * (COLD / hot) ** (number / slices)
            temperature = heat * min(chain.best, chain.reference)
            annealer.advance(chain, int(rng.integers(2**31)), steps, temperature)
            if (number + 1) % max(1, slices // settings.snapshots) == 0:
                best = chain.placement
                priority = best.priority if runtime == "priority" else None
                found.append(Placement(best.devices, priority))
        # What is best without jitter may be much worse with it.
        return found[int(self._calibrator.expect(problem, found, runtime, jitter).argmin())]

    def _predict(
        self, state: State, explanations: FloatArray, jitter: float, found: list[Found]
    ) -> tuple[list[Found], list[int], list[int], FloatArray]:
        """Predict all that may run, and forget what looks worst.

        Returns
        -------
        found : list of Found
            Those that are new, fit and stay.
        dropped : list of int
        numbers : list of int
            Of what is predicted: the champion, what is open, what was found.
        table : float64 array, shape [numbers, 1 + explanations]
            Logarithms of seconds.
        """
        keys = {placement_key(each.placement) for each in state.known.values()}
        new = []
        for each in found:
            key = placement_key(each.placement)
            if key not in keys and self._fits(each.placement, state.runtime):
                keys.add(key)
                new.append(each)
        options = [state.champion, *state.open_placements()]
        if state.trial is not None and state.known[state.challenger] not in options:
            options.append(state.known[state.challenger])
        placements = [each.placement for each in options] + [each.placement for each in new]
        logs = [list(each.logs) for each in options] + [[] for _ in new]
        seen = observations(placements, logs, state.runtime)
        table = self._calibrator.predict(explanations, jitter, seen)
        for row, known in zip(table, options, strict=False):
            if known.logs:
                # What its own runs show beyond the model, the more the more of them there are.
                off = float(np.median(known.logs)) - row
                row += off * len(known.logs) / (len(known.logs) + 1.0)
        scores = (table - table[0]).min(axis=1)
        # The latest samples stay, for the policy to learn from what it does, not from the best.
        drawn = any(each.kind == EPISODE for each in new)
        samples = set() if drawn else set(state.samples)
        rivals = [
            index
            for index, each in enumerate(options)
            if index and not each.runs and each.number not in samples
        ]
        rivals += [
            len(options) + index for index, each in enumerate(new) if each.log_probabilities is None
        ]
        rivals.sort(key=lambda index: float(scores[index]))
        worst = set(rivals[state.learning.untried :])
        limit = table[0, 0] + math.log1p(state.guard.margin)
        worst |= {
            len(options) + index
            for index, each in enumerate(new)
            if each.log_probabilities is not None and table[len(options) + index, 0] > limit
        }
        kept = [index for index in range(len(table)) if index not in worst]
        dropped = [options[index].number for index in sorted(worst) if index < len(options)]
        found = [new[index - len(options)] for index in kept if index >= len(options)]
        numbers = [options[index].number for index in kept if index < len(options)]
        numbers += range(state.next_number, state.next_number + len(found))
        return found, dropped, numbers, table[kept]

    def _problem(self, values: FloatArray) -> Problem:
        """Return the problem that an explanation makes of the one believed in."""
        key = values.tobytes()
        if key not in self._problems:
            if len(self._problems) > KEPT_PROBLEMS:
                del self._problems[next(iter(self._problems))]
            factors = factors_of(values, self.believed.n_devices)
            self._problems[key] = factors.problem(self.believed)
        return self._problems[key]

    def _fits(self, placement: Placement, runtime: str) -> bool:
        try:
            check_memory(self.believed, placement, runtime)
        except MemoryLimitError:
            return False
        return True

    # The weights of the policy.

    def _load(self, state: State) -> None:
        if state.weights != self._weights:
            self._updated.restore(read_weights(self.directory, state.weights) or self._first)
            self._weights = state.weights

    def _save(self, state: State) -> str:
        """Write the weights under their digest; all but these and the two before go."""
        content = save(self._updated.tensors())
        digest = hashlib.sha256(content).hexdigest()[:16]
        write_atomic(weights_path(self.directory, digest), content)
        names = (digest, state.weights, state.former_weights)
        kept = {weights_path(self.directory, name) for name in names if name is not None}
        for path in self.directory.glob("weights-*.safetensors"):
            if path not in kept:
                path.unlink()
        return digest


def read_policy(first: Path, digest: str | None) -> DualPolicy:
    """Return the policy of a refinement, given the file of the one that it began with.

    Raises
    ------
    CheckpointError
        If a file is missing or corrupt.
    """
    policy = load_policy(first)
    tensors = read_weights(first.parent, digest)
    if tensors is not None:
        policy.load_state_dict(tensors_of(tensors, "policy/"))
    return policy


def weights_path(directory: Path, digest: str) -> Path:
    """Return the file of the policy's weights with a digest."""
    return directory / f"weights-{digest}.safetensors"


def read_weights(directory: Path, digest: str | None) -> dict[str, Tensor] | None:
    """Read the policy's weights; None: there are none, or they are lost.

    Raises
    ------
    CheckpointError
        If the file is corrupt.
    """
    if digest is None:
        return None
    path = weights_path(directory, digest)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    if hashlib.sha256(content).hexdigest()[:16] != digest:
        raise CheckpointError(
            f"{path}: corrupt; remove it to go on with the policy that the refinement began with"
        )
    return load(content)
