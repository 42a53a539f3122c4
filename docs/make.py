"""Rewrite what the documents take from elsewhere; ``make figures``, or ``python docs/make.py``.

- README.md: the tables of results, from ``reports/suite.json`` and its like, and what ``doppler
  place`` prints.
- docs/timeline.svg: the run of a winner, from ``reports/timelines``.
- docs/cli.md: the arguments and options of every command, from the command line itself.
- docs/gallery.md: the placements of the examples, from ``benchmarks/models.json``.
- README.md, docs/experiments.md: the claims, from ``reports/experiments.json``.
- docs/architecture.md: the parts of the package and their order, from ``pyproject.toml``.
- README.md and docs/*.md: numbers of the code, where a comment after the number says which:
  ``up to 400<!-- = doppler.search.moves.LARGE_REGION --> ops``.

A part whose source is missing is left as it is, which is said on stderr; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import shlex
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, redirect_stdout
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import claims_table
import models_tables
import typer
import yaml

from doppler.cli.app import app
from doppler.cli.main import run
from doppler.errors import DopplerError
from doppler.evaluation.report import (
    METHOD,
    SUITES,
    CaseTimeline,
    Report,
    load_report,
    methods_of,
    summarize,
)
from doppler.evaluation.results import EXPECTED, MAKESPAN, CaseResult
from doppler.files import read_text, write_atomic
from doppler.viewer.timeline_svg import timeline_svg
from doppler.viewer.units import count_of, format_percent, format_seconds

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "benchmarks"
# The case of the picture, if its winner's timeline is there.
PICTURED = ("llama_layer", "p100x4")
# A number, and the expression that gives it. Names are of Doppler, of the scripts in
# ``benchmarks``, of ``params.yaml`` as ``params``, ``default(function, parameter)``, and
# ``report(name)`` for what is in ``reports/NAME.json``.
QUOTE = re.compile(r"([-+]?\d[\d.,e-]*%?)<!-- = ([^\n]+?) -->")
NAME = re.compile(r"\b(?:doppler|benchmarks)(?:\.\w+)+")


def replaced(text: str, name: str, content: str, where: str) -> str:
    """Put content between the two markers of a name.

    Raises
    ------
    DopplerError
        If the text does not have both markers, once each.
    """
    pattern = re.compile(rf"(<!-- {name}:begin [^\n]*-->\n).*?(<!-- {name}:end -->)", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise DopplerError(
            f"{where}: needs one pair of markers <!-- {name}:begin ... --> and <!-- {name}:end -->"
        )
    return pattern.sub(lambda found: f"{found[1]}{content.strip()}\n{found[2]}", text)


def results_table(report: Report) -> str:
    """Lay out how far every method is from the policy's, then every case, and sum it up.

    Parameters
    ----------
    report : Report
        Its suites, and its zero-shot results if it has any.

    Returns
    -------
    str
        Markdown.
    """
    summary = summarize(report)
    text = textwrap.fill(" ".join(_sentences(report, summary)), 100, break_on_hyphens=False)
    return f"{text}\n\n{_rivals(report, summary)}\n\n{_cases(report)}"


def _rivals(report: Report, summary: dict[str, Any]) -> str:
    """Lay out each rival's makespan over the method's by suite: expected, and without jitter."""
    suites = {name: own for name, own in summary["suites"].items() if own["cases"]}
    rows = [["method", *(SUITES[name] for name in suites)], ["---", *["---:"] * len(suites)]]
    for method in methods_of(report.cases):
        if method == METHOD:
            continue
        cells = []
        for own in suites.values():
            over = own["rivals"].get(method)
            missing = own["cases"] - over["cases"] if over else own["cases"]
            text = f"{_over(over, EXPECTED)} ({_over(over, MAKESPAN)})" if over else "-"
            cells.append(text + (f", does not fit in {missing}" if over and missing else ""))
        rows.append([method, *cells])
    return _table(rows)


def _over(ratios: dict[str, Any], column: str) -> str:
    ratio = ratios[column]
    return "-" if ratio is None else f"{'+' if ratio >= 1 else ''}{format_percent(ratio - 1)}"


def _cases(report: Report) -> str:
    header = ["graph", "cluster", "best other", METHOD, "best other, expected"]
    rows = [
        [*header, f"{METHOD}, expected", "best known"],
        [*["---"] * 2, *["---:"] * 5],
        *(_row(case) for case in report.cases),
    ]
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(case: CaseResult) -> list[str]:
    held_out = "" if case.trained in (None, "none") else " †"
    cells = [f"{case.graph}{held_out}", case.cluster]
    for column in (MAKESPAN, EXPECTED):
        other, own = case.best_other(METHOD, column), _figure(case, METHOD, column)
        cells.append("-" if other is None else f"{_figure(case, other, column)} ({other})")
        cells.append(f"**{own}**" if case.wins(METHOD, column) else own)
    return [*cells, format_seconds(case.best_s)]


def _figure(case: CaseResult, method: str, column: str) -> str:
    found = case.methods.get(method)
    if found is None:
        return "does not fit"
    seconds = found.figure(column)
    return "-" if seconds is None else format_seconds(seconds)


def _sentences(report: Report, summary: dict[str, Any]) -> list[str]:
    spent = []
    for name, suite in report.suites.items():
        if suite:
            # One method's time is not exactly its budget; the longest is the budget and some more.
            most = max(case.methods[METHOD].seconds for case in suite if METHOD in case.methods)
            spent.append(f"{most:.1f} s ({SUITES[name].lower()})")
    cores = {case.cores for case in report.cases}
    of = f" of {count_of(n, 'core')}" if len(cores) == 1 and (n := cores.pop()) else ""
    jitters = sorted({case.jitter for case in report.cases if case.jitter})
    sentences = [f"Simulated makespans, each method with the same time{of}: {', '.join(spent)}."]
    if jitters:
        share = ", ".join(format_percent(jitter, 0) for jitter in jitters)
        sentences.append(
            f"*Expected* is the mean of runs whose durations vary by {share}, with seeds that no "
            "method has seen."
        )
    for name, own in summary["suites"].items():
        if own["cases"]:
            sentences.append(f"{SUITES[name]}: {_wins(own)}.")
    for label, own in (
        ("graphs that the policy was trained on (†)", summary["trained"]),
        ("graphs held out of training", summary["held_out"]),
    ):
        if own["cases"]:
            sentences.append(
                f"On the {count_of(own['cases'], 'case')} of {label}: {_wins(own)}; over the best "
                f"known by {format_percent(own['ratio_to_best'] - 1)} on geometric mean, jitter "
                "off."
            )
    for group, what in (("zero_shot", "case"), ("zero_shot_large", "large case")):
        if summary[group]:
            over = [
                f"{name.replace('_', ' ')} {format_percent(ratio - 1)}"
                for name, ratio in summary[group].items()
            ]
            sentences.append(
                f"On {count_of(len(report.unseen[group]), what)} whose graphs no training has "
                "seen, without search, above the best known by (geometric mean): "
                f"{', '.join(over)}."
            )
    sentences.append(
        f"The first table says how far each other method is above `{METHOD}`, on geometric mean of "
        "the expected makespans (in parentheses: jitter off)."
    )
    return sentences


def _wins(summary: dict[str, Any]) -> str:
    """Say in how many cases the method is at or below every other."""
    expected = summary["expected_wins"]
    noisy = "" if expected is None else f"{expected} of {summary['cases']} cases by what is "
    noisy = noisy and f"{noisy}expected, and "
    return (
        f"`{METHOD}` is at or below every other method, within 0.2%, in {noisy}{summary['wins']} "
        f"of {summary['cases']} with jitter off"
    )


def chosen_timeline(timelines: Sequence[CaseTimeline]) -> CaseTimeline | None:
    """Choose the run to draw: of the pictured case, or else the first that the policy won."""
    won = [each for each in timelines if each.method == METHOD]
    named = [each for each in won if (each.graph, each.cluster) == PICTURED]
    return next(iter([*named, *won, *timelines]), None)


def picture(timeline: CaseTimeline) -> str:
    """Draw a run as an SVG file."""
    title = (
        f"{timeline.graph} on {timeline.cluster}, placed by {timeline.method}: "
        f"{format_seconds(timeline.trace.makespan)}"
    )
    return timeline_svg(timeline.trace, timeline.labels, title=title) + "\n"


def option_tables() -> dict[str, str]:
    """Lay out the arguments and options of every command, by its name: ``place``."""
    return dict(_option_tables(typer.main.get_command(app)))


def _option_tables(group: Any, *parents: str) -> Iterator[tuple[str, str]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _option_tables(command, *parents, name)
        else:
            yield " ".join([*parents, name]), _option_table(command)


def _option_table(command: Any) -> str:
    lines = ["| argument or option | default | meaning |", "|---|---|---|"]
    for parameter in command.params:
        if "--help" in parameter.opts:
            continue
        if parameter.param_type_name == "argument":
            name = parameter.metavar or parameter.name.upper()
        else:
            flag = parameter.is_flag
            name = ", ".join(parameter.opts) + ("" if flag else f" {parameter.metavar}")
        default = parameter.default
        plain = isinstance(default, str | int | float | Path) and not isinstance(default, bool)
        cells = [f"`{name}`", f"`{default}`" if plain else "", parameter.help]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def with_quotes(text: str, where: str) -> str:
    """Put the present values before the comments that say what a number is.

    Raises
    ------
    DopplerError
        If an expression has no value, or its value is no number.
    """

    def now(found: re.Match[str]) -> str:
        try:
            value = _value(found[2])
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            NameError,
            TypeError,
            ValueError,
        ) as error:
            raise DopplerError(f"{where}: {found[2]}: {error}") from None
        return f"{_as_before(found[1], value)}<!-- = {found[2]} -->"

    return QUOTE.sub(now, text)


def _value(expression: str) -> float:
    names: dict[str, Any] = {"default": _default, "report": _report, "len": len, "sum": sum}
    names["params"] = yaml.safe_load((ROOT / "params.yaml").read_text())

    def known(found: re.Match[str]) -> str:
        name = f"_{len(names)}"
        names[name] = named(found[0])
        return name

    return float(eval(NAME.sub(known, expression), {"__builtins__": {}}, names))


def _default(function: Callable[..., Any], parameter: str) -> Any:
    return inspect.signature(function).parameters[parameter].default


def _report(name: str) -> Any:
    return json.loads(read_text(ROOT / f"reports/{name}.json", "report", DopplerError))


def _as_before(shown: str, value: float) -> str:
    """Write a value as it was written: a percentage, a power of ten, or a plain number."""
    sign = "+" if shown[0] in "+-" else ""
    if shown.endswith("%"):
        return f"{100 * value:{sign}.{len(shown.rstrip('%').partition('.')[2])}f}%"
    if "e" in shown:
        mantissa, _, exponent = f"{value:.0e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:{sign},.10g}"


def named(name: str) -> Any:
    """Find what a dotted name stands for, as if its longest part that is a module were imported.

    Raises
    ------
    AttributeError
        If there is no such thing.
    """
    path = name
    rest: list[str] = []
    if path.startswith(f"{SCRIPTS.name}."):
        path = path.removeprefix(f"{SCRIPTS.name}.")
        if str(SCRIPTS) not in sys.path:
            sys.path.append(str(SCRIPTS))
    while _spec(path) is None:
        path, _, last = path.rpartition(".")
        rest.insert(0, last)
    found: Any = import_module(path)
    for part in rest:
        found = getattr(found, part)
    return found


def _spec(module: str) -> ModuleSpec | None:
    try:
        return find_spec(module)
    except ModuleNotFoundError:
        # What is left of the last dot is no package.
        return None


def printed(command: str) -> str:
    """Run a ``doppler`` command, in an empty folder, and return what it prints.

    Raises
    ------
    DopplerError
        If it fails; its own line is on stderr.
    """
    out = StringIO()
    with TemporaryDirectory() as folder, chdir(folder), redirect_stdout(out):
        code = run(shlex.split(command)[1:])
    if code:
        raise DopplerError(f"{command}: exit code {code}")
    return "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines())


def make_table(reports: Path) -> None:
    """Rewrite the README's tables."""
    _rewrite("README.md", {"results": results_table(read_report(reports))})


