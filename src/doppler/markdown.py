"""Tables in Markdown, for reports, artifacts of Prefect and W&B."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Lay out rows as a table; floats are given four significant digits.

    Parameters
    ----------
    columns : sequence of str
    rows : iterable of sequence, each as long as ``columns``

    Returns
    -------
    str
        Without a line break at its end.
    """
    cells = [[markdown_cell(value) for value in row] for row in rows]
    lines = [columns, ["---"] * len(columns), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown_cell(value: object) -> str:
    """Write a value on one line that does not end its cell."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.split()).replace("|", "\\|")
