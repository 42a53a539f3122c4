"""What is known about torch's operators from their schemas: views, random ones, harmless ones."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

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


@cache
def is_random(op: str) -> bool:
    """Whether two calls with equal arguments may differ; so do tensors that are not filled."""
    import torch

    found = overload(op)
    if found is None or op.split(".")[1].startswith(("empty", "new_empty")):
        return True
    return torch.Tag.nondeterministic_seeded in found.tags


def is_check(op: str) -> bool:
    """Whether an operator only asserts something."""
    return op.split(".")[1] in _CHECKS


def uses_batch_statistics(call: Call) -> bool:
    """Whether a call normalizes by the mean and variance of the whole batch, as in training."""
    found = overload(call.op) if "batch_norm" in call.op and "backward" not in call.op else None
    if found is None:
        return False
    names = [argument.name for argument in found._schema.arguments]
    given = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    return given.get("training") is True