def read_report(reports: Path) -> Report:
    """Load the results of the suites that are there, and of the zero-shot comparison."""
    files = {name: reports / f"{name}.json" for name in SUITES}
    there = {name: path for name, path in files.items() if name == "suite" or path.exists()}
    large = reports / "zero_shot_large.json"
    return load_report(
        there, reports / "zero_shot.json", zero_shot_large=large if large.exists() else None
    )


def make_picture(reports: Path) -> None:
    """Rewrite docs/timeline.svg."""
    suite = {"suite": reports / "suite.json"}
    timeline = chosen_timeline(load_report(suite, timelines=reports / "timelines").timelines)
    if timeline is None:
        raise DopplerError(f"{reports / 'timelines'}: holds no timeline; run 'make repro' first")
    write_atomic(ROOT / "docs/timeline.svg", picture(timeline))


def make_reference(_reports: Path) -> None:
    """Rewrite the tables of docs/cli.md."""
    _rewrite("docs/cli.md", option_tables())


def map_of_parts() -> str:
    """Lay out what each module and package of Doppler answers, the layers from the top."""
    config = tomllib.loads(read_text(ROOT / "pyproject.toml", "configuration", DopplerError))
    contract = next(
        each for each in config["tool"]["importlinter"]["contracts"] if each["type"] == "layers"
    )
    rows = [["row", "part", "what it answers"], ["---:", "---", "---"]]
    layers = [re.findall(r"doppler\.(\w+)", layer) for layer in contract["layers"]]
    rows += [
        [str(number), f"`{part}`", _answer(part)]
        for number, parts in enumerate(layers, 1)
        for part in parts
    ]
    ranked = {part for parts in layers for part in parts}
    paths = sorted((ROOT / "src/doppler").iterdir())
    others = [path.stem for path in paths if path.is_dir() or path.suffix == ".py"]
    rows += [
        ["-", f"`{part}`", _answer(part)]
        for part in others
        if part not in ranked and not part.startswith("_")
    ]
    return _table(rows)


