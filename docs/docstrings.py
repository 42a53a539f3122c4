"""What mkdocstrings reads differently from our sources.

Roles in docstrings, as in :func:`doppler.place`, become links of the site. A comment above a
constant is its docstring.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(func|class|meth|attr|data|mod):`~?([\w.]+)`")


class Docstrings(griffe.Extension):
    """Completes docstrings when they are read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object once it is read."""
        if obj.docstring is None and obj.is_attribute and (comment := _comment_above(obj)):
            obj.docstring = griffe.Docstring(comment, lineno=obj.lineno, parent=obj)
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(
                lambda found: _link(obj, found[1], found[2]), obj.docstring.value
            )


def _comment_above(obj: griffe.Object) -> str:
    path = obj.filepath
    if isinstance(path, list):
        return ""  # A namespace package has no file of its own.
    lines = obj.lines_collection[path]
    first = last = (obj.lineno or 1) - 1
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return "\n".join(line.lstrip("#: ") for line in lines[first:last])


def _link(obj: griffe.Object, role: str, name: str) -> str:
    # A short name is of the same class, or else of the same module.
    scope = obj.module.path
    if role in ("meth", "attr") and "." not in name:
        scope = obj.path if obj.is_class else obj.path.rpartition(".")[0]
    identifier = name if name.startswith("doppler.") else f"{scope}.{name}"
    # A link if it is in the reference; otherwise it stays code.
    return f'<autoref identifier="{identifier}" optional>`{name}`</autoref>'
