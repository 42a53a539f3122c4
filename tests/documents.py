"""Reads the fenced blocks of a document and runs them, in their order, in one folder.

- A block whose fence says ``file=NAME`` becomes that file.
- ``python`` blocks share one namespace. Those with ``>>>`` are doctests, all others must not raise.
- Of ``sh`` blocks the lines that start with ``doppler`` are run, in this process; each must exit
  with 0, or the block with the code that its fence gives, as ``exit=2``.
- A ``text`` block whose fence says ``output`` is what the block before it printed; ``...`` stands
  for anything.
"""

from __future__ import annotations

import doctest
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from doppler.cli.main import run

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIKE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the rest of its fence, its text, and its place."""

    language: str
    info: dict[str, str]
    text: str
    where: str
    line: int


def blocks(path: Path) -> list[Block]:
    """All fenced blocks of a document."""
    text = path.read_text()
    found = []
    for match in FENCE.finditer(text):
        info = dict(word.partition("=")[::2] for word in match[2].split())
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(match[1], info, match[3], f"{path.name}:{line}", line))
    return found


def commands(block: Block) -> list[list[str]]:
    """The ``doppler`` commands of a block, without comments, continued lines joined."""
    lines = block.text.replace("\\\n", " ").splitlines()
    split = [shlex.split(line, comments=True) for line in lines]
    return [words[1:] for words in split if words and words[0] == "doppler"]


class Session:
    """Runs blocks one after another."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._printed = ""

    def run(self, block: Block) -> None:
        """Run a block; fail if it does not do what the document says."""
        if "file" in block.info:
            path = Path(block.info["file"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif "output" in block.info:
            shown = doctest.OutputChecker().check_output(block.text, self._printed, LIKE)
            assert shown, f"{block.where}: prints\n{self._printed}"
        elif block.language == "python":
            self._python(block)
            self._printed = self._capsys.readouterr().out
        elif block.language == "sh":
            self._shell(block)

    def _python(self, block: Block) -> None:
        if ">>>" not in block.text:
            # Lines count from the top of the document in a traceback.
            source = "\n" * block.line + block.text
            exec(compile(source, block.where, "exec"), self._names)
            return
        parser = doctest.DocTestParser()
        test = parser.get_doctest(block.text, self._names, block.where, block.where, block.line)
        report: list[str] = []
        runner = doctest.DocTestRunner(optionflags=LIKE, verbose=False)
        runner.run(test, out=report.append, clear_globs=False)
        self._names.update(test.globs)
        assert not runner.failures, "".join(report)

    def _shell(self, block: Block) -> None:
        expected = int(block.info.get("exit", 0))
        self._printed = ""
        for words in commands(block):
            code = run(words)
            captured = self._capsys.readouterr()
            self._printed += captured.out + captured.err
            assert code == expected, f"{block.where}: doppler {shlex.join(words)}\n{captured.err}"