def _answer(part: str) -> str:
    """Read the first paragraph of a module's docstring, without running it."""
    package = ROOT / "src/doppler" / part
    path = package / "__init__.py" if package.is_dir() else package.with_suffix(".py")
    text = ast.get_docstring(ast.parse(read_text(path, "module", DopplerError))) or ""
    text = re.sub(r":\w+:`", "`", text.split("\n\n")[0]).replace("``", "`")
    return " ".join(text.split()).rstrip(".")


def make_map(_reports: Path) -> None:
    """Rewrite the map of docs/architecture.md."""
    _rewrite("docs/architecture.md", {"map": map_of_parts()})


def make_gallery(_reports: Path) -> None:
    """Rewrite the tables of docs/gallery.md."""
    found = models_tables.read(SCRIPTS / "models.json")
    _rewrite("docs/gallery.md", models_tables.blocks(found))


def make_claims(reports: Path) -> None:
    """Rewrite what README and docs/experiments.md say of the claims."""
    claims = claims_table.read(reports / "experiments.json")
    _rewrite("docs/experiments.md", {"claims": claims_table.table(claims)})
    _rewrite("README.md", {"experiments": claims_table.sentence(claims)})


def make_quotes(_reports: Path) -> None:
    """Rewrite the numbers of the code that documents quote."""
    for path in documents():
        text = read_text(path, "document", DopplerError)
        if (now := with_quotes(text, path.name)) != text:
            write_atomic(path, now)


