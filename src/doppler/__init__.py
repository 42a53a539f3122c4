"""Doppler: learned placement of machine-learning dataflow graphs on clusters of devices."""

from doppler.graph import Graph

__all__ = ["Graph"]
__version__ = "0.1.0"
