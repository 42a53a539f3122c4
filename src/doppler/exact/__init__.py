"""What nobody can beat: optima of small problems by constraint programming, bounds of any."""

from doppler.exact.optimum import ExactResult, exact

__all__ = ["ExactResult", "exact"]
