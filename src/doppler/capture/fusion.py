"""Which calls run together as one op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from doppler.capture.costs import flops, is_heavy, traffic
from doppler.capture.operators import is_view
from doppler.capture.program import Call, Program, Ref

# A device of today, to weigh computing against memory: FLOP/s and bytes/s.
_FLOPS, _BANDWIDTH = 1e13, 1e12
# A call is also cheap beside one that takes so many times as long.
_SHARE = 0.25
#: Share of the longest path below which a call is fused into its neighbor.
FUSE = 0.002


@dataclass(frozen=True, slots=True)
class Group:
    """Calls that run as one op.

    Attributes
    ----------
    calls : tuple of int
        Numbers of its calls in the program, ascending, without the views between them. Only the
        last one's results are read by others.
    """

    calls: tuple[int, ...]

    @property
    def last(self) -> int:
        """The call whose results others read."""
        return self.calls[-1]


class Views:
    """What lies behind the views of a program: they cost nothing, and are no ops of their own."""

    def __init__(self, program: Program) -> None:
        self._n_inputs = len(program.inputs)
        self._calls = program.calls
        self.is_view = [
            is_view(call.op) and len(list(call.refs())) == 1 and _is_ref(call.args)
            for call in program.calls
        ]

    def base(self, ref: Ref) -> Ref:
        """Return the tensor that a view, of a view, is a view of."""
        while ref.value >= self._n_inputs and self.is_view[ref.value - self._n_inputs]:
            ref = self._calls[ref.value - self._n_inputs].args[0]
        return ref

    def chain(self, ref: Ref) -> list[int]:
        """Return the numbers of the view calls between a tensor and its base, the base's first."""
        found = []
        while ref.value >= self._n_inputs and self.is_view[ref.value - self._n_inputs]:
            number = ref.value - self._n_inputs
            found.append(number)
            ref = self._calls[number].args[0]
        return found[::-1]


def fuse(program: Program, views: Views, *, least: float = FUSE) -> list[Group]:
    """Put calls together where no parallelism is lost.

    A call whose result only one other op reads is merged with that one if

    - the reader waits for nothing else, or only for what the call itself had to wait for, so that
      both could not have run at the same time; and one of the two is cheap, or only moves and maps
      elements; or
    - the call is cheap, and what it reads is not larger than what it makes, so that its input may
      be moved in the place of its output. All such calls of an op together are cheap: it ends at
      most so much later than if they had run at the same time.

    Groups have one result. O(calls^2 / 64 + references).

    Parameters
    ----------
    program : Program
    views : Views
        Of the program.
    least : float
        Share of the program's longest path below which a call is cheap; 0: nothing is fused. So
        each chain of a sharded batch is left as many ops as the whole model has.

    Returns
    -------
    list of Group
        In an order in which they can run.
    """
    n_inputs, n_calls = len(program.inputs), len(program.calls)
    seconds = [_seconds(call, program) for call in program.calls]
    producers = [_producers(call, views, n_inputs) for call in program.calls]
    cheap = least * _longest_path(seconds, producers)
    ancestors: list[int] = []
    for reads in producers:
        above = 0
        for producer in reads:
            above |= ancestors[producer] | 1 << producer
        ancestors.append(above)
    readers: list[set[int]] = [set() for _ in range(n_calls)]
    for number, reads in enumerate(producers):
        if not views.is_view[number]:
            for producer in reads:
                readers[producer].add(number)
    kept = {views.base(ref).value - n_inputs for each in program.outputs for ref, _ in each.pieces}
    group_of = list(range(n_calls))
    members: dict[int, list[int]] = {}
    work: dict[int, float] = {}
    needs: dict[int, set[int]] = {}
    # Seconds of the calls of a group that could have run at the same time as others of it.
    late: dict[int, float] = {}
    heavy: set[int] = set()
    for call in range(n_calls - 1, -1, -1):
        if views.is_view[call]:
            continue
        groups = {group_of[reader] for reader in readers[call]}
        if least > 0 and len(groups) == 1 and call not in kept:
            (group,) = groups
            others = needs[group] - {call}
            own, rest = seconds[call], work[group]
            in_turn = all(ancestors[call] >> other & 1 for other in others)
            if in_turn:
                light = not is_heavy(program.calls[call].op) or group not in heavy
                merged = light or min(own, rest) <= max(cheap, _SHARE * max(own, rest))
            else:
                apart = late[group] + own
                merged = apart <= cheap and _stays_small(program, call, producers[call], others)
                late[group] = apart if merged else late[group]
            if merged:
                group_of[call] = group
                members[group].append(call)
                work[group] = own + rest
                if is_heavy(program.calls[call].op):
                    heavy.add(group)
                needs[group] = others | producers[call]
                continue
        members[call] = [call]
        if is_heavy(program.calls[call].op):
            heavy.add(call)
        work[call], late[call] = seconds[call], 0.0
        needs[call] = set(producers[call])
    return [Group(tuple(sorted(members[last]))) for last in sorted(members)]


def _longest_path(seconds: Sequence[float], producers: Sequence[set[int]]) -> float:
    ends: list[float] = []
    for own, reads in zip(seconds, producers, strict=True):
        ends.append(own + max((ends[producer] for producer in reads), default=0.0))
    return max(ends, default=0.0)


def _stays_small(program: Program, call: int, reads: set[int], already: set[int]) -> bool:
    """Whether moving what a call reads takes no longer than moving what it makes."""
    moved = sum(_size(program.calls[producer]) for producer in reads - already)
    return moved <= _size(program.calls[call])


def _size(call: Call) -> int:
    return sum(meta.bytes for meta in call.results if meta is not None)


def _seconds(call: Call, program: Program) -> float:
    read, written = traffic(call, program)
    return flops(call, program) / _FLOPS + (read + written) / _BANDWIDTH


def _producers(call: Call, views: Views, n_inputs: int) -> set[int]:
    bases = (views.base(ref).value for ref in call.refs())
    return {value - n_inputs for value in bases if value >= n_inputs}


def _is_ref(args: Sequence[object]) -> bool:
    return bool(args) and isinstance(args[0], Ref)
