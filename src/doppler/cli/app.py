"""The subcommands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

import doppler
from doppler.cli.bound import EXAMPLES as BOUND_EXAMPLES
from doppler.cli.bound import bound
from doppler.cli.capture import EXAMPLES as CAPTURE_EXAMPLES
from doppler.cli.capture import capture
from doppler.cli.compare import EXAMPLES as COMPARE_EXAMPLES
from doppler.cli.compare import compare
from doppler.cli.convert import EXAMPLES as CONVERT_EXAMPLES
from doppler.cli.convert import convert
from doppler.cli.place import EXAMPLES as PLACE_EXAMPLES
from doppler.cli.place import place
from doppler.cli.profile import EXAMPLES as PROFILE_EXAMPLES
from doppler.cli.profile import profile
from doppler.cli.registry import EXAMPLES as REGISTRY_EXAMPLES
from doppler.cli.registry import commands as registry_commands
from doppler.cli.run import EXAMPLES as RUN_EXAMPLES
from doppler.cli.run import run
from doppler.cli.show import EXAMPLES as SHOW_EXAMPLES
from doppler.cli.show import show
from doppler.cli.simulate import EXAMPLES as SIMULATE_EXAMPLES
from doppler.cli.simulate import simulate


def _epilog(examples: tuple[str, ...], *notes: str) -> str:
    """Lay out examples one a line; the backspace keeps a paragraph's lines apart."""
    return "\n\n".join(["\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples), *notes])


app = typer.Typer(
    name="doppler",
    help="Learn which device runs each op of a machine-learning graph, and in which order.",
    epilog=_epilog(
        (
            "doppler capture models.net:example -o net.json",
            "doppler place net.json --cluster p100x4 -o placement.json",
            "doppler simulate net.json placement.json --cluster p100x4",
            "doppler compare workload:llama_layer --cluster v100x8 --budget 10",
        ),
        "Exit codes: 0 done, 2 bad input or usage, 130 interrupted.",
    ),
    context_settings={"help_option_names": ["-h", "--help"]},
    # Plain help: it starts faster, pipes well, and keeps the lines of the examples.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"doppler {doppler.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("capture", epilog=_epilog(CAPTURE_EXAMPLES))(capture)
app.command("convert", epilog=_epilog(CONVERT_EXAMPLES))(convert)
app.command("show", epilog=_epilog(SHOW_EXAMPLES))(show)
app.command("place", epilog=_epilog(PLACE_EXAMPLES))(place)
app.command("simulate", epilog=_epilog(SIMULATE_EXAMPLES))(simulate)
app.command("run", epilog=_epilog(RUN_EXAMPLES))(run)
app.command("compare", epilog=_epilog(COMPARE_EXAMPLES))(compare)
app.command("bound", epilog=_epilog(BOUND_EXAMPLES))(bound)
app.add_typer(registry_commands(), name="registry", epilog=_epilog(REGISTRY_EXAMPLES))
app.command("profile", epilog=_epilog(PROFILE_EXAMPLES))(profile)
