"""Typed access to parsed JSON: a wrong type is one error line that names the file and the key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from doppler.documents.json_text import parse_json
from doppler.errors import GraphError
from doppler.messages import shown, shown_value

_WORDS = {
    dict: "an object",
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


def parse_object(text: str, where: str) -> Fields:
    """Parse JSON text whose top level is an object.

    Raises
    ------
    GraphError
        If the text is truncated, nested beyond reason, or not a JSON object.
    """
    value = parse_json(text, where, "graph", GraphError)
    if not isinstance(value, dict):
        raise GraphError(f"{where}: the JSON must be an object, not {_word(value)}")
    return Fields(value, where)


class Fields:
    """A JSON object, read key by key.

    Parameters
    ----------
    values : dict
        The parsed object.
    where : str
        The file, for messages.
    path : str
        How the object is reached from the top of the file (``"nodes[3]."``).
    """

    __slots__ = ("_path", "_where", "values")

    def __init__(self, values: dict[str, Any], where: str, path: str = "") -> None:
        self.values = values
        self._where = where
        self._path = path

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def fail(self, key: str, rule: str) -> NoReturn:
        """Raise the error that ``key`` breaks ``rule``."""
        raise GraphError(f"{self._where}: key '{self._path}{shown(key)}' {rule}")

    def require(self, key: str) -> Any:
        """Return the value of a key that must be there."""
        if key not in self.values:
            self.fail(key, "is missing")
        return self.values[key]

    def known_only(self, known: Iterable[str]) -> None:
        """Refuse keys outside ``known``: a misspelled optional key must not pass in silence."""
        allowed = sorted(known)
        for key in self.values:
            if key not in allowed:
                self.fail(key, f"is unknown; known are {', '.join(allowed)}")

    def text(self, key: str) -> str:
        """Return a string."""
        value = self.require(key)
        if not isinstance(value, str):
            self._wrong(key, "a string", value)
        return value

    def number(self, key: str) -> float:
        """Return a number; a boolean is none."""
        value = self.require(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self._wrong(key, "a number", value)
        try:
            return float(value)
        except OverflowError:
            self.fail(key, "is too large a number")

    def cost(self, key: str) -> float:
        """Return a finite number >= 0."""
        value = self.number(key)
        if not 0 <= value < float("inf"):
            self.fail(key, f"is {value}, must be a finite number >= 0")
        return value

    def integer(self, key: str) -> int:
        """Return a whole number (``3.0`` is none)."""
        value = self.require(key)
        if isinstance(value, bool) or not isinstance(value, int):
            self._wrong(key, "a whole number", value)
        return value

    def flag(self, key: str) -> bool:
        """Return a boolean, written as true/false or 1/0."""
        value = self.require(key)
        if not isinstance(value, int) or value not in (0, 1):
            self._wrong(key, "true or false", value)
        return bool(value)

    def array(self, key: str, types: Sequence[type] = ()) -> list[Any]:
        """Return an array whose entries are exactly of ``types`` (of any, if empty)."""
        value = self.require(key)
        if not isinstance(value, list):
            self._wrong(key, "an array", value)
        if types and not set(map(type, value)) <= set(types):
            index = next(i for i, entry in enumerate(value) if type(entry) not in types)
            expected = " or ".join(dict.fromkeys(_WORDS[kind] for kind in types))
            self._wrong(f"{key}[{index}]", expected, value[index])
        return value

    def fields(self, key: str) -> Fields:
        """Return a nested object."""
        value = self.require(key)
        if not isinstance(value, dict):
            self._wrong(key, "an object", value)
        return Fields(value, self._where, f"{self._path}{shown(key)}.")

    def records(self, key: str) -> list[Fields]:
        """Return an array of objects."""
        return [
            Fields(entry, self._where, f"{self._path}{key}[{index}].")
            for index, entry in enumerate(self.array(key, (dict,)))
        ]

    def _wrong(self, key: str, expected: str, value: object) -> NoReturn:
        self.fail(key, f"must be {expected}, not {_word(value)} ({shown_value(value)})")


def _word(value: object) -> str:
    return _WORDS.get(type(value), type(value).__name__)
