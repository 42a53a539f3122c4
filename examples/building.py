"""How every example is built: repeatable, and on the device that suits its size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

#: A model and its example inputs: positional, or by keyword.
Example = tuple[torch.nn.Module, tuple[Any, ...] | dict[str, Any]]


@contextmanager
def seeded(size: str) -> Iterator[None]:
    """Draw the same weights and inputs each time; allocate nothing for those of full size."""
    with torch.random.fork_rng(devices=[]), torch.device("meta" if size == "full" else "cpu"):
        torch.manual_seed(0)
        yield


def sized(
    sizes: Mapping[str, Mapping[str, Any]], size: str, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Look up the numbers of a size, some of them changed.

    Raises
    ------
    ValueError
        On another size or name than there are.
    """
    if size not in sizes:
        raise ValueError(f"size is {size!r}, must be one of {', '.join(sizes)}")
    if unknown := changes.keys() - sizes[size].keys():
        raise ValueError(f"{min(unknown)!r} is no number of it: {', '.join(sizes[size])}")
    return {**sizes[size], **changes}


def full_of(model: Callable[[str], Example]) -> Callable[[], Example]:
    """Make a function without arguments of one that takes a size."""

    def full() -> Example:
        """Return the model in full size, on the meta device, and its example inputs."""
        return model("full")

    return full


def build(name: str, size: str = "tiny", **changes: int) -> Example:
    """Build an example by its name in :data:`examples.EXAMPLES`."""
    module, _, function = name.partition(":")
    built: Example = getattr(import_module(f"examples.{module}"), function)(size, **changes)
    return built
