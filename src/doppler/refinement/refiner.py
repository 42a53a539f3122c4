"""Stage III: a deployed placement that goes on improving from the seconds it really takes."""

from __future__ import annotations

import copy
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from filelock import FileLock, Timeout

from doppler.errors import DopplerError
from doppler.messages import shown_value
from doppler.placement import Placement
from doppler.policy.checkpoint import PRETRAINED, load_policy
from doppler.policy.network import DualPolicy
from doppler.portfolio import warm_up
from doppler.problem import Problem
from doppler.refinement.calibration import trace_factors
from doppler.refinement.history import CHAMPION, History
from doppler.refinement.learner import Learner, Plan
from doppler.refinement.settings import ErrorBudget, Guard
from doppler.torch_threads import one_torch_thread, set_torch_threads
from doppler.trace import Trace

LEARN_SHARE = 0.01
CHECKPOINT_SECONDS = 10.0
# Seconds of learning that may be saved up, so that a pause does not lead to a burst.
SAVED = 0.005
# Seconds that a champion's run may wait to be taken in, so that the thread need not wake up for
# each; and after which the thread sleeps until it is called.
PATIENCE, DROWSY = 0.1, 2.0

logger = logging.getLogger(__name__)


class _Outcome(NamedTuple):
    plan: Plan
    makespan: float | None
    trace: Trace | None
    failed: str

    @property
    def urgent(self) -> bool:
        """Whether the next run depends on it: it explored, or it failed."""
        return self.plan.kind != CHAMPION or self.makespan is None


