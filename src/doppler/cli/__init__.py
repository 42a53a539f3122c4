"""The ``doppler`` command: one file per subcommand, heavy imports inside the functions."""

from doppler.cli.main import main

__all__ = ["main"]
