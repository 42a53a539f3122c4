"""JSON as a reader takes it: no key twice, no half characters."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from doppler.errors import DopplerError
from doppler.files import read_text
from doppler.messages import shown_value

# Half of a character beyond 16 bits, escaped; two of them in order are that character.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_json(path: str | os.PathLike[str], kind: str, error: type[DopplerError]) -> Any:
    """Read a JSON file.

    Parameters
    ----------
    path : path-like
    kind : str
        What the file should hold, for messages (``"placement"``).
    error : type of DopplerError
        Raised with one line that names the file.
    """
    return parse_json(read_text(path, kind, error), str(path), kind, error)


def parse_json(text: str, where: str, kind: str, error: type[DopplerError]) -> Any:
    """Parse JSON text of the file ``where``, as :func:`read_json` does."""
    if not text.strip():
        raise error(f"{where}: is empty, so not a {kind} file; it was cut short or already read")
    try:
        value = json.loads(text, object_pairs_hook=_object)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as failure:
        place = f"line {failure.lineno} column {failure.colno}"
        raise error(
            f"{where}: {place}: not valid JSON ({failure.msg}), so not a {kind} file; "
            "it may be cut short"
        ) from None
    except RecursionError:
        raise error(f"{where}: the JSON is nested too deep to be a {kind}") from None
    except UnicodeEncodeError as failure:
        half = failure.object[failure.start].encode("unicode_escape").decode()
        raise error(
            f"{where}: a text holds {half}, one half of a surrogate pair and no character; "
            "write both halves, or the character itself"
        ) from None
    except _TwiceError as failure:
        raise error(f"{where}: {failure}") from None
    except ValueError:  # Python's limit on the digits of an integer
        raise error(f"{where}: the JSON holds an integer with too many digits") from None
    return value


class _TwiceError(ValueError):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                twice = f"key {shown_value(key)} is given twice in one object"
                raise _TwiceError(f"{twice}; keep one of the two")
            seen.add(key)
    return values
