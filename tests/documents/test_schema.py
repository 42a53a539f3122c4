"""What is wrong with a document, in one line."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import Field

from doppler.documents.schema import Strict, check
from doppler.errors import GraphError


class Part(Strict):
    size: Annotated[int, Field(ge=1)]
    share: float = 0.5


class Whole(Strict):
    name: str
    parts: list[Part] = Field(default_factory=list)
    table: dict[str, float] = Field(default_factory=dict)


def test_what_a_document_holds() -> None:
    found = check(Whole, {"name": "x", "parts": [{"size": 2, "share": 1}]}, "f", GraphError)
    assert found == Whole(name="x", parts=[Part(size=2, share=1.0)])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "f: must be a mapping with name, parts, table"),
        ({}, "f: name is missing"),
        (
            {"names": "x"},
            "f: unknown key 'names': did you mean 'name'? known are",
        ),
        ({"name": 3}, "f: name is 3, must be a text"),
        ({"name": "x", "parts": {}}, "f: parts is {}, must be a list"),
        ({"name": "x", "parts": [7]}, "f: parts[0]: must be a mapping with share, size"),
        ({"name": "x", "parts": [{"size": 0}]}, "f: parts[0].size is 0, must be greater than or"),
        ({"name": "x", "parts": [{"size": 2.0}]}, "f: parts[0].size is 2.0, must be a whole numb"),
        ({"name": "x", "parts": [{"size": True}]}, "f: parts[0].size is True, must be a whole"),
        ({"name": "x", "table": {"a b": "1"}}, "f: table['a b'] is '1', must be a number"),
        ({"name": "x", "table": {"a": 10**400}}, "f: table.a is 1"),
        ({"name": "x", "table": {1: 1.0}}, "f: table: a key is 1, must be a text"),
        ({"name": "x\ny" * 100, "table": 1}, "f: table is 1, must be a mapping"),
        ({"name": ["long\n" * 100]}, "f: name is ['long\\n"),
    ],
)
def test_messages(value: Any, words: str) -> None:
    with pytest.raises(GraphError) as caught:
        check(Whole, value, "f", GraphError)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 150