def documents() -> list[Path]:
    """README.md and the pages, without the reference."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def make_example(_reports: Path) -> None:
    """Run the README's first command and show what it prints."""
    text = read_text(ROOT / "README.md", "document", DopplerError)
    command = re.search(r"^doppler place .*$", text, re.MULTILINE)
    if command is None:
        raise DopplerError("README.md: has no line that starts with 'doppler place'")
    _rewrite("README.md", {"place": f"```text\n{printed(command[0])}\n```"})


def _rewrite(name: str, blocks: dict[str, str]) -> None:
    path = ROOT / name
    text = read_text(path, "document", DopplerError)
    for block, content in blocks.items():
        text = replaced(text, block, content, name)
    write_atomic(path, text)


PARTS: dict[str, Callable[[Path], None]] = {
    "table": make_table,
    "picture": make_picture,
    "reference": make_reference,
    "map": make_map,
    "gallery": make_gallery,
    "claims": make_claims,
    "quotes": make_quotes,
    "example": make_example,
}


def main() -> int:
    """Make the parts that are asked for, all of them by default."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--reports", type=Path, default=ROOT / "reports", help="of the pipeline")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - PARTS.keys():
        parser.error(f"unknown part {min(unknown)!r}: known are {', '.join(PARTS)}")
    failed = 0
    for part in arguments.parts or PARTS:
        try:
            PARTS[part](arguments.reports.resolve())
        except DopplerError as error:
            print(f"{part}: left as it is: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
