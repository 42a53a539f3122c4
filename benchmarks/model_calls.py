"""What a call of a placed model costs beside the model itself, on one device with as many threads.

``python benchmarks/model_calls.py`` prints one row for each example: in tiny size, where an op
takes microseconds, the difference in microseconds for each op; in small size, where ops take a
millisecond and more, the ratio. Then it places a GPT-2 of twelve layers on two devices, and times
how long that takes and the first call.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch

import doppler

sys.path.append(str(Path(__file__).parents[1]))

from examples import EXAMPLES
from examples.building import Example, build

# Calls before those that count.
WARM_UP = 3
# Seconds for the calls of an example.
SECONDS = 2.0
LEAST, MOST = 7, 400


def compared(example: Example) -> tuple[int, float, float]:
    """Time a model and its placed form by turns.

    Returns
    -------
    ops : int
    eager, placed : float
        Median seconds of a call.
    """
    model, inputs = example
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    with doppler.compile(model, inputs, ["cpu:0"], threads=1, shard=None, budget=0.0) as placed:

        def timed(call: Callable[..., object]) -> float:
            began = time.perf_counter()
            call(*args, **kwargs)
            return time.perf_counter() - began

        with torch.no_grad():
            first = [timed(model) + timed(placed) for _ in range(WARM_UP)]
            turns = range(min(MOST, max(LEAST, int(SECONDS / min(first)))))
            pairs = [(timed(model), timed(placed)) for _ in turns]
        return placed.graph.n_ops, median(a for a, _ in pairs), median(b for _, b in pairs)


def first_run(layers: int = 12, budget: float = 2.0) -> dict[str, float]:
    """Capture, place and run a GPT-2 of the usual width on two devices; seconds of each part."""
    model, inputs = build(
        "gpt2:model",
        "tiny",
        n_layer=layers,
        n_embd=768,
        n_head=12,
        n_positions=128,
        vocab_size=50257,
    )
    began = time.perf_counter()
    with doppler.compile(model, inputs, ["cpu:0", "cpu:1"], threads=1, budget=budget) as placed:
        compiled = time.perf_counter()
        placed(**inputs) if isinstance(inputs, dict) else placed(*inputs)
        return {"compile": compiled - began, "first call": time.perf_counter() - compiled}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", nargs="+", choices=EXAMPLES, default=list(EXAMPLES))
    parser.add_argument("--sizes", nargs="+", choices=("tiny", "small"), default=["tiny", "small"])
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for size in asked.sizes:
        print(f"{size:<20}{'ops':>5}{'eager ms':>11}{'placed ms':>11}{'us an op':>10}{'ratio':>8}")
        for name in asked.examples:
            ops, eager, placed = compared(build(name, size))
            each = (placed - eager) / ops * 1e6
            print(
                f"{name:<20}{ops:>5}{eager * 1e3:>11.3f}{placed * 1e3:>11.3f}{each:>10.1f}"
                f"{placed / eager:>8.3f}",
                flush=True,
            )
    parts = first_run()
    print(
        "GPT-2, 12 layers: " + ", ".join(f"{name} {value:.1f} s" for name, value in parts.items())
    )


if __name__ == "__main__":
    main()
