"""The cells that are done: one file each, taken for done only if nothing it came of has changed."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from doppler.documents.json_text import read_json
from doppler.errors import DopplerError
from doppler.experiments.cell import Cell
from doppler.files import read_bytes, write_atomic


def code_digest(paths: Iterable[Path]) -> str:
    """Digest files that results depend on; of Python's the meaning, not the comments.

    Parameters
    ----------
    paths : iterable of Path
        Files and folders.
    """
    digest = hashlib.sha256()
    for path in sorted({file for each in paths for file in _files(each)}):
        data = path.read_bytes()
        if path.suffix == ".py":
            data = ast.dump(_without_docstrings(ast.parse(data))).encode()
        digest.update(f"{path} {len(data)} ".encode())
        digest.update(data)
    return digest.hexdigest()


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = (file for file in path.rglob("*") if file.is_file())
    return [file for file in found if "__pycache__" not in file.parts]


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                del body[0]
    return tree


class Store:
    """The results of the cells of one experiment.

    Parameters
    ----------
    folder : Path
        Holds a file ``NAME.json`` for each cell.
    code : str
        Digest of what the results depend on beside what is given to each cell.
    """

    def __init__(self, folder: Path, code: str) -> None:
        self.folder = folder
        self.code = code

    def path(self, cell: Cell) -> Path:
        """Where the result of a cell is kept."""
        return self.folder / f"{cell.name}.json"

    def digest(self, cell: Cell) -> str:
        """Identify a cell with all that its result depends on."""
        digest = hashlib.sha256(self.code.encode())
        digest.update(json.dumps([cell.experiment, cell.given], sort_keys=True).encode())
        if "file" in cell.given:
            digest.update(read_bytes(cell.given["file"]))
        return digest.hexdigest()

    def has(self, cell: Cell) -> bool:
        """Whether a cell is done, by this code and with what is given."""
        path = self.path(cell)
        if not path.exists():
            return False
        # A file that cannot be read is as good as none: it is made anew.
        with suppress(DopplerError):
            kept = read_json(path, "cell", DopplerError)
            return isinstance(kept, dict) and kept.get("digest") == self.digest(cell)
        return False

    def save(self, cell: Cell, result: Mapping[str, Any], seconds: float) -> None:
        """Keep the result of a cell.

        Raises
        ------
        DopplerError
            If the file cannot be written, or the result has a number that is none.
        """
        document = {
            "experiment": cell.experiment,
            "given": dict(cell.given),
            "digest": self.digest(cell),
            "seconds": round(seconds, 3),
            "result": dict(result),
        }
        try:
            text = json.dumps(document, indent=1, allow_nan=False)
        except ValueError as error:
            raise DopplerError(f"{cell.experiment}: {cell.name}: {error}") from None
        write_atomic(self.path(cell), text + "\n")

    def keep_only(self, cells: Iterable[Cell]) -> None:
        """Remove the results of cells that there are no longer."""
        wanted = {self.path(cell) for cell in cells}
        for path in self.folder.glob("*.json"):
            if path not in wanted:
                path.unlink()
