"""Colors that stay apart for color-blind readers, on a light and on a dark page.

The eight hues are those of Okabe and Ito, "Color Universal Design" (2008), with gray for black.
After the eighth they come again lighter, then darker; after the twenty-fourth they repeat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_HUES = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#f0e442",
    "#8d95a0",
)
#: Transfers: quiet beside the ops, and unlike any of the hues.
TRANSFER = "#9aa5b5"


@dataclass(frozen=True, slots=True)
class Categories:
    """Labels turned into small numbers with a color each, the most frequent label first.

    Attributes
    ----------
    values : tuple of str
        The distinct labels.
    index : tuple of int
        For every item, its label's place in ``values``.
    counts : tuple of int
        How many items have each label.
    colors : tuple of str
        ``#rrggbb`` of each label.
    """

    values: tuple[str, ...]
    index: tuple[int, ...]
    counts: tuple[int, ...]
    colors: tuple[str, ...]

    def to_json(self) -> dict[str, tuple[str, ...] | tuple[int, ...]]:
        """Return the form that the pages read."""
        return {
            "values": self.values,
            "index": self.index,
            "counts": self.counts,
            "colors": self.colors,
        }


def categorize(labels: Sequence[str], order: Sequence[str] | None = None) -> Categories:
    """Give every distinct label a number and a color.

    Parameters
    ----------
    labels : sequence of str
        One per item.
    order : sequence of str, optional
        Labels in the order to use (devices), those without items too. By default the most
        frequent comes first, ties by first appearance.
    """
    counts = Counter(labels)
    values = tuple(order) if order is not None else tuple(v for v, _ in counts.most_common())
    place = {value: i for i, value in enumerate(values)}
    return Categories(
        values=values,
        index=tuple(place[label] for label in labels),
        counts=tuple(counts[value] for value in values),
        colors=tuple(color(i) for i in range(len(values))),
    )


def color(index: int) -> str:
    """Return the color of category ``index`` as ``#rrggbb``."""
    base = _HUES[index % len(_HUES)]
    turn = index // len(_HUES) % 3
    if turn == 0:
        return base
    target = 255 if turn == 1 else 0
    channels = (int(base[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(c + (target - c) * 0.42):02x}" for c in channels)
