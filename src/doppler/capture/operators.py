"""What is known about torch's operators from their schemas: views, random ones, harmless ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from doppler.capture.program import Call

if TYPE_CHECKING:
    from torch._ops import OpOverload

# Views by what they do, where the schema does not say so: these copy only if they must.
_RESHAPES = frozenset(("reshape", "_unsafe_view", "contiguous", "flatten", "unflatten", "view_as"))
# Check something at run time, and compute nothing.
_CHECKS = frozenset(
    (
        "_assert_async",
        "_assert_scalar",
        "_assert_tensor_metadata",
        "sym_constrain_range",
        "sym_constrain_range_for_size",
        "_functional_assert_async",
        "_functional_assert_scalar",
    )
)


def overload(op: str) -> OpOverload | None:
    """Find a registered operator by ``"namespace.operator.overload"``; None if there is none."""
    import torch

    parts = op.split(".")
    if len(parts) != 3:
        return None
    try:
        found = getattr(getattr(getattr(torch.ops, parts[0]), parts[1]), parts[2])
    except (AttributeError, RuntimeError):
        return None
    return found if isinstance(found, torch._ops.OpOverload) else None


@cache
def is_view(op: str) -> bool:
    """Whether an operator returns its first argument in another shape, and computes nothing."""
    if op.split(".")[1] in _RESHAPES:
        return True
    found = overload(op)
    return found is not None and all(
        entry.alias_info is not None and not entry.alias_info.is_write
        for entry in found._schema.returns
    )


def is_random(op: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> bool:
    """Whether two calls with equal arguments may differ; so do tensors that are not filled.

    Attention, which may have dropout, draws nothing where the arguments say that it has none.
    """
    if not _may_draw(op):
        return False
    chance = _argument(op, "dropout_p", args, kwargs or {})
    return not (isinstance(chance, float) and chance == 0.0)


@cache
def _may_draw(op: str) -> bool:
    import torch

    found = overload(op)
    if found is None or op.split(".")[1].startswith(("empty", "new_empty")):
        return True
    return torch.Tag.nondeterministic_seeded in found.tags


def _argument(op: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return an argument of a call, or its default; None where there is none of that name."""
    found = overload(op)
    if found is None:
        return None
    for position, each in enumerate(found._schema.arguments):
        if each.name == name:
            given = args[position] if position < len(args) else each.default_value
            return kwargs.get(name, given)
    return None


def is_check(op: str) -> bool:
    """Whether an operator only asserts something."""
    return op.split(".")[1] in _CHECKS


def uses_batch_statistics(call: Call) -> bool:
    """Whether a call normalizes by the mean and variance of the whole batch, as in training."""
    if "batch_norm" not in call.op or "backward" in call.op:
        return False
    return _argument(call.op, "training", call.args, call.kwargs) is True