class Refiner:
    """Hands out the placements of production runs and learns from what they take.

    Before each run ask :meth:`next` for its placement; after it call :meth:`observe`, or
    :meth:`failed`. Most runs use the working champion. Others explore, as far as the guard allows,
    and serve to fit the simulator to the real system, to find better placements on the fitted
    simulator, and to train the policy. A placement becomes the working champion once runs of it by
    turns with the champion's show with confidence that it is faster.

    Whatever fails in learning, production goes on with the champion; see :attr:`error`.

    Parameters
    ----------
    problem : Problem
        The graph on the cluster as it is believed to be.
    champion : Placement
        What production runs today.
    policy : DualPolicy, optional
        The policy to refine; it is copied. Default: the one that comes with the package.
    directory : path-like, optional
        Where the state is kept, so that it survives the process, however that ends. One refiner at
        a time may use it.
    guard : Guard, optional
        What exploring may cost.
    budget : ErrorBudget, optional
        Of false promotions.
    seed : int
    runtime : {"priority", "fifo"}
        The run-time that production uses.
    learn_share : float
        Share of one core that learning may use while a run is under way, over 0 to 1; between runs
        it uses as much as there is to do.
    background : bool
        False: there is no thread, and :meth:`observe` does all learning before it returns. Then
        equal measurements lead to equal plans.

    Raises
    ------
    DopplerError
        If the champion does not suit the problem; if the directory belongs to another problem, is
        in use, or holds corrupt files; if ``learn_share`` is out of range.

    Examples
    --------
    >>> with Refiner(problem, champion, directory="refinement") as refiner:  # doctest: +SKIP
    ...     for batch in batches:
    ...         placement = refiner.next()
    ...         refiner.observe(engine.run(placement).makespan)
    """

    def __init__(
        self,
        problem: Problem,
        champion: Placement,
        *,
        policy: DualPolicy | None = None,
        directory: str | Path | None = None,
        guard: Guard | None = None,
        budget: ErrorBudget | None = None,
        seed: int = 0,
        runtime: str = "priority",
        learn_share: float = LEARN_SHARE,
        background: bool = True,
    ) -> None:
        if not 0.0 < learn_share <= 1.0:
            raise DopplerError(f"learn_share is {learn_share}, must be over 0 and at most 1")
        if runtime not in ("priority", "fifo"):
            raise DopplerError(f"runtime is {runtime!r}, must be 'priority' or 'fifo'")
        if policy is None:
            policy = load_policy(PRETRAINED)
        self._held = _hold(directory)
        try:
            with one_torch_thread():
                warm_up(policy)
                self._learner = Learner(
                    problem,
                    champion,
                    policy,
                    guard or Guard(),
                    seed % 2**32,
                    runtime,
                    directory,
                    budget,
                )
        except BaseException:
            if self._held is not None:
                self._held.release()
            raise
        self.learn_share = learn_share
        # Guards what both threads read or change; held for a moment only.
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._prepared: deque[Plan] = deque()
        self._inbox: deque[_Outcome] = deque()
        self._running: Plan | None = None
        self._usual = self._learner.usual
        self._shown_policy = copy.deepcopy(self._learner.policy)
        self._policy_lock = threading.Lock()
        self._since = 0.0
        self._flown = 0.0
        self._saved = time.perf_counter()
        self._closed = False
        self._error: BaseException | None = None
        self._learning = False
        self._asleep = False
        self._thread: threading.Thread | None = None
        if background:
            self._thread = threading.Thread(target=self._live, name="doppler-refiner", daemon=True)
            self._thread.start()

    # Production's side: no computing, no files.

    def next(self) -> Placement:
        """Return the placement of the coming run.

        Raises
        ------
        DopplerError
            If the run before has not been reported, or the refiner is closed.
        """
        with self._lock:
            self._check_open()
            if self._running is not None:
                raise DopplerError(
                    "next() was called before the run that it gave a placement for was reported; "
                    "call observe() or failed() first"
                )
            if self._thread is None and self._error is None:
                self._prepared.append(self._learner.plan())
            plan = self._prepared.popleft() if self._prepared else self._usual
            self._running = plan
            self._since = time.perf_counter()
            return plan.option.placement

    def observe(self, makespan: float, *, trace: Trace | None = None) -> None:
        """Report what the run took.

        Parameters
        ----------
        makespan : float
            Measured seconds.
        trace : Trace, optional
            What ran when: speeds up learning a lot, since it shows every device and link directly.

        Raises
        ------
        DopplerError
            If no run is under way, the makespan is not a positive number, the trace is of another
            graph or cluster, or the refiner is closed. The run then stays under way.
        """
        try:
            seconds = float(makespan) if isinstance(makespan, Real) else math.nan
        except OverflowError:
            seconds = math.inf
        if not 0.0 < seconds < math.inf:
            raise DopplerError(
                f"observe: the makespan is {shown_value(makespan)}, must be seconds > 0"
            )
        problem = self._learner.believed
        if trace is not None and (
            trace.op.size != problem.n_ops or len(trace.device_names) != problem.n_devices
        ):
            raise DopplerError(
                f"observe: a trace of {trace.op.size} ops on {len(trace.device_names)} devices, "
                f"but the problem has {problem.n_ops} on {problem.n_devices}"
            )
        self._report(seconds, trace, "")

    def failed(self, reason: str) -> None:
        """Report that the run failed: its placement is not tried again, the champion is next.

        Parameters
        ----------
        reason : str
            Kept in the journal.

        Raises
        ------
        DopplerError
            If no run is under way, or the refiner is closed.
        """
        self._report(None, None, str(reason))

    def close(self) -> None:
        """Take in what was reported, write the state, end the thread. Again: nothing happens.

        Raises
        ------
        DopplerError
            If learning had stopped on an error, or the state cannot be written.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._news.notify()
        if self._thread is not None:
            self._thread.join()
        try:
            if self._error is None:
                self._finish()
        finally:
            if self._held is not None:
                self._held.release()
        if isinstance(self._error, DopplerError):
            raise self._error
        if self._error is not None:
            raise DopplerError(f"learning stopped: {self._error!r}") from self._error

    def __enter__(self) -> Refiner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except DopplerError:
            # What went wrong in the block says more.
            if error is None:
                raise

    # What can be asked at any time.

    @property
    def champion(self) -> Placement:
        """The working champion."""
        return self._usual.option.placement

    @property
    def policy(self) -> DualPolicy:
        """A copy of the policy as it is by now."""
        with self._policy_lock:
            return copy.deepcopy(self._shown_policy)

    @property
    def problem(self) -> Problem:
        """The graph on the cluster as measured; its ``cluster`` can be saved."""
        return self._learner.problem

    @property
    def history(self) -> History:
        """All runs that the learner has taken in, those of earlier processes included."""
        return self._learner.history

    @property
    def mean_regret(self) -> float:
        """Running mean of the regret, see :class:`~doppler.refinement.guard.Guard`."""
        return self._learner.ledger.mean

    @property
    def learning(self) -> bool:
        """Whether the thread has something to learn from that it has not been through yet."""
        return self._learning

    @property
    def error(self) -> BaseException | None:
        """What stopped learning, if anything did."""
        return self._error

    # The learner's side.

    def _check_open(self) -> None:
        if self._closed:
            raise DopplerError("the refiner is closed; make another one to go on")

    def _report(self, makespan: float | None, trace: Trace | None, failed: str) -> None:
        with self._lock:
            self._check_open()
            if self._running is None:
                what = "failed()" if makespan is None else "observe()"
                raise DopplerError(f"{what} was called, but no run is under way; call next() first")
            outcome = _Outcome(self._running, makespan, trace, failed)
            self._running = None
            self._flown += time.perf_counter() - self._since
            if makespan is None:
                # What is prepared counts on a champion that runs.
                self._prepared.clear()
                if outcome.plan.option is self._usual.option:
                    # At once: the thread may take its time.
                    self._usual = Plan(self._learner.before(self._usual.option), CHAMPION)
            if self._thread is not None:
                if self._error is None:
                    self._inbox.append(outcome)
                    if outcome.urgent or self._asleep:
                        self._news.notify()
                return
        if self._error is None:
            try:
                with one_torch_thread():
                    self._learn_from(outcome)
            except Exception as error:
                self._give_up(error)

    def _learn_from(self, outcome: _Outcome) -> None:
        """Take in one run and do all learning, in production's own thread."""
        self._take_in(outcome)
        for _ in self._learner.work():
            pass
        self._show_policy()
        self._save_at_times()

    def _take_in(self, outcome: _Outcome) -> None:
        shown = None
        if outcome.trace is not None:
            shown = trace_factors(self._learner.believed, outcome.trace)
        self._learner.record(outcome.plan, outcome.makespan, shown, outcome.failed)
        with self._lock:
            if not any(each.makespan is None for each in self._inbox):
                self._usual = self._learner.usual

    def _show_policy(self) -> None:
        with self._policy_lock:
            self._shown_policy.load_state_dict(self._learner.policy.state_dict())

    def _prepare(self) -> None:
        """Plan an exploring run, if all that matters for it is known; champions need no plan."""
        with self._lock:
            if self._prepared or not self._may_explore:
                return
            ahead = len(self._inbox) + (self._running is not None)
        plan = self._learner.plan(ahead)
        with self._lock:
            if plan.kind != CHAMPION and self._may_explore:
                self._prepared.append(plan)

    @property
    def _may_explore(self) -> bool:
        """Whether every exploring run, and every one that failed, has been taken in."""
        running = self._running
        settled = running is None or running.kind == CHAMPION
        return settled and not self._closed and not any(each.urgent for each in self._inbox)

    def _finish(self) -> None:
        while self._inbox:
            self._take_in(self._inbox.popleft())
        self._learner.close()

    def _live(self) -> None:
        try:
            set_torch_threads(1)
            self._learn()
        except BaseException as error:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        self._error = error
        with self._lock:
            self._prepared.clear()
            self._inbox.clear()
        logger.error("learning stopped, production goes on with the champion: %s", error)

    def _save_at_times(self) -> None:
        now = time.perf_counter()
        if now - self._saved > CHECKPOINT_SECONDS:
            self._learner.save()
            self._saved = now

    def _learn(self) -> None:
        work: Iterator[None] | None = None
        debt, flown = 0.0, 0.0
        at = taken = time.perf_counter()
        while True:
            now = time.perf_counter()
            with self._lock:
                # Credit at the full rate between runs, at a small one during them.
                running = self._running is not None
                total = self._flown + (now - self._since if running else 0.0)
                flight = min(total - flown, now - at)
                debt -= self.learn_share * flight + (now - at - flight)
                debt, flown, at = max(debt, -SAVED), total, now
                busy = work is not None or self._learner.has_work
                waiting = bool(self._inbox)
                self._learning = busy or waiting
                if self._closed and not waiting:
                    return
                able = busy and debt <= 0.0
                due = waiting and (
                    able
                    or self._closed
                    or now - taken >= PATIENCE
                    or any(each.urgent for each in self._inbox)
                )
                if not (able or due):
                    self._asleep = not busy and not waiting and now - taken > DROWSY
                    rate = self.learn_share if running else 1.0
                    pause = min(debt / rate, PATIENCE) if busy else PATIENCE
                    self._news.wait(None if self._asleep else max(pause, 1e-4))
                    self._asleep = False
                    continue
            begin = time.perf_counter()
            if due:
                taken = begin
                while self._inbox:
                    self._take_in(self._inbox.popleft())
                self._prepare()
            else:
                work = work or self._learner.work()
                try:
                    next(work)
                except StopIteration:
                    work = None
                    self._show_policy()
                    self._save_at_times()
                    self._prepare()
            debt += time.perf_counter() - begin


def _hold(directory: str | Path | None) -> FileLock | None:
    """Lock a directory for this process."""
    if directory is None:
        return None
    path = Path(directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / "lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise DopplerError(
            f"{path}: another refiner uses this directory; close it, or give another directory"
        ) from None
    except OSError as error:
        raise DopplerError(
            f"{path}: cannot be used ({error.strerror}); give another directory"
        ) from None
    return lock
