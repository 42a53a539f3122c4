"""Programs without what need not run: aliases, dead calls, and calls on nothing but constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from doppler.capture.fx import meta_of
from doppler.capture.operators import is_random, is_view, overload
from doppler.capture.program import (
    Argument,
    Call,
    Constant,
    Input,
    Program,
    Ref,
    Source,
    whole,
)

if TYPE_CHECKING:
    from torch import Tensor

# A constant that takes more is computed anew each time.
_LARGEST_CONSTANT = 64_000_000
_COPIES = frozenset(("clone", "alias", "detach", "lift_fresh_copy", "lift_fresh", "contiguous"))
_CASTS = frozenset(("_to_copy", "to"))


def simplify(
    program: Program, constants: Mapping[str, Tensor]
) -> tuple[Program, dict[str, Tensor]]:
    """Leave out what need not run.

    Copies that change neither shape nor dtype are replaced by what they copy: calls are functional,
    so nobody sees the difference. Views become ``reshape``, which suits tensors of any strides.
    Calls that read constants only, and are not random, are made once, here. Calls whose result
    nobody reads go. O(calls + references), and the time of the calls that are made.

    Parameters
    ----------
    program : Program
    constants : mapping of str to Tensor
        Values of its sources of role ``"constant"``.

    Returns
    -------
    program : Program
    constants : dict of str to Tensor
    """
    return without_dead(*_folded(_without_aliases(program), dict(constants)))


def _without_aliases(program: Program) -> Program:
    n_inputs = len(program.inputs)
    # What stands for each value now.
    now: list[Ref] = [Ref(value) for value in range(n_inputs)]
    calls: list[Call] = []

    def moved(ref: Ref) -> Ref:
        found = now[ref.value]
        return found if ref.item < 0 else Ref(found.value, ref.item)

    for call in program.calls:
        read = call.with_refs(moved)
        if _is_alias(call, program):
            now.append(read.args[0])
            continue
        if call.op in ("aten.view.default", "aten._unsafe_view.default"):
            read = replace(read, op="aten.reshape.default")
        now.append(Ref(n_inputs + len(calls)))
        calls.append(read)
    outputs = tuple(output.with_refs(moved) for output in program.outputs)
    return replace(program, calls=tuple(calls), outputs=outputs)


def _is_alias(call: Call, program: Program) -> bool:
    operator = call.op.split(".")[1]
    if not call.op.startswith("aten.") or not call.args or not isinstance(call.args[0], Ref):
        return False
    same = call.results == (program.meta(call.args[0]),) and not call.several
    if operator in _COPIES or operator in _CASTS:
        return same
    if operator == "dropout":
        return call.args[2] is False
    return operator in ("reshape", "view", "_unsafe_view", "expand") and same


def _folded(program: Program, constants: dict[str, Tensor]) -> tuple[Program, dict[str, Tensor]]:
    import torch

    n_inputs = len(program.inputs)
    known: dict[int, Any] = {
        number: constants[each.source]
        for number, each in enumerate(program.inputs)
        if program.sources[each.source].role == "constant"
        and each.source in constants
        and constants[each.source].device.type == "cpu"
    }
    folded: dict[int, Any] = {}
    for number, call in enumerate(program.calls, n_inputs):
        if all(ref.value in known for ref in call.refs()) and _may_fold(call):
            with torch.no_grad():
                known[number] = folded[number] = run_call(call, known)
    if not folded:
        return program, constants
    wanted = _wanted(program, folded)
    # New inputs come after the old ones, so calls move up.
    inputs, sources = list(program.inputs), dict(program.sources)
    now: dict[tuple[int, int], Ref] = {}
    for value, item in wanted:
        call = program.calls[value - n_inputs]
        tensor = folded[value] if item < 0 else folded[value][item]
        label = f"constant.{call.name}" + (f".{item}" if item > 0 else "")
        meta = meta_of(tensor)
        sources[label] = Source("constant", meta)
        constants[label] = tensor.clone(memory_format=torch.contiguous_format)
        now[value, item] = Ref(len(inputs))
        inputs.append(Input(label, whole(meta.shape), meta))
    at: dict[int, int] = {value: value for value in range(n_inputs)}
    left = [number for number in range(len(program.calls)) if number + n_inputs not in folded]
    for count, number in enumerate(left):
        at[n_inputs + number] = len(inputs) + count

    def moved(ref: Ref) -> Ref:
        return now.get((ref.value, ref.item)) or Ref(at[ref.value], ref.item)

    calls = tuple(program.calls[number].with_refs(moved) for number in left)
    outputs = tuple(output.with_refs(moved) for output in program.outputs)
    return Program(program.name, sources, tuple(inputs), calls, outputs), constants


def _wanted(program: Program, folded: Mapping[int, Any]) -> list[tuple[int, int]]:
    """List the folded results that something else reads."""
    n_inputs = len(program.inputs)
    wanted: dict[tuple[int, int], None] = {}
    for number, call in enumerate(program.calls, n_inputs):
        if number not in folded:
            wanted.update(((ref.value, ref.item), None) for ref in call.refs())
    for output in program.outputs:
        wanted.update(((ref.value, ref.item), None) for ref, _ in output.pieces)
    return [each for each in wanted if each[0] in folded]


def _may_fold(call: Call) -> bool:
    size = sum(meta.bytes for meta in call.results if meta is not None)
    # A view of a constant may be much larger than what it shows, as where it is expanded.
    shown = is_view(call.op) and call.op.split(".")[1] in ("expand", "expand_as")
    return not (shown or is_random(call.op, call.args, call.kwargs) or size > _LARGEST_CONSTANT)


def run_call(call: Call, values: Mapping[int, Any]) -> Any:
    """Make a call, here and now, on the CPU where it makes a tensor of none.

    Parameters
    ----------
    call : Call
    values : mapping of int to (Tensor or sequence of Tensor)
        By number of the value in the program, those that the call reads.
    """
    function = overload(call.op)
    assert function is not None, call.op

    def value(argument: Argument) -> Any:
        import torch

        if isinstance(argument, Ref):
            found = values[argument.value]
            return found if argument.item < 0 else found[argument.item]
        if isinstance(argument, tuple):
            return [value(entry) for entry in argument]
        if isinstance(argument, Constant):
            return "cpu" if argument.kind == "device" else getattr(torch, argument.name)
        return argument

    return function(*map(value, call.args), **{k: value(v) for k, v in call.kwargs.items()})


def without_dead(
    program: Program, constants: Mapping[str, Tensor]
) -> tuple[Program, dict[str, Tensor]]:
    """Leave out calls, inputs and sources that no output depends on. O(calls + references)."""
    n_inputs = len(program.inputs)
    live = {ref.value for output in program.outputs for ref, _ in output.pieces}
    for number in range(n_inputs + len(program.calls) - 1, n_inputs - 1, -1):
        if number in live:
            live.update(ref.value for ref in program.calls[number - n_inputs].refs())
    order = sorted(live)
    at = {value: number for number, value in enumerate(order)}

    def moved(ref: Ref) -> Ref:
        return Ref(at[ref.value], ref.item)

    inputs = tuple(program.inputs[value] for value in order if value < n_inputs)
    calls = tuple(
        program.calls[value - n_inputs].with_refs(moved) for value in order if value >= n_inputs
    )
    outputs = tuple(output.with_refs(moved) for output in program.outputs)
    # An input that nothing reads is still an input of the model.
    sources = {
        name: source
        for name, source in program.sources.items()
        if source.role == "input" or any(each.source == name for each in inputs)
    }
    return (
        Program(program.name, sources, inputs, calls, outputs),
        {name: constants[name] for name in sources if name in constants},
    )
