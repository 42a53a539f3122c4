"""Stage III: a deployed placement that goes on improving from the seconds it really takes."""

from __future__ import annotations

import logging
import math
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Collection
from contextlib import ExitStack
from functools import partial
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from doppler.checks import (
    RUNTIMES,
    check_items,
    check_name,
    check_number,
    check_path,
    check_type,
    check_whole,
)
from doppler.clock import utc_now
from doppler.cluster import save_cluster
from doppler.errors import DopplerError, LockedError, ParamsError
from doppler.graph.formats import save_graph
from doppler.locks import hold
from doppler.messages import shown_value
from doppler.placement import Placement
from doppler.policy.checkpoint import PRETRAINED, load_frozen, load_policy, save_policy
from doppler.problem import Problem
from doppler.refinement.calibration import trace_factors
from doppler.refinement.candidates import same_placement
from doppler.refinement.events import PARTS, Begun, Configured, Event, Ran, parse_event
from doppler.refinement.guard import FIRST
from doppler.refinement.history import RunHistory
from doppler.refinement.journal import Journal
from doppler.refinement.planning import Decision, decide, usual
from doppler.refinement.settings import ErrorBudget, Guard, LearningSettings
from doppler.refinement.state import State, fold
from doppler.refinement.worker import CLUSTER, GRAPH, JOURNAL, POLICY, LearnerProcess
from doppler.simulator import check_memory
from doppler.torch_threads import one_torch_thread
from doppler.trace import Trace

if TYPE_CHECKING:
    from doppler.policy.network import DualPolicy
    from doppler.refinement.learning import Learner

SingleArray = npt.NDArray[np.float32]

logger = logging.getLogger(__name__)


