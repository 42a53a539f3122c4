"""Write into each dvc.yaml what its stages depend on: what their flow imports, and parameters.

The closure is read from the sources, imports inside functions included; nothing is run.

    python scripts/stages.py            # bring dvc.yaml and experiments/dvc.yaml up to date
    python scripts/stages.py --check    # change nothing; exit 1 if it is not
"""

from __future__ import annotations

import argparse
import ast
import difflib
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

#: What else is needed to run any stage.
ALWAYS = "requirements.lock"
#: Files that a module reads. The policy that comes with the package is read by no stage.
DATA = {
    "doppler.cluster.document": "src/doppler/cluster/presets",
    "doppler.evaluation.fidelity_page": "src/doppler/evaluation/templates/fidelity.html",
    "doppler.evaluation.report": "src/doppler/evaluation/templates/report.html",
    "doppler.experiments.report": "src/doppler/experiments/templates/experiments.html",
    "doppler.heuristics.kahypar": "src/doppler/heuristics/kahypar.ini",
    "doppler.refinement.report": "src/doppler/refinement/templates/refinement.html",
    "doppler.viewer.page": "src/doppler/viewer/templates",
}
PRETRAINED = "src/doppler/policy/pretrained.safetensors"
#: The pipeline whose stages share two flows; each runs the module of its own name in a package.
EXPERIMENTS, EXPERIMENT_PACKAGE = "experiments/dvc.yaml", "doppler.experiments"
EXPERIMENT_FLOW, EXPERIMENT_REPORT = "experiments", "experiments_report"
#: Modules that import others by the names of a table, which their readers cannot follow.
TABLES = ("doppler", f"{EXPERIMENT_PACKAGE}.names")
_STAGE = re.compile(r"^  (\w+):\n(?:    .*\n|\n|    *#.*\n)+", re.M)


