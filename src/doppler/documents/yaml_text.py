"""YAML as a reader takes it: the core schema of YAML 1.2, which DVC follows too, no key twice.

YAML 1.1, PyYAML's own, reads ``010`` as 8, ``1:40`` as 100, ``no`` as false and ``1e3`` as text.
Merge keys (``<<``) are of 1.1 as well, and here keys like any other.
"""

from __future__ import annotations

import os
import re
from typing import Any

import yaml

from doppler.errors import DopplerError
from doppler.files import read_text
from doppler.messages import shown, shown_value

_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?[0-9][0-9_]*|0o[0-7_]+|0x[0-9a-fA-F_]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]|[0-9])[0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)"
    r"|\.(?:nan|NaN|NAN)"
)
# An op class stands on one line, so that a table can be searched.
_WIDTH = 10_000


# In C where PyYAML was built with it, ten times as fast: a table of measured times is long.
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012

    def get_single_node(self) -> yaml.Node | None:
        """Compose the document, with each key of a mapping once."""
        root: yaml.Node | None = super().get_single_node()
        waiting, seen = [root], set()
        while waiting:
            node = waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, yaml.SequenceNode):
                waiting += node.value
            elif isinstance(node, yaml.MappingNode):
                waiting += [part for pair in node.value for part in pair]
                _refuse_twice(node)
        return root


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Quotes what either version of YAML would take for something other than text."""


def read_yaml(path: str | os.PathLike[str], kind: str, error: type[DopplerError]) -> Any:
    """Read a YAML file.

    Parameters
    ----------
    path : path-like
    kind : str
        What the file should hold, for messages (``"cluster"``).
    error : type of DopplerError
        Raised with one line that names the file.
    """
    return parse_yaml(read_text(path, kind, error), str(path), kind, error)


def parse_yaml(text: str, where: str, kind: str, error: type[DopplerError]) -> Any:
    """Parse YAML text of the file ``where``, as :func:`read_yaml` does."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as failure:
        mark = getattr(failure, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        problem = getattr(failure, "problem", None) or str(failure).split("\n")[0]
        raise error(f"{where}: not valid YAML{line} ({problem})") from None
    except RecursionError:
        raise error(f"{where}: the YAML is nested too deep to be a {kind}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as failure:
        # PyYAML lets these out where a scalar does not suit the tag that it was given.
        reason = shown(str(failure) or type(failure).__name__)
        raise error(f"{where}: not valid YAML ({reason})") from None


def yaml_text(value: Any) -> str:
    """Write plain values as YAML that both versions read back equal."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=_WIDTH)
    return text


def _refuse_twice(node: yaml.MappingNode) -> None:
    seen = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if (key.tag, key.value) in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {shown_value(key.value)} is given twice; keep one of the two",
                    problem_mark=key.start_mark,
                )
            seen.add((key.tag, key.value))


def _int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    digits = loader.construct_scalar(node).replace("_", "")
    return int(digits, 0 if digits[:2] in ("0o", "0x") else 10)


def _float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(re.sub(r"_|\.(?=[inIN])", "", loader.construct_scalar(node)))


def _resolve(tag: str, pattern: re.Pattern[str], first: str) -> None:
    whole = re.compile(rf"(?:{pattern.pattern})\Z")
    for reader in (_Loader, _Dumper):
        reader.add_implicit_resolver(_TAG + tag, whole, list(first))


_resolve("int", _INT, "-+0123456789")
_resolve("float", _FLOAT, "-+.0123456789")
_resolve("bool", re.compile("true|True|TRUE|false|False|FALSE"), "tTfF")
for _empty in ("~", "null", "Null", "NULL"):
    _resolve("null", re.compile(_empty), _empty[0])
_Loader.add_implicit_resolver(f"{_TAG}null", re.compile(r"\Z"), [""])
_Loader.add_constructor(f"{_TAG}int", _int)
_Loader.add_constructor(f"{_TAG}float", _float)
