"""``doppler registry``: versions of policies, and which of them is the champion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doppler.cli.options import JsonOption
from doppler.cli.output import make_facts, make_table, make_title, print_json, print_text
from doppler.errors import RegistryError

if TYPE_CHECKING:
    from rich.text import Text

    from doppler.registry import Registry, Version

EXAMPLES = (
    "doppler registry add --policy models/policy.safetensors --metric ratio=1.02",
    "doppler registry list",
    "doppler registry promote v1",
    "doppler place layer.json --cluster p100x4 --policy champion",
)
_EXAMPLES = {
    "list": ("doppler registry list", "doppler registry list --json"),
    "show": ("doppler registry show v3", "doppler registry show champion --json"),
    "add": (
        "doppler registry add --policy models/policy.safetensors --metric ratio=1.02",
        "doppler registry add --policy p.safetensors --placement layer.json --cluster c.yaml "
        "--parent v3",
    ),
    "promote": ("doppler registry promote v3 --reason 'faster on all workloads'",),
    "rollback": ("doppler registry rollback --reason 'slower since Monday'",),
    "verify": ("doppler registry verify", "doppler registry verify v3 --json"),
}
_DIRECTORY = Path("models/registry")

DirectoryOption = Annotated[
    Path, typer.Option("--directory", "-d", metavar="DIR", help="Folder of the registry.")
]
VersionArgument = Annotated[
    str,
    typer.Argument(metavar="ID", help="Version, such as v3, or 'champion'.", show_default=False),
]
ReasonOption = Annotated[
    str | None,
    typer.Option("--reason", metavar="TEXT", help="Kept in the history.", show_default=False),
]


def list_versions(directory: DirectoryOption = _DIRECTORY, json: JsonOption = False) -> None:
    """List every version, oldest first."""
    registry = _open(directory)
    if json:
        print_json(registry.to_json())
        return
    versions = registry.versions()
    if not versions:
        print_text(_line(f"{directory}: no versions; 'doppler registry add' adds one"))
        return
    from rich.text import Text

    table = make_table("id", "status", "created", "parent", "metrics", "git")
    for version in versions:
        status = registry.status(version.id)
        table.add_row(
            version.id,
            Text(status, style="bold" if status == "champion" else ""),
            version.created[:19].replace("T", " "),
            version.parent or "-",
            _line(_metrics(version) or "-"),
            _line(str(version.origin.get("git") or "-")[:12]),
        )
    print_text(table)


def show(
    version: VersionArgument, directory: DirectoryOption = _DIRECTORY, json: JsonOption = False
) -> None:
    """Show a version.

    Its files, where it comes from, and what was decided about it.
    """
    registry = _open(directory)
    found = _version(registry, version)
    if json:
        print_json(registry.describe(found.id))
        return
    rows = [
        ("status", registry.status(found.id)),
        ("created", found.created),
        ("parent", found.parent or "-"),
        ("metrics", _metrics(found) or "-"),
        *((f"origin: {name}", _short(value)) for name, value in found.origin.items()),
    ]
    from doppler.viewer.units import format_bytes

    files = make_table("file", ">size", "SHA-256")
    for name, file in sorted(found.files.items()):
        files.add_row(_line(name), format_bytes(file.size), file.sha256)
    decisions = make_table("time", "decision", "version", "champion before", "evidence")
    for event in registry.history.of(found.id):
        decisions.add_row(
            event.time[:19].replace("T", " "),
            event.kind,
            event.id,
            event.previous or "-",
            _line(_short(event.evidence.get("text") or event.evidence.get("reason") or "-")),
        )
    print_text(make_title(str(found.directory)), make_facts(rows), _line(""), files)
    if decisions.row_count:
        print_text(_line(""), decisions)


def add(
    policy: Annotated[
        str,
        typer.Option(
            "--policy", metavar="F", help="Policy file, or 'pretrained'.", show_default=False
        ),
    ],
    placement: Annotated[
        list[Path] | None,
        typer.Option(
            "--placement",
            metavar="F",
            help="Placement to keep with it, under its own name; may be repeated.",
            show_default=False,
        ),
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(
            "--cluster", metavar="F", help="Cluster file to keep with it.", show_default=False
        ),
    ] = None,
    parent: Annotated[
        str | None,
        typer.Option(
            "--parent",
            metavar="ID",
            help="Version that it was trained from, or 'champion'.",
            show_default=False,
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric", metavar="K=V", help="A figure; may be repeated.", show_default=False
        ),
    ] = None,
    directory: DirectoryOption = _DIRECTORY,
    json: JsonOption = False,
) -> None:
    """Add a version, as a challenger.

    The git revision and hashes of the parameters and the data of this folder are noted.
    """
    metrics = _parse_metrics(metric or ())
    registry = _open(directory)
    source = None if parent is None else _version(registry, parent).id
    files = _files(policy, placement or (), cluster)
    from doppler.registry import describe_origin

    found = registry.add(files, parent=source, origin=describe_origin(), metrics=metrics)
    _tell(registry, found, f"{found.directory}: added as a challenger", json)


def promote(
    version: Annotated[
        str, typer.Argument(metavar="ID", help="Version, such as v3.", show_default=False)
    ],
    reason: ReasonOption = None,
    directory: DirectoryOption = _DIRECTORY,
    json: JsonOption = False,
) -> None:
    """Make a version the champion.

    Its files are verified first. The present champion is retired.
    """
    registry = _open(directory)
    found = registry.promote(version, _evidence(reason))
    _tell(registry, found, f"{found.directory}: is the champion now", json)


def rollback(
    reason: ReasonOption = None,
    directory: DirectoryOption = _DIRECTORY,
    json: JsonOption = False,
) -> None:
    """Return to the champion before.

    The present one is rejected. May be repeated, until the first champion.
    """
    registry = _open(directory)
    found = registry.rollback(_evidence(reason))
    _tell(registry, found, f"{found.directory}: is the champion again", json)


def verify(
    version: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="One version; by default everything.", show_default=False
        ),
    ] = None,
    directory: DirectoryOption = _DIRECTORY,
    json: JsonOption = False,
) -> None:
    """Check every file by its SHA-256.

    That was noted when the version was added. Exits with 2 if anything is damaged.
    """
    registry = _open(directory)
    if version is None:
        if not directory.is_dir():
            raise RegistryError(f"{directory}: no such folder; give the folder of a registry")
        checked = "the registry"
        problems = registry.problems()
    else:
        found = _version(registry, version)
        checked = found.id
        problems = found.problems()
    if json:
        print_json({"directory": str(directory), "ok": not problems, "problems": problems})
    else:
        print_text(*(_line(problem) for problem in problems))
    if problems:
        from doppler.viewer.units import count_of

        raise RegistryError(
            f"{directory}: {count_of(len(problems), 'problem')}; restore the files with "
            "'dvc pull --force'"
        )
    if not json:
        print_text(_line(f"{directory}: every file of {checked} is as it was added"))


def commands() -> typer.Typer:
    """Put the subcommands together."""
    app = typer.Typer(
        help="Keep versions of policies: champion, challengers, rollback.", rich_markup_mode=None
    )
    for name, function in (
        ("list", list_versions),
        ("show", show),
        ("add", add),
        ("promote", promote),
        ("rollback", rollback),
        ("verify", verify),
    ):
        examples = "\n".join(f"  {line}" for line in _EXAMPLES[name])
        app.command(name, epilog=f"\b\nExamples:\n{examples}")(function)
    return app


def _open(directory: Path) -> Registry:
    from doppler.registry import Registry

    return Registry(directory)


def _version(registry: Registry, name: str) -> Version:
    if name != "champion":
        return registry.version(name)
    return registry.require_champion()


def _tell(registry: Registry, version: Version, text: str, json: bool) -> None:
    if json:
        print_json(registry.describe(version.id))
    else:
        print_text(_line(text))


def _evidence(reason: str | None) -> dict[str, Any]:
    return {"by": "hand", **({} if reason is None else {"reason": reason})}


def _files(policy: str, placements: Sequence[Path], cluster: Path | None) -> dict[str, Path]:
    """Name the files of a version, once each was found to be what it should be."""
    from doppler.cluster import Cluster
    from doppler.policy.checkpoint import load_frozen, policy_path
    from doppler.registry import CLUSTER, POLICY, is_placement, read_placements

    load_frozen(policy)
    files = {POLICY: policy_path(policy)}
    for path in placements:
        name = path.name if is_placement(path.name) else f"placement-{path.stem}.json"
        if name in files:
            raise RegistryError(f"{path}: there are two placements of the name {name}; rename one")
        files[name] = path
    read_placements(files)
    if cluster is not None:
        Cluster.load(cluster.absolute())
        files[CLUSTER] = cluster
    return files


def _parse_metrics(pairs: Iterable[str]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        try:
            value = float(text)
        except ValueError:
            equals = ""
        if not (name and equals):
            raise RegistryError(f"--metric {pair}: is not of the form ratio=1.02")
        if name in metrics:
            raise RegistryError(f"--metric {pair}: {name} is given twice")
        metrics[name] = value
    return metrics


def _metrics(version: Version) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in version.metrics.items())


def _short(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(entry)}" for name, entry in value.items())
    return "-" if value is None else str(value)


def _line(text: str) -> Text:
    from rich.text import Text

    from doppler.viewer.labels import printable

    return Text(printable(text))