# Idle cores are not free: where cores are shared out by containers or sessions, all that learning
# uses counts against production.
LEARN_SHARE = 0.02


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
        The policy to refine; it is copied. Default: the one that comes with the package. A
        directory that holds a refinement goes on with its own.
    directory : path-like, optional
        Where the state is kept, so that it survives the process, however that ends. One refiner at
        a time may use it.
    guard : Guard, optional
        What exploring may cost.
    budget : ErrorBudget, optional
        Of false promotions.
    learning : LearningSettings, optional
        What it learns by.
    seed : int
    runtime : {"priority", "fifo"}
        The run-time that production uses.
    learn_share : float
        Share of one core that learning in the background may use, over 0 to 1.
    background : bool
        True: a process of its own learns while production goes on, at the lowest priority. False:
        :meth:`observe` does all learning before it returns. Then equal measurements lead to equal
        decisions.
    parts : collection of str
        What it may learn by, of :data:`~doppler.refinement.events.PARTS`, to see what each
        contributes.

    Raises
    ------
    DopplerError
        If the champion does not suit the problem; if the directory belongs to another problem, is
        in use, or holds corrupt files.

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
        learning: LearningSettings | None = None,
        seed: int = 0,
        runtime: str = "priority",
        learn_share: float = LEARN_SHARE,
        background: bool = True,
        parts: Collection[str] = PARTS,
    ) -> None:
        if runtime not in RUNTIMES:
            raise DopplerError(f"runtime is {runtime!r}, must be 'priority' or 'fifo'")
        check_number(learn_share, "learn_share", 0.0, 1.0, above=True)
        for part in check_items(parts, str, "parts"):
            check_name(part, "part", PARTS)
        check_type(champion, Placement, "champion").validate(problem)
        if policy is not None and not hasattr(policy, "frozen"):
            raise ParamsError(f"policy is {shown_value(policy)}, must be a DualPolicy")
        asked = Configured(
            seed=check_whole(seed, "seed", -(2**63)) % 2**32,
            guard=check_type(guard or Guard(), Guard, "guard"),
            budget=check_type(budget or ErrorBudget(), ErrorBudget, "budget"),
            learning=check_type(learning or LearningSettings(), LearningSettings, "learning"),
        )
        check_memory(problem, champion, runtime)
        # One thread of production may ask while another reports.
        self._lock = threading.Lock()
        self._running: Decision | None = None
        self._error: BaseException | None = None
        self._closed = False
        with ExitStack() as stack:
            if directory is None:
                directory = tempfile.mkdtemp(prefix="doppler-")
                # What was learned can be asked for as long as there is somebody to ask.
                weakref.finalize(self, _undo, os.getpid(), partial(shutil.rmtree, directory, True))
            self._directory = _hold(directory, stack)
            if not (self._directory / POLICY).exists():
                save_policy(policy or load_frozen(PRETRAINED), self._directory / POLICY)
            self._journal = Journal(self._directory / JOURNAL)
            stack.callback(self._journal.close)
            begun = Begun(
                fingerprint=problem.fingerprint,
                runtime=runtime,  # type: ignore[arg-type]
                devices=champion.devices,
                priority=champion.priority,
                parts=tuple(part for part in PARTS if part in parts),
            )
            self._state = self._open(problem, begun)
            # Equal, and the object that production knows.
            self._state.known[FIRST].placement = champion
            self._configure(asked)
            self._learner: Learner | LearnerProcess
            if background:
                save_graph(problem.graph, self._directory / GRAPH)
                save_cluster(problem.cluster, self._directory / CLUSTER)
                self._learner = LearnerProcess(self._directory, learn_share)
            else:
                # Imported late: what learns in another process needs no torch in this one.
                from doppler.refinement.learning import Learner

                first = load_policy(self._directory / POLICY)
                self._learner = Learner(problem, first, self._directory)
            stack.callback(self._learner.close)
            self._stack = stack.pop_all()
        # Called before the one above: what learns must not write into a directory that is gone.
        weakref.finalize(self, _undo, os.getpid(), self._stack.close)
        self._go_on()

    # What production calls.

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
            self._running = self._decision
            return self._running.known.placement

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
        problem = self._state.believed
        shown = None
        if trace is not None:
            check_type(trace, Trace, "observe: the trace")
            if trace.op.size != problem.n_ops or len(trace.device_names) != problem.n_devices:
                raise DopplerError(
                    f"observe: a trace of {trace.op.size} ops on {len(trace.device_names)} "
                    f"devices, but the problem has {problem.n_ops} on {problem.n_devices}"
                )
            try:
                shown = _factors(problem, trace)
            except (IndexError, ValueError) as error:
                raise DopplerError(f"observe: the trace contradicts itself ({error})") from None
        self._report("observe()", seconds, shown, "")

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
        # Half a character, as in a name that is not UTF-8, is no text that a file can hold.
        self._report("failed()", None, None, str(reason).encode(errors="replace").decode())

    def close(self) -> None:
        """End learning and let go of the directory. Again: nothing happens.

        Raises
        ------
        DopplerError
            If learning had stopped on an error.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._stack.close()
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
        return self._state.champion.placement

    @property
    def policy(self) -> DualPolicy:
        """A copy of the policy as it is by now.

        Raises
        ------
        CheckpointError
            If its file is damaged.
        """
        from doppler.refinement.learning import read_policy

        return read_policy(self._directory / POLICY, self._state.weights)

    @property
    def problem(self) -> Problem:
        """The graph on the cluster as measured; its ``cluster`` can be saved."""
        with self._lock:
            return self._state.problem

    @property
    def history(self) -> RunHistory:
        """All runs, those of earlier processes included."""
        return self._state.history

    @property
    def mean_regret(self) -> float:
        """Running mean of the regret, see :class:`~doppler.refinement.guard.Guard`."""
        return self._state.ledger.mean

    @property
    def rounds(self) -> int:
        """Rounds of learning so far."""
        return self._state.rounds

    @property
    def learning(self) -> bool:
        """Whether there are runs that nothing was learned from yet."""
        return self._error is None and not self._closed and self._state.fresh

    @property
    def error(self) -> BaseException | None:
        """What stopped learning, if anything did."""
        return self._error

    # The state.

    def _open(self, problem: Problem, begun: Begun) -> State:
        """Take up the journal, or begin it."""
        path = self._journal.path
        if not self._journal.records:
            self._journal.append(begun.model_dump_json())
            return State(problem, begun)
        number = 0
        events: list[Event] = []
        try:
            for number, record in enumerate(self._journal.records, 1):
                events.append(parse_event(record))
                if number == 1:
                    _check(path, events[0], begun, problem)
            number = 0
            return fold(problem, events)
        except (LookupError, ValueError) as error:
            if number == 1:
                raise DopplerError(
                    f"{path}: not a journal of Stage III that this Doppler reads; "
                    "give another directory"
                ) from None
            where = f"line {number} cannot be read" if number else "cannot be taken up"
            why = str(error).splitlines()[0]
            raise DopplerError(
                f"{path}: {where} ({why}); remove {path.parent} to start anew"
            ) from None
        finally:
            self._journal.records.clear()

    def _configure(self, asked: Configured) -> None:
        state = self._state
        now = Configured(
            seed=state.seed, guard=state.guard, budget=state.budget, learning=state.learning
        )
        if asked != now:
            self._append(asked)

    def _append(self, event: Event) -> None:
        """Write an event, then let it happen."""
        try:
            self._journal.append(event.model_dump_json())
            self._state.apply(event)
        except KeyboardInterrupt:
            # Whether the journal holds it is open, so nothing can follow it there.
            self._give_up(DopplerError("interrupted while a run was written down"))
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise DopplerError("the refiner is closed; make another one to go on")

    def _report(
        self, call: str, seconds: float | None, shown: SingleArray | None, reason: str
    ) -> None:
        with self._lock:
            self._check_open()
            running = self._running
            if running is None:
                raise DopplerError(f"{call} was called, but no run is under way; call next() first")
            self._running = None
            event = Ran(
                run=len(self._state.history) + 1,
                time=utc_now(),
                kind=running.kind,
                placement=running.known.number,
                predicted=running.predicted,
                makespan=seconds,
                failed=reason,
                shown=shown,
            )
            if self._error is None:
                try:
                    self._append(event)
                except Exception as error:
                    self._give_up(error)
            if self._error is not None and seconds is None:
                self._state.retire(running.known)
            self._go_on()

    def _go_on(self) -> None:
        """Learn, or see what was learned, and decide on the next run."""
        # For whoever interrupts the learning and goes on.
        self._decision = usual(self._state)
        if self._error is None:
            try:
                if isinstance(self._learner, LearnerProcess):
                    self._exchange(self._learner)
                else:
                    with one_torch_thread():
                        while self._state.fresh:
                            self._append(self._learner.learn(self._state))
                self._decision = decide(self._state)
                return
            except Exception as error:
                self._give_up(error)
                self._decision = usual(self._state)

    def _exchange(self, learner: LearnerProcess) -> None:
        text = learner.answer()
        if text is not None:
            self._append(parse_event(text))
        if self._state.fresh and not learner.busy:
            learner.request(self._journal.size)

    def _give_up(self, error: BaseException) -> None:
        self._error = error
        logger.error("learning stopped, production goes on with the champion: %s", error)


def _factors(problem: Problem, trace: Trace) -> SingleArray:
    """Return what a trace shows of devices and links; nan where that is nothing or no number."""
    with np.errstate(over="ignore"):
        shown = np.concatenate(trace_factors(problem, trace)).astype(np.float32)
    return np.where(np.isfinite(shown), shown, np.float32(np.nan))


def _undo(process: int, undo: Callable[[], object]) -> None:
    """Undo what a process has done, unless this is a fork of it."""
    if os.getpid() == process:
        undo()


def _check(path: Path, found: Event, begun: Begun, problem: Problem) -> None:
    if not isinstance(found, Begun):
        raise ValueError("it does not begin")
    if found.fingerprint != begun.fingerprint:
        raise DopplerError(
            f"{path}: belongs to another problem than {problem.graph.name!r} on "
            f"{problem.cluster.name!r}; give another directory"
        )
    for same, what in (
        (found.runtime == begun.runtime, "another run-time"),
        (found.parts == begun.parts, "other parts"),
        (same_placement(found.champion, begun.champion), "another first champion"),
    ):
        if not same:
            raise DopplerError(f"{path}: began with {what}; give another directory")


def _hold(directory: str | Path, stack: ExitStack) -> Path:
    """Lock a directory for this process."""
    path = check_path(directory, "directory")
    try:
        stack.enter_context(hold(path / "lock"))
    except LockedError:
        raise DopplerError(
            f"{path}: another refiner uses this directory; close it, or give another directory"
        ) from None
    except (DopplerError, ValueError) as error:  # the latter for a null character
        raise DopplerError(f"{error}; give another directory") from None
    return path
