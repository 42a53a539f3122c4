"""YAML documents: numbers and keys are what a reader takes them for."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from doppler.documents.yaml_text import parse_yaml, yaml_text
from doppler.errors import ClusterError


def parse(text: str) -> Any:
    return parse_yaml(text, "f.yaml", "cluster", ClusterError)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10),
        ("1:40", "1:40"),
        ("1_000", 1000),
        ("0o17", 15),
        ("0x1F", 31),
        ("1e3", 1000.0),
        ("5.", 5.0),
        ("-.5e-1", -0.05),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("true", True),
        ("no", "no"),
        ("on", "on"),
        ("2001-01-01", "2001-01-01"),
        ("", None),
        ("~", None),
    ],
)
def test_plain_values_mean_what_they_mean_in_yaml_1_2(text: str, value: Any) -> None:
    found = parse(f"key: {text}")["key"]
    assert (type(found), found) == (type(value), value)


def test_a_merge_is_not_made_in_silence() -> None:
    assert parse("a: &a {x: 1}\nb: {<<: *a}") == {"a": {"x": 1}, "b": {"<<": {"x": 1}}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3", "f.yaml: not valid YAML in line 3 (key 'a' is given twice"),
        ("- {x: {'k': 1, k: 2}}", "f.yaml: not valid YAML in line 1 (key 'k' is given twice"),
        ("? [1]\n: 2", "f.yaml: not valid YAML in line 1"),
        ("a: [", "f.yaml: not valid YAML in line 2 (did not find expected node content)"),
        ("a: \x00", "f.yaml: not valid YAML"),
        ('"\\ud800"', "f.yaml: not valid YAML in line 1"),
        ("--- 1\n--- 2", "f.yaml: not valid YAML in line 2 (but found another document)"),
        ("!!int foo", "f.yaml: not valid YAML (invalid literal"),
        ("!!python/object:os.system x", "f.yaml: not valid YAML in line 1"),
        ("[" * 5000, "f.yaml: "),
    ],
)
def test_messages(text: str, words: str) -> None:
    with pytest.raises(ClusterError) as caught:
        parse(text)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text()
        | st.from_regex(r"[-+.0-9eE_xo:]{1,6}", fullmatch=True),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
)
def test_what_is_written_reads_back_equal_in_both_versions(value: Any) -> None:
    text = yaml_text(value)
    assert parse(text) == value
    assert yaml.safe_load(text) == value
