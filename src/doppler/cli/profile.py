"""``doppler profile``: measure this machine, for placements that suit it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doppler.cli.inputs import check_output, read_graph, stdin_among, stdout
from doppler.cli.options import JsonOption
from doppler.cli.output import make_facts, make_table, make_title, print_json, print_text, progress

if TYPE_CHECKING:
    from doppler.profiling import Profile

EXAMPLES = (
    "doppler profile -o machine.yaml",
    "doppler profile --devices 2 --graph layer.json -o machine.yaml",
    "doppler place layer.json --cluster machine.yaml -o placement.json",
)


def profile(
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="CLUSTER.yaml",
            help="File to write, or '-' for stdout.",
            show_default=False,
            callback=stdout,
        ),
    ],
    backend: Annotated[
        str,
        typer.Option(
            "--backend", metavar="cpu|cuda", help="CPU threads, or every GPU and the CPU."
        ),
    ] = "cpu",
    devices: Annotated[
        int | None,
        typer.Option(
            "--devices",
            metavar="N",
            help="How many; by default 2 of cpu, all of cuda.",
            show_default=False,
        ),
    ] = None,
    graph: Annotated[
        list[str] | None,
        typer.Option(
            "--graph",
            "-g",
            metavar="GRAPH",
            help="Measure the ops of this graph, too; may be given several times.",
            show_default=False,
            callback=stdin_among,
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", help="Timings of which to take the median.")
    ] = 9,
    budget: Annotated[
        float, typer.Option("--budget", "-b", metavar="S", help="Seconds, about.")
    ] = 60.0,
    json: JsonOption = False,
) -> None:
    """Measure the devices and links of this machine, and write them as a cluster."""
    silent = check_output(output, *(graph or ()), json=json)
    with progress("loading"):
        from doppler import profiling

        graphs = [read_graph(source) for source in graph or []]
    found = profiling.profile(
        backend, devices, graphs, repeats=repeats, budget=budget, phase=progress
    )
    found.save(output)
    if json:
        print_json({**found.to_json(), "output": str(output)})
    elif not silent:
        _print(found, output)


def _print(found: Profile, output: Path) -> None:
    from rich.text import Text

    from doppler.viewer.labels import printable
    from doppler.viewer.units import format_bytes, format_flops, format_percent, format_seconds

    table = make_table(
        "device", "kind", ">FLOP/s", ">memory/s", ">memory", ">overhead", ">op classes"
    )
    for device, times in zip(found.cluster.devices, found.classes, strict=True):
        table.add_row(
            Text(printable(device.name)),
            device.kind,
            f"{format_flops(device.flops)}/s",
            f"{format_bytes(device.memory_bandwidth)}/s",
            format_bytes(device.memory),
            format_seconds(device.launch_overhead),
            f"{len(times):,}",
        )
    links = make_table("link", ">bandwidth", ">latency")
    names = [device.name for device in found.cluster.devices]
    for (source, target), link in found.links.items():
        links.add_row(
            Text(printable(f"{names[source]} to {names[target]}")),
            f"{format_bytes(link.bandwidth)}/s",
            format_seconds(link.latency),
        )
    parts: list[Any] = [
        make_title(f"{found.cluster.name}, measured in {format_seconds(found.seconds, 3)}"),
        make_facts(
            [
                ("written to", str(output)),
                ("taken by others", format_percent(found.disturbance)),
            ]
        ),
        Text(),
        table,
    ]
    if found.links:
        parts += [Text(), links]
    if found.left_out:
        missing = make_table("not measured", "because")
        for name, reason in found.left_out.items():
            missing.add_row(Text(printable(name)), Text(printable(reason)))
        parts += [Text(), missing]
    print_text(*parts)
