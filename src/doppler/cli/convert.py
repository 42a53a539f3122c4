"""``doppler convert``: a graph from one file format to another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from doppler.cli.inputs import check_output, read_graph, stdin, stdout
from doppler.cli.options import JsonOption
from doppler.cli.output import print_json, print_text, progress

EXAMPLES = (
    "doppler convert layer.txt layer.json",
    "doppler convert layer.json layer.txt",
    "doppler convert 'workload:llama_layer?layers=2&tiles=8' llama.json",
)


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="Graph file of any format, '-' for stdin, or workload:NAME.",
            show_default=False,
            callback=stdin,
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help="File to write, or '-' for stdout.",
            show_default=False,
            callback=stdout,
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="doppler|text",
            help="Format; by default text if OUT ends with .txt, otherwise Doppler's JSON.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Convert a graph file, or save a generated workload."""
    silent = check_output(target, json=json)
    form = to or ("text" if target.suffix == ".txt" else "doppler")
    with progress("converting"):
        from doppler.graph.formats import save_graph

        graph = read_graph(source)
        save_graph(graph, target, form)
    if json:
        print_json(
            {
                "input": source,
                "output": str(target),
                "format": form,
                "graph": graph.name,
                "ops": graph.n_ops,
                "edges": graph.n_edges,
            }
        )
    elif not silent:
        from rich.text import Text

        from doppler.viewer.labels import printable
        from doppler.viewer.units import count_of

        sizes = f"{count_of(graph.n_ops, 'op')}, {count_of(graph.n_edges, 'edge')}"
        print_text(Text(printable(f"{target}: {graph.name}, {sizes}, format {form}")))
