"""List schedules, restarted with other draws and other weights."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.heuristics.attempts import Attempt, restart, restart_seed
from doppler.heuristics.base import Solution
from doppler.heuristics.incumbent import Incumbent, offer
from doppler.kernels import kernel
from doppler.problem import Problem
from doppler.schedule.free_memory import FreeMemory, make_free_memory
from doppler.schedule.list_schedule import ListWeights, list_schedule, make_list_scratch
from doppler.simulator.kernel import Workspace

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]


class Rule(NamedTuple):
    """How a list schedule chooses.

    Attributes
    ----------
    level : float64 array, shape [ops]
        Higher goes first.
    weights : ListWeights
    hint : int32 array, shape [ops] or [0]
        See :func:`doppler.schedule.list_schedule.list_schedule`.
    drawn : bool
        Whether equal ops and equal devices are drawn.
    unit : float
        Of restarts: seconds that their noise is measured in. 0: all have the same weights.
    """

    level: FloatArray
    weights: ListWeights
    hint: IntArray
    drawn: bool
    unit: float


def no_hinted_devices() -> IntArray:
    """Return the hint of a rule that has none."""
    return np.empty(0, np.int32)


@kernel
def _restarts(  # type: ignore[no-untyped-def]
    arrays, rule, seed, first, count, limited, memory, scratch, work, devices, priority, incumbent
):
    order = np.empty(len(devices), np.int32)
    tied = np.empty((0, arrays.compute.shape[1]), np.bool_)
    level, hint, drawn = rule.level, rule.hint, rule.drawn
    for index in range(first, first + count):
        own = restart_seed(seed, index)
        weights = rule.weights
        if rule.unit > 0.0 and index > 0:
            np.random.seed(own)
            affinity = weights.affinity * 4.0 ** np.random.uniform(-1.0, 1.0)
            transfer = weights.transfer * 4.0 ** np.random.uniform(-1.0, 1.0)
            noise = rule.unit * 10.0 ** np.random.uniform(-6.0, -0.5)
            weights = ListWeights(weights.compute, affinity, transfer, noise, weights.hint)
            own = np.random.randint(0, 2**31)
        list_schedule(
            arrays, level, weights, hint, drawn, own, memory, scratch, order, devices, tied
        )
        for step in range(len(order)):
            priority[order[step]] = step
        offer(arrays, devices, priority, index, limited, memory.usable, work, incumbent)


def restart_rule(
    problem: Problem, rule: Rule, *, budget: float, seed: int, origin: str
) -> Solution:
    """Make list schedules by a rule until the budget ends, at least one, on every core.

    The first has the rule's own weights; the restarts of a rule with a ``unit`` draw those of
    affinity and transfers log-uniformly from 1/4 to 4 times as much, and noise.

    Raises
    ------
    MemoryLimitError
        If none of the placements fits in memory.
    """
    arrays = problem.arrays
    limited = problem.may_overflow
    seed = int(seed) % 2**32

    def make_attempt(memory: FreeMemory, work: Workspace, incumbent: Incumbent) -> Attempt:
        scratch = make_list_scratch(arrays)
        devices = np.empty(problem.n_ops, np.int32)
        priority = np.empty(problem.n_ops, np.int32)

        def attempt(first: int, count: int) -> None:
            _restarts(
                arrays,
                rule,
                seed,
                first,
                count,
                limited,
                memory,
                scratch,
                work,
                devices,
                priority,
                incumbent,
            )

        return attempt

    return restart(problem, make_attempt, budget=budget, origin=origin)


def schedule_by_rule(
    problem: Problem, rule: Rule, seed: int = 0, *, with_ties: bool = True
) -> tuple[IntArray, IntArray, BoolArray]:
    """Make one list schedule by a rule.

    Memory is respected as far as parameters go; the schedule is not simulated.

    Returns
    -------
    order : int32 array, shape [ops]
        The ops in the order in which they were chosen.
    devices : int32 array, shape [ops]
        Device of each op.
    tied : bool array, shape [ops, devices], or [0, devices] without ties
        By step: the devices that were equally good for ``order[step]``.
    """
    arrays = problem.arrays
    order = np.empty(problem.n_ops, np.int32)
    devices = np.empty(problem.n_ops, np.int32)
    tied = np.empty((problem.n_ops if with_ties else 0, problem.n_devices), np.bool_)
    list_schedule(
        arrays,
        rule.level,
        rule.weights,
        rule.hint,
        rule.drawn,
        int(restart_seed(int(seed) % 2**32, 0)),
        make_free_memory(arrays),
        make_list_scratch(arrays),
        order,
        devices,
        tied,
    )
    return order, devices, tied
