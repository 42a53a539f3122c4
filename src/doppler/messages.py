"""Values as error messages show them: on one line, and short."""

from __future__ import annotations

import reprlib

_LONGEST = 60

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = _LONGEST


def shown(text: str) -> str:
    """Return a name that fits into a one-line message: escaped, and cut at 60 characters."""
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def is_unicode(text: str) -> bool:
    """Whether a text can be written: not, if it holds half of a surrogate pair."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def shown_value(value: object) -> str:
    """Return any value as a one-line message shows it, large ones abridged."""
    try:
        return shown(_repr.repr(value))
    except (RecursionError, ValueError):  # nested too deep, or an int with too many digits
        return f"a {type(value).__name__}"
