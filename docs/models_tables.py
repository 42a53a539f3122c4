"""The tables of docs/gallery.md, from what benchmarks/models.py has found."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from doppler.errors import DopplerError
from doppler.files import read_text
from doppler.viewer.units import format_bytes, format_seconds

OWN, BALANCED = "doppler", "balanced"
KINDS = ("batch", "single", "training")
NOTHING = "Nothing is in the file."
# Equal but for the order of ops that do not wait for each other.
TIE = 1.002

Row = Mapping[str, Any]


def read(path: Path) -> dict[str, Any]:
    """Read the file.

    Raises
    ------
    DopplerError
        If it is missing or damaged.
    """
    try:
        found: dict[str, Any] = json.loads(read_text(path, "report", DopplerError))
        return {"simulated": found["simulated"], "run": found["run"]}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DopplerError(f"{path}: is no report of this benchmark ({error})") from None


def blocks(report: Mapping[str, Any]) -> dict[str, str]:
    """Lay out the blocks of the page by their names."""
    found = {"measured": measured(report["run"])}
    for kind in KINDS:
        rows = [row for row in report["simulated"] if row["kind"] == kind]
        found[kind] = f"{summary(rows)}\n\n{simulated(rows)}" if rows else NOTHING
    return found


def summary(rows: Sequence[Row]) -> str:
    """Say in how many cases Doppler is at or below every other, and by how much it beats each."""
    peers = [key for key in rows[0]["answers"] if key != OWN]
    possible = [row for row in rows if any(_seconds(row, key) for key in row["answers"])]
    wins = sum(not behind(row) for row in possible)
    text = (
        f"In {wins} of {len(possible)} cases Doppler is at or below every other way, within "
        f"{TIE - 1:.1%}. On geometric mean of the cases in which both fit, the others take longer: "
    )
    parts = []
    for peer in peers:
        ratios = [_seconds(row, peer) / own for row in rows if (own := _both(row, peer))]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            parts.append(f"{peer} {mean:.2f} times as long ({len(ratios)} cases)")
    text += ", ".join(parts) + "."
    if not parts:
        text = text[: text.index(" On geometric")]
    lacking = {
        peer: count for peer in peers if (count := sum(_seconds(row, peer) is None for row in rows))
    }
    if lacking:
        told = ", ".join(f"{peer} in {count}" for peer, count in lacking.items())
        text += f" Not possible, for memory or because the model cannot be cut so: {told}."
    if len(possible) < len(rows):
        text += f" In {len(rows) - len(possible)} more nothing was found that fits."
    return textwrap.fill(text, 100, break_on_hyphens=False)


def behind(row: Row) -> list[str]:
    """Name the peers that are faster than Doppler in a case."""
    own = _seconds(row, OWN)
    found = []
    for peer in row["answers"]:
        other = _seconds(row, peer)
        if peer != OWN and other is not None and (own is None or own > TIE * other):
            found.append(peer)
    return found


def simulated(rows: Sequence[Row]) -> str:
    """Lay out the seconds of every placement, a table for each cluster."""
    tables = []
    for cluster in dict.fromkeys(row["cluster"] for row in rows):
        own = [row for row in rows if row["cluster"] == cluster]
        keys = list(own[0]["answers"])
        lines = [
            ["model", "parameters and inputs", *keys, "how", f"{BALANCED} / {OWN}"],
            ["---", "---:", *["---:"] * len(keys), "---", "---:"],
        ]
        for row in own:
            both = _both(row, BALANCED)
            lines.append(
                [
                    label(row["example"]),
                    format_bytes(row["parameter_bytes"]),
                    *(_cell(row, key) for key in keys),
                    row["answers"][OWN]["note"] if _seconds(row, OWN) else "nothing fits",
                    f"{_seconds(row, BALANCED) / both:.2f}" if both else "-",
                ]
            )
        tables.append(f"On `{cluster}`:\n\n{_table(lines)}")
    return "\n\n".join(tables)


def measured(rows: Sequence[Row]) -> str:
    """Lay out the medians of runs on two devices beside one."""
    if not rows:
        return NOTHING
    keys = list(rows[0]["seconds"])
    lines = [["model", *keys, "against one device"], ["---", *["---:"] * (len(keys) + 1)]]
    for row in rows:
        seconds = row["seconds"]
        ratio = seconds["one device"] / seconds[OWN]
        cells = [format_seconds(seconds[key]) for key in keys]
        lines.append([label(row["example"]), *cells, f"{ratio:.2f} times as fast"])
    return _table(lines)


def label(example: str) -> str:
    """Shorten ``mlp:model`` to ``mlp``."""
    module, _, function = example.partition(":")
    return f"`{module}`" if function == "model" else f"`{module}:{function}`"


def _cell(row: Row, key: str) -> str:
    seconds = _seconds(row, key)
    text = "-" if seconds is None else format_seconds(seconds)
    return f"**{text}**" if key == OWN and seconds is not None and not behind(row) else text


def _seconds(row: Row, key: str) -> Any:
    return row["answers"][key]["seconds"]


def _both(row: Row, peer: str) -> float | None:
    """Seconds of Doppler where the peer has an answer, too."""
    own: float | None = _seconds(row, OWN)
    return own if _seconds(row, peer) is not None else None


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
