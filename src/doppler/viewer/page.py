"""Self-contained HTML pages: templates with escaping always on, and data that cannot break out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def render(package: str, template: str, **values: Any) -> str:
    """Fill a template of ``package``; the viewer's own templates can be extended and included.

    Parameters
    ----------
    package : str
        Dotted name of the package that has a ``templates`` folder.
    template : str
        File name in that folder.
    **values
        Every string is escaped, unless it is :class:`markupsafe.Markup`.
    """
    return _environment(package).get_template(template).render(**values)


def embed_json(data: Any) -> str:
    r"""Write JSON that may stand inside a ``<script>`` element whatever the strings in it hold.

    ``<``, ``>``, ``&`` and the line separators of JavaScript become ``\uXXXX``.
    Infinite numbers must have been replaced (see :func:`numbers`).
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


def numbers(values: Iterable[float], figures: int = 9) -> list[float | int | None]:
    """Round to ``figures`` significant figures; whole numbers as int, infinite ones as None."""
    short: list[float | int | None] = []
    for value in values:
        if not math.isfinite(value):
            short.append(None)
            continue
        rounded = float(f"{value:.{figures}g}")
        short.append(int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded)
    return short


@lru_cache(maxsize=4)
def _environment(package: str) -> Environment:
    # Imported late: most commands draw nothing, and the command line should start fast.
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    loaders = [PackageLoader(package), PackageLoader("doppler.viewer")]
    return Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
