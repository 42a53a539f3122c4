"""PyTorch models on several devices: captured, placed, run, and refined from measured times."""

from doppler.placed.compiler import compile
from doppler.placed.model import PlacedModel
from doppler.placed.saving import load_placed

__all__ = ["PlacedModel", "compile", "load_placed"]
