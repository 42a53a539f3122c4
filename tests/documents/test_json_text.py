"""JSON documents: what a reader would misread is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from doppler.documents.json_text import parse_json, read_json
from doppler.errors import PlacementError


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "f.json: is empty, so not a placement file"),
        (" \n", "f.json: is empty"),
        ('{"a": [1, 2', "f.json: line 1 column 12: not valid JSON"),
        ('{"a": 1,\n "b": {"c": 1, "d": 2, "c": 3}}', "f.json: key 'c' is given twice"),
        ('{"a": "\\ud800"}', r"f.json: a text holds \ud800, one half of a surrogate pair"),
        ('["\\ude00\\ud83d"]', r"f.json: a text holds \ude00, one half"),
        ("[" * 100_000, "f.json: the JSON is nested too deep to be a placement"),
        ("[" + "1" * 5000 + "]", "f.json: the JSON holds an integer with too many digits"),
    ],
)
def test_messages(text: str, words: str) -> None:
    with pytest.raises(PlacementError) as caught:
        parse_json(text, "f.json", "placement", PlacementError)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


def test_whole_characters_and_escaped_backslashes_are_text() -> None:
    text = r'["\ud83d\ude00", "C:\\ud800", "é"]'
    assert parse_json(text, "f.json", "placement", PlacementError) == ["😀", r"C:\ud800", "é"]


def test_a_byte_order_mark_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "marked.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json(path, "placement", PlacementError) == {"a": 1}
