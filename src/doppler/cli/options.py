"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from doppler.cli.inputs import stdin, stdout

GraphArgument = Annotated[
    str,
    typer.Argument(
        metavar="GRAPH",
        help="Graph file of any supported format, '-' for stdin, or "
        "workload:NAME?size=value&tiles=count.",
        show_default=False,
        callback=stdin,
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        "-c",
        metavar="C",
        help="Preset, YAML file, or uniform:K; left out: the machine that the graph file names.",
        show_default=False,
        callback=stdin,
    ),
]
PlacementArgument = Annotated[
    str,
    typer.Argument(
        metavar="PLACEMENT",
        help="File from 'doppler place', or '-' for stdin.",
        show_default=False,
        callback=stdin,
    ),
]
TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="OUT",
        help="Write the run as JSON for Perfetto, Chrome and 'doppler show'; '-' is stdout.",
        show_default=False,
        callback=stdout,
    ),
]
PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="P",
        help="Policy file of the learned method, 'pretrained', or 'champion' of models/registry.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", help="Seed, at least 0.")]
RuntimeOption = Annotated[
    str,
    typer.Option(
        "--runtime",
        metavar="priority|fifo",
        help="Ready ops go by priority, or first ready, first run.",
    ),
]
JitterOption = Annotated[
    float,
    typer.Option(
        "--jitter",
        metavar="J",
        help="How much durations vary at run time: the standard deviation of their logarithm.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="OUT",
        help="Write the result here; '-' is stdout, and nothing else goes there.",
        show_default=False,
        callback=stdout,
    ),
]
