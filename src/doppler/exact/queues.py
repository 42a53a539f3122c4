"""Transfers that take turns on channels, as the simulator queues them, for CP-SAT.

A transfer is asked for as its op ends and begins when its channel has done all that were asked for
before: as the op ends, or as another transfer of the channel does. Of ends at one moment those of
lower devices come first, and of one op's transfers the one whose first consumer has the smaller id.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

from ortools.sat.python import cp_model

from doppler.exact.whole_times import WholeTimes
from doppler.problem import Problem


class _Transfer(NamedTuple):
    """To bring the output of ``op`` to device ``target``; ``sent`` says whether it takes place."""

    op: int
    target: int
    sent: Any
    begin: Any
    arrive: Any


class Queues:
    """Variables and constraints of all transfers.

    Parameters
    ----------
    model : cp_model.CpModel
    problem : Problem
    times : WholeTimes
    on : list of list of literal or None
        Whether an op is on a device.
    end : list of linear expression
        Of each op.
    before : dict
        Literal or 0 or 1 by two ops: whether the first goes first where they share a device.
    horizon : int
    slack : int
        Units by which a begin may be later than what it follows on: 0, or 1 if times are rounded.
    """

    def __init__(
        self,
        model: cp_model.CpModel,
        problem: Problem,
        times: WholeTimes,
        on: list[list[Any]],
        end: list[Any],
        before: dict[tuple[int, int], Any],
        horizon: int,
        slack: int,
    ) -> None:
        self.model = model
        self.times = times
        self.on = on
        self.end = end
        self.before = before
        self.slack = slack
        self.horizon = horizon
        self.channel = problem.arrays.channel
        arrays = problem.arrays
        self.consumers = [
            arrays.succ[arrays.succ_ptr[u] : arrays.succ_ptr[u + 1]].tolist()
            for u in range(problem.n_ops)
        ]
        self.transfers: dict[tuple[int, int], _Transfer] = {}
        for u in range(problem.n_ops):
            for d in range(problem.n_devices):
                if any(on[v][d] is not None for v in self.consumers[u]):
                    self.transfers[u, d] = self._transfer(u, d)
        # Why a transfer begins no sooner.
        self.reasons: dict[tuple[int, int], list[Any]] = {key: [] for key in self.transfers}
        for one, other in combinations(self.transfers.values(), 2):
            self._take_turns(one, other)
        for key, transfer in self.transfers.items():
            at_once = model.new_bool_var("")
            model.add(transfer.begin <= end[key[0]] + slack).only_enforce_if(at_once)
            model.add_bool_or([at_once, ~transfer.sent, *self.reasons[key]])

    def arrival(self, u: int, v: int) -> Any:
        """Return when the output of ``u`` is on the device of ``v``."""
        found = self.model.new_int_var(0, self.horizon, "")
        for d, chosen in enumerate(self.on[v]):
            if chosen is not None:
                self.model.add(found == self.transfers[u, d].arrive).only_enforce_if(chosen)
        return found

    def _sources(self, u: int, target: int) -> list[int]:
        return [a for a, chosen in enumerate(self.on[u]) if chosen is not None and a != target]

    def _transfer(self, u: int, target: int) -> _Transfer:
        model, here = self.model, self.on[u][target]
        wanted = [self.on[v][target] for v in self.consumers[u] if self.on[v][target] is not None]
        sent = model.new_bool_var("")
        local = [] if here is None else [here]
        for one in wanted:
            model.add_bool_or([sent, ~one, *local])
        model.add_bool_or([~sent, *wanted])
        if here is not None:
            model.add_implication(here, ~sent)
        begin = model.new_int_var(0, self.horizon, "")
        arrive = model.new_int_var(0, self.horizon, "")
        model.add(begin >= self.end[u]).only_enforce_if(sent)
        if here is not None:
            model.add(arrive == self.end[u]).only_enforce_if(here)
        for a in self._sources(u, target):
            seconds = int(self.times.transfer[u, a, target])
            both = [sent, self.on[u][a]]
            model.add(arrive == begin + seconds).only_enforce_if(both)
            if self.channel[a, target] < 0:
                model.add(begin <= self.end[u] + self.slack).only_enforce_if(both)
        return _Transfer(u, target, sent, begin, arrive)

    def _take_turns(self, one: _Transfer, other: _Transfer) -> None:
        """Order two transfers, should they share a channel, as they are asked for."""
        model = self.model
        pairs = [
            (a, b)
            for a in self._sources(one.op, one.target)
            for b in self._sources(other.op, other.target)
            if self.channel[a, one.target] == self.channel[b, other.target] >= 0
            and (one.op != other.op or a == b)
        ]
        if not pairs:
            return
        shared, first = model.new_bool_var(""), model.new_bool_var("")
        model.add_implication(shared, one.sent)
        model.add_implication(shared, other.sent)
        for a, b in pairs:
            model.add_bool_or(
                [shared, *(~each for each in self._both(one, other, a, b))],
            )
        for a in self._sources(one.op, one.target):
            for b in self._sources(other.op, other.target):
                if (a, b) not in pairs:
                    model.add_bool_or([~shared, ~self.on[one.op][a], ~self.on[other.op][b]])
        for early, late, ordered in ((one, other, first), (other, one, ~first)):
            model.add(late.begin >= early.arrive).only_enforce_if([shared, ordered])
            follows = model.new_bool_var("")
            model.add_implication(follows, shared)
            model.add_implication(follows, ordered)
            model.add(late.begin <= early.arrive + self.slack).only_enforce_if(follows)
            self.reasons[late.op, late.target].append(follows)
            if early.op == late.op:
                self._by_consumer(early, late, [shared, ordered])
            else:
                self._by_end(early, late, [shared, ordered])

    def _both(self, one: _Transfer, other: _Transfer, a: int, b: int) -> list[Any]:
        return [one.sent, other.sent, self.on[one.op][a], self.on[other.op][b]]

    def _by_end(self, early: _Transfer, late: _Transfer, given: list[Any]) -> None:
        """Ask first for the output of the op that ends first."""
        model = self.model
        model.add(self.end[early.op] <= self.end[late.op]).only_enforce_if(given)
        for a in self._sources(early.op, early.target):
            for b in self._sources(late.op, late.target):
                where = [self.on[early.op][a], self.on[late.op][b]]
                if a == b:
                    ordered = self.before[early.op, late.op]
                    if isinstance(ordered, int):
                        if not ordered:
                            model.add_bool_or([~each for each in (*given, *where)])
                    else:
                        model.add_bool_or([ordered, *(~each for each in (*given, *where))])
                elif a > b and self.times.exact:
                    model.add(self.end[early.op] + 1 <= self.end[late.op]).only_enforce_if(
                        [*given, *where]
                    )

    def _by_consumer(self, early: _Transfer, late: _Transfer, given: list[Any]) -> None:
        """Send first to the device of the consumer with the smallest id."""
        sooner: list[Any] = []
        for v in self.consumers[early.op]:
            there, here = self.on[v][late.target], self.on[v][early.target]
            if there is not None:
                self.model.add_bool_or([~there, *sooner, *(~each for each in given)])
            if here is not None:
                sooner.append(here)