class Sources:
    """The modules of the flows and of the package.

    Parameters
    ----------
    root : pathlib.Path
        The checkout.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = {
            _module(path.relative_to(folder)): path
            for folder in (root / "flows", root / "src")
            for path in sorted(folder.rglob("*.py"))
        }
        self._tree = cache(lambda module: ast.parse(self.paths[module].read_text("utf-8")))
        self._direct = cache(self._read_imports)
        # The package's front loads its names at first use; a type checker is told where they live.
        front = ast.walk(self._tree("doppler")) if "doppler" in self.paths else ()
        self._homes = {
            f"doppler.{alias.name}": f"{node.module}.{alias.name}"
            for node in front
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    def closure(self, module: str) -> set[str]:
        """Find a module and all that it imports, directly or not, packages included."""
        found, left = set[str](), {module}
        while left:
            found.add(module := left.pop())
            left |= self._direct(module) - found
        return found

    def files(self, *modules: str) -> list[Path]:
        """List the files of the closures of some modules, those of their data included."""
        closure = set[str]().union(*map(self.closure, modules))
        read = [self.root / DATA[name] for name in closure if name in DATA]
        data = [file for path in read for file in ([path] if path.is_file() else _files(path))]
        return sorted([self.paths[name] for name in closure] + data)

    def sections(self, flow: str) -> list[str]:
        """List the sections of the parameter file that a flow reads: the fields of its Params."""
        return sorted(self._fields(flow, "Params"))

    def _fields(self, module: str, name: str) -> set[str]:
        for node in self._tree(module).body if module in self.paths else ():
            if isinstance(node, ast.ClassDef) and node.name == name:
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                inherited = set().union(*(self._fields(module, base) for base in bases))
                own = (each for each in node.body if isinstance(each, ast.AnnAssign))
                fields = (ast.unparse(e.target) for e in own if "ClassVar" not in ast.unparse(e))
                return inherited | set(fields)
            if isinstance(node, ast.ImportFrom) and name in {each.name for each in node.names}:
                return self._fields(node.module or "", name)
        return set()

    def _read_imports(self, module: str) -> set[str]:
        named = set(self._named(module))
        return {
            ".".join(parts[:count])
            for parts in (name.split(".") for name in named)
            for count in range(1, len(parts) + 1)
            if ".".join(parts[:count]) in self.paths
        }

    def _named(self, module: str) -> Iterator[str]:
        """Name what the code of a module imports; more than modules among it."""
        for node in _running(self._tree(module)):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                names = (f"{node.module}.{alias.name}" for alias in node.names)
                yield from (self._homes.get(name, name) for name in names)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id == "doppler":
                    name = f"doppler.{node.attr}"
                    yield self._homes.get(name, name)
            elif isinstance(node, ast.Name) and node.id == "import_module" and module not in TABLES:
                raise SystemExit(f"{self.paths[module]}: imports what no reader of it can know")


def dependencies(sources: Sources, *modules: str) -> list[str]:
    """List what a stage depends on beside its input: folders that are needed whole, and files."""
    files = set(sources.files(*modules))
    whole: set[Path] = set()
    for folder in {parent for file in files for parent in file.parents}:
        inside = sources.root in folder.parents and folder not in (
            sources.root / "flows",
            sources.root / "src",
        )
        if inside and set(_files(folder)) <= files:
            whole.add(folder)
    paths = {max(whole & {*file.parents}, key=_shallow, default=file) for file in files}
    return sorted({str(path.relative_to(sources.root)) for path in paths} | {ALWAYS})


def brought_up_to_date(text: str, sources: Sources) -> str:
    """Return dvc.yaml with the dependencies and parameters of every stage as they are."""

    def stage(found: re.Match[str]) -> str:
        block, flow = found[0], found[1]
        made = re.findall(r"^      - (.*)$", _block(block, "deps"), re.M)
        kept = [path for path in made if not path.startswith(("flows/", "src/", ALWAYS))]
        block = _with_list(block, "deps", [*kept, *dependencies(sources, flow)])
        return _with_list(block, "params", sources.sections(flow))

    return _STAGE.sub(stage, text)


def experiments_up_to_date(text: str, sources: Sources) -> str:
    """Return the dvc.yaml of the experiments with the dependencies of every stage as they are."""

    def stage(found: re.Match[str]) -> str:
        block, name = found[0], found[1]
        if name == "report":
            needed = dependencies(sources, EXPERIMENT_REPORT)
        else:
            modules = (EXPERIMENT_FLOW, f"{EXPERIMENT_PACKAGE}.{name}")
            needed = sorted({*dependencies(sources, *modules), PRETRAINED})
        made = re.findall(r"^      - (.*)$", _block(block, "deps"), re.M)
        kept = [path for path in made if path.startswith("data/")]
        return _with_list(block, "deps", [*kept, *needed])

    return _STAGE.sub(stage, text)


def _with_list(block: str, key: str, items: Iterable[str]) -> str:
    lines = "".join(f"      - {item}\n" for item in items)
    return block.replace(_block(block, key), f"    {key}:\n{lines}")


def _block(block: str, key: str) -> str:
    found = re.search(rf"^    {key}:\n(?:      - .*\n)*", block, re.M)
    if found is None:
        raise SystemExit(f"dvc.yaml: a stage lacks {key!r}")
    return found[0]


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _files(folder: Path) -> list[Path]:
    """List the files below a folder of which DVC takes note."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.match(PRETRAINED)
    ]


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """Walk over code, but for what is there for a type checker alone."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield from _running(child)


def _shallow(path: Path) -> int:
    return -len(path.parts)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say what is out of date")
    check = parser.parse_args(arguments).check
    root = Path(__file__).resolve().parents[1]
    sources = Sources(root)
    stale = False
    for name, renewed in (("dvc.yaml", brought_up_to_date), (EXPERIMENTS, experiments_up_to_date)):
        path = root / name
        before = path.read_text("utf-8")
        after = renewed(before, sources)
        if not check:
            path.write_text(after, "utf-8")
        elif after != before:
            stale = True
            lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
            for line in list(lines)[2:]:
                print(line)
            message = f"error: {name}: is out of date; run 'python scripts/stages.py'"
            print(message, file=sys.stderr)
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
