"""The loop that both stages share: optimizer, schedule, metrics, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from doppler.errors import CheckpointError
from doppler.policy.network import DualPolicy
from doppler.settings import Count, Positive, Settings
from doppler.tensors import read_tensors, write_tensors
from doppler.torch_threads import one_torch_thread
from doppler.training.incumbent import Incumbents
from doppler.training.optimizer_state import restore_training, tensors_of, training_tensors

FORMAT = "doppler-training-state"
# Seconds of training that a killed run loses at most.
CHECKPOINT_SECONDS = 10.0

Validate = Callable[[], float]
Update = Callable[[int], dict[str, float]]
Progress = Callable[[int, int, Mapping[str, float]], None]


class MetricSink(Protocol):
    """Receives metrics, see :mod:`doppler.tracking`."""

    def begin(self, after: int) -> None:
        """Say that the run begins, or resumes, ``after`` that step."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record ``metrics`` of ``step``."""


class Schedule(Settings):
    """How to optimize.

    Attributes
    ----------
    updates : int
    learning_rate, final_learning_rate : float
        Of Adam (Kingma and Ba, 2015); falls geometrically from one to the other.
    gradient_norm : float
        Longer gradients are scaled down to it.
    log_every : int
        Updates between two rows of metrics, which are means over them.
    """

    updates: Count
    learning_rate: Positive = 1e-3
    final_learning_rate: Positive = 1e-4
    gradient_norm: Positive = 1.0
    log_every: Count = 10


class Loop:
    """Runs updates of a policy and survives being killed between any two of them.

    What an update draws depends on its number alone, so a run that resumes from a checkpoint ends
    with the same weights and metrics as one that was never stopped.

    Parameters
    ----------
    policy : DualPolicy
        Changed in place.
    schedule : Schedule
    digest : str
        Identifies the run; a checkpoint with another digest is not continued but replaced.
    state : path-like, optional
        Checkpoint file. Left out: none is written.
    tracker : MetricSink, optional
    progress : callable, optional
        Called after every update with (done, all, metrics).
    checkpoint_seconds : float
        Time between two checkpoints.
    """

    def __init__(
        self,
        policy: DualPolicy,
        schedule: Schedule,
        digest: str,
        *,
        state: str | Path | None = None,
        tracker: MetricSink | None = None,
        progress: Progress | None = None,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
    ) -> None:
        self.policy = policy
        self.schedule = schedule
        self.digest = digest
        self.state = None if state is None else Path(state)
        self.tracker = tracker
        self.progress = progress
        self.checkpoint_seconds = checkpoint_seconds
        self.incumbents = Incumbents()
        self.optimizer = torch.optim.Adam(policy.parameters(), schedule.learning_rate, fused=True)
        self._sums: dict[str, float] = {}
        self._summed = 0
        self._best_score = math.inf
        self._best: dict[str, Tensor] = {}

    def run(
        self, update: Update, validate: Validate | None = None, validate_every: int = 1
    ) -> None:
        """Run the updates that are left; afterwards the checkpoint is gone.

        Parameters
        ----------
        update : callable
            From the number of the update to its metrics; adds to the parameters' ``grad``.
        validate : callable, optional
            Gives the policy's score, the lower the better. The policy ends with the weights that
            had the lowest, those that it started with included.
        validate_every : int
            Updates between two validations.

        Raises
        ------
        CheckpointError
            If the checkpoint file is corrupt or something else; the policy is left as it was.
        """
        with one_torch_thread():
            self._run(update, validate, validate_every)

    def _run(self, update: Update, validate: Validate | None, validate_every: int) -> None:
        schedule = self.schedule
        begin = self._restore()
        if validate is not None and begin == 0:
            self._keep(validate())
        if self.tracker is not None:
            self.tracker.begin(begin)
        saved = time.monotonic()
        for number in range(begin, schedule.updates):
            share = number / max(1, schedule.updates - 1)
            rate = (
                schedule.learning_rate
                * (schedule.final_learning_rate / schedule.learning_rate) ** share
            )
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.zero_grad()
            metrics = update(number)
            norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), schedule.gradient_norm)
            self.optimizer.step()
            if validate is not None and (
                (number + 1) % validate_every == 0 or number + 1 == schedule.updates
            ):
                self._keep(validate())
            if validate is not None:
                metrics["best_score"] = self._best_score
            self._log(number + 1, {**metrics, "gradient_norm": float(norm), "learning_rate": rate})
            # Not after the last: a run that resumes logs the last metrics again.
            last = number + 1 == schedule.updates
            if not last and time.monotonic() - saved >= self.checkpoint_seconds:
                self._save(number + 1)
                saved = time.monotonic()
        if validate is not None:
            self.policy.load_state_dict(self._best)
        if self.state is not None:
            self.state.unlink(missing_ok=True)

    def _keep(self, score: float) -> None:
        if score < self._best_score:
            self._best_score = score
            self._best = {name: each.clone() for name, each in self.policy.state_dict().items()}

    def _log(self, done: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._summed += 1
        if done % self.schedule.log_every == 0 or done == self.schedule.updates:
            if self.tracker is not None:
                means = {name: total / self._summed for name, total in self._sums.items()}
                self.tracker.log(means, done)
            self._sums, self._summed = {}, 0
        if self.progress is not None:
            self.progress(done, self.schedule.updates, metrics)

    def _save(self, done: int) -> None:
        if self.state is None:
            return
        tensors = training_tensors(self.policy, self.optimizer)
        tensors |= {f"best/{k}": v for k, v in self._best.items()}
        tensors |= {f"incumbent/{k}": v for k, v in self.incumbents.tensors().items()}
        header = {
            "format": FORMAT,
            "digest": self.digest,
            "done": done,
            "sums": self._sums,
            "summed": self._summed,
            "best_score": self._best_score if self._best else None,
            "incumbents": self.incumbents.header(),
        }
        write_tensors(self.state, {k: v.numpy() for k, v in tensors.items()}, header)

    def _restore(self) -> int:
        """Take up the checkpoint of this run, if there is one; return the updates done."""
        if self.state is None or not self.state.exists():
            return 0
        fix = "remove it to start anew"
        header, arrays = read_tensors(self.state, "training checkpoint", FORMAT, fix=fix)
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        if header.get("digest") != self.digest:
            return 0
        before = {name: tensor.clone() for name, tensor in self.policy.state_dict().items()}
        try:
            return self._take_up(header, tensors)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            self.policy.load_state_dict(before)
            raise CheckpointError(
                f"{self.state}: parts of this training checkpoint are missing or changed; "
                "remove it to start anew"
            ) from None

    def _take_up(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> int:
        done = int(header["done"])
        if not 0 <= done <= self.schedule.updates:
            raise ValueError("more updates are done than the schedule has")
        restore_training(self.policy, self.optimizer, tensors)
        self.incumbents.restore(header["incumbents"], tensors_of(tensors, "incumbent/"))
        self._sums, self._summed = dict(header["sums"]), int(header["summed"])
        if header["best_score"] is not None:
            best = tensors_of(tensors, "best/")
            shapes = {name: each.shape for name, each in self.policy.state_dict().items()}
            if {name: each.shape for name, each in best.items()} != shapes:
                raise ValueError("the best weights are not the policy's")
            self._best_score, self._best = float(header["best_score"]), best
        return done
