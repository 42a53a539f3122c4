"""Which policy to train."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from pydantic import field_validator

from doppler.errors import UnknownNameError
from doppler.policy.checkpoint import MOST
from doppler.policy.frozen import Sizes
from doppler.settings import Settings


class PolicySettings(Settings):
    """A policy to train.

    Attributes
    ----------
    sizes : Sizes
    features : str
        ``"full"``, or ``"paper"`` for the five device features of the paper alone.
    """

    sizes: Sizes = Sizes()
    features: Literal["full", "paper"] = "full"

    @field_validator("sizes", mode="before")
    @classmethod
    def _sizes(cls, sizes: Any) -> Any:
        """Make sizes of a mapping: they are a dataclass, since inference does without pydantic."""
        if not isinstance(sizes, dict):
            return sizes
        known = [field.name for field in dataclasses.fields(Sizes)]
        for name, size in sizes.items():
            if name not in known:
                raise ValueError(UnknownNameError("parameter", str(name), known))
            if type(size) is not int or not 1 <= size <= MOST:
                raise ValueError(f"{name} is {size!r}, must be a whole number from 1 to {MOST}")
        return Sizes(**sizes)
