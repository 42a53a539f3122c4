"""What is known about operators from their schemas."""

from __future__ import annotations

import pytest

from doppler.capture.operators import is_random
from doppler.capture.program import Ref

ATTENTION = "aten.scaled_dot_product_attention.default"
HEADS = (Ref(0), Ref(1), Ref(2))


@pytest.mark.parametrize(
    ("op", "args", "kwargs", "random"),
    [
        (ATTENTION, HEADS, {}, False),
        (ATTENTION, (*HEADS, None, 0.0), {}, False),
        (ATTENTION, (*HEADS, None, 0.1), {}, True),
        (ATTENTION, HEADS, {"dropout_p": 0.1}, True),
        ("aten.native_dropout.default", (Ref(0), 0.5, True), {}, True),
        ("aten.empty.memory_format", ((2, 2),), {}, True),
        ("aten.linear.default", (Ref(0), Ref(1)), {}, False),
        ("nothing.known.default", (), {}, True),
    ],
)
def test_what_draws_numbers(op: str, args: tuple, kwargs: dict, random: bool) -> None:
    assert is_random(op, args, kwargs) is random
