"""One name, one thing: no two public classes are called alike."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import doppler


def test_no_two_classes_share_a_name() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    package = Path(doppler.__file__).parent
    for path in sorted(package.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(package)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
