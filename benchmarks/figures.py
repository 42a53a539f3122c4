"""What the benchmarks share: the sizes that they grow through, and their command line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

# Whole Llama layers of 1,024 ops each: the graph grows in length, its ops keep their degree.
LAYERS = (1, 3, 10, 30, 98, 293)


def print_figures(measure: Callable[[], dict[str, Any]], description: str | None) -> None:
    """Print what ``measure`` returns, with ``--json`` as one object.

    Parameters
    ----------
    measure : callable
        Not called where the command line is at fault or asks for help.
    description : str
        What the help says first.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    as_json = parser.parse_args().json
    figures = measure()
    if as_json:
        print(json.dumps(figures))
        return
    for key, value in figures.items():
        print(f"{key:24} {value}")
