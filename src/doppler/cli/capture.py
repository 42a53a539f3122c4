"""``doppler capture``: a PyTorch model as a graph file."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doppler.cli.functions import call_function
from doppler.cli.inputs import check_output, stdout
from doppler.cli.options import JsonOption
from doppler.cli.output import make_facts, make_title, print_json, print_text, progress
from doppler.errors import CaptureError, DopplerError
from doppler.messages import shown, shown_value

if TYPE_CHECKING:
    from torch.nn import Module

    from doppler.graph import Graph

EXAMPLES = (
    "doppler capture models.net:example -o net.json",
    "doppler capture models.net:example -o net.json --shard batch=4 --shard tensor=2",
    "doppler capture models.net:example -o net.json --weights net.safetensors",
    "doppler capture models.net:training_example -o step.json --train",
)
_RETURNS = "must return (model, example_inputs) or (model, args, kwargs)"


def capture(
    function: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="Function without arguments that returns (model, example_inputs), or (model, "
            "args, kwargs); imported from the current directory first.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help="Graph file to write; '-' is stdout, and nothing else goes there.",
            show_default=False,
            callback=stdout,
        ),
    ],
    shard: Annotated[
        list[str] | None,
        typer.Option(
            "--shard",
            metavar="KIND=N",
            help="Split the batch (batch=4), or matrices and attention heads (tensor=2); may be "
            "repeated.",
            show_default=False,
        ),
    ] = None,
    fusion: Annotated[
        float | None,
        typer.Option(
            "--fusion",
            metavar="X",
            help="Share of the work below which a call is fused into its neighbor; 0: every call "
            "is an op.",
            show_default=False,
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights",
            metavar="FILE",
            help="Write parameters, buffers and constants here, as safetensors.",
            show_default=False,
        ),
    ] = None,
    train: Annotated[
        bool,
        typer.Option(
            "--train",
            help="Capture a training step: forward, loss and backward. The model returns the loss, "
            "or the function returns (model, args, kwargs, loss), where loss takes it from that.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Capture a PyTorch model as a graph, with its costs; nothing is computed but shapes."""
    silent = check_output(output, json=json)
    if weights is not None:
        check_output(weights)
        if weights == output:
            raise DopplerError(f"{weights}: is the graph file already; choose another path")
    ways = _ways(shard or [])
    start = perf_counter()
    with progress("loading"):
        model, args, kwargs, loss = _model(call_function(function), function)
    loaded = perf_counter()
    with progress("capturing"):
        from doppler.capture.capture import capture as capture_model
        from doppler.capture.fusion import FUSE
        from doppler.graph.formats import save_graph

        share = FUSE if fusion is None else fusion
        captured = capture_model(
            model,
            args,
            kwargs=kwargs,
            training=train,
            loss=loss if train else None,
            shard=ways,
            fusion=share,
        )
        seconds = perf_counter() - loaded
        if weights is not None:
            from doppler.capture.weights import save_weights

            save_weights(weights, model, captured.constants)
        save_graph(captured.graph, output)
    values: dict[str, Any] = {
        "function": function,
        "graph": captured.graph.name,
        **_sizes(captured.graph),
        "shard": ways,
        "fusion": share,
        "training": train,
        "mode": "train" if model.training else "eval",
        "load_s": loaded - start,
        "capture_s": seconds,
        "output": str(output),
        "weights": None if weights is None else str(weights),
    }
    if json:
        print_json(values)
    elif not silent:
        _print(values)


def _ways(shards: list[str]) -> dict[str, int]:
    """Read ``KIND=N``, each kind once."""
    ways: dict[str, int] = {}
    for text in shards:
        kind, equals, number = text.partition("=")
        if not (equals and number.isascii() and number.isdigit() and len(number) < 10):
            raise DopplerError(f"--shard {shown(text)}: write it as batch=4 or tensor=2")
        if kind in ways:
            raise DopplerError(f"--shard {shown(text)}: {kind} is given twice")
        ways[kind] = int(number)
    return ways


def _model(returned: Any, function: str) -> tuple[Module, Any, Any, Any]:
    """Take apart what the function returned: model, arguments, keyword arguments, loss."""
    import torch

    if isinstance(returned, torch.nn.Module):
        raise CaptureError(f"{function}: returned a model alone; it {_RETURNS}")
    if not isinstance(returned, tuple) or len(returned) not in (2, 3, 4):
        raise CaptureError(f"{function}: returned {shown_value(returned)}; it {_RETURNS}")
    model, args = returned[:2]
    if not isinstance(model, torch.nn.Module):
        raise CaptureError(
            f"{function}: returned {shown_value(model)} as the model, which is no torch.nn.Module; "
            f"it {_RETURNS}"
        )
    kwargs, loss = (*returned[2:], None, None)[:2]
    if not (loss is None or callable(loss)):
        raise CaptureError(f"{function}: returned {shown_value(loss)} as the loss, no function")
    return model, args, kwargs, loss


def _sizes(graph: Graph) -> dict[str, Any]:
    """Sum up a captured graph."""
    import math

    from doppler.capture.program import WIDTHS

    def size(*roles: str) -> int:
        specs = [spec for spec in graph.tensors.values() if spec.role in roles]
        return sum(math.prod(spec.shape) * WIDTHS[spec.dtype or "float32"] for spec in specs)

    largest = int(graph.flops.argmax())
    parameters = [spec for spec in graph.tensors.values() if spec.role == "parameter"]
    return {
        "ops": graph.n_ops,
        "edges": graph.n_edges,
        "meta_ops": len(set(graph.meta_ops)),
        "flops": float(graph.flops.sum()),
        "largest_op": {
            "name": graph.names[largest],
            "kind": graph.kinds[largest],
            "flops": float(graph.flops[largest]),
        },
        "tensors": len(parameters),
        "parameters": sum(math.prod(spec.shape) for spec in parameters),
        "parameter_bytes": size("parameter"),
        "state_bytes": size("buffer", "constant"),
        "input_bytes": size("input"),
    }


def _print(values: dict[str, Any]) -> None:
    from doppler.viewer.units import (
        count_of,
        format_bytes,
        format_flops,
        format_percent,
        format_seconds,
    )

    largest = values["largest_op"]
    share = largest["flops"] / values["flops"] if values["flops"] else 0.0
    ways = [f"{kind} in {ways}" for kind, ways in values["shard"].items()]
    parameters = (
        f"{format_bytes(values['parameter_bytes'])}: {values['parameters']:,} in "
        f"{count_of(values['tensors'], 'tensor')}"
    )
    rows = [
        ("ops", f"{values['ops']:,}, {count_of(values['edges'], 'edge')}"),
        ("compute", format_flops(values["flops"])),
        ("largest op", f"{largest['name']}, {format_percent(share)} of the compute"),
        ("parameters", parameters),
        ("buffers, constants", format_bytes(values["state_bytes"])),
        ("inputs", format_bytes(values["input_bytes"])),
        ("shards", ", ".join(ways) or "none; give --shard"),
        ("captured", "a training step" if values["training"] else "the forward pass"),
        ("mode", values["mode"]),
        ("took", f"{format_seconds(values['capture_s'], 3)}"),
        ("written to", values["output"]),
        ("weights", values["weights"] or "not written; give --weights"),
    ]
    print_text(make_title(f"{values['graph']}, from {values['function']}"), make_facts(rows))
