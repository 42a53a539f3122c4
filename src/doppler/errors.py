"""Errors that a user can act on: one line that names the file, the thing and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DopplerError(Exception):
    """Base of every error that stems from input; the command line exits with code 2 on it."""


class GraphError(DopplerError):
    """A graph or a graph file breaks a rule."""


class ClusterError(DopplerError):
    """A cluster or a cluster file breaks a rule."""


class ProblemError(DopplerError):
    """A graph cannot run on a cluster at all."""


class PlacementError(DopplerError):
    """A placement or a placement file does not suit its problem."""


class MemoryLimitError(ProblemError):
    """No placement was found that fits in the memory of the devices."""


class CheckpointError(DopplerError):
    """A checkpoint or policy file is corrupt, foreign, or of another feature set."""


class ParamsError(DopplerError):
    """A parameter is unknown or out of range."""


class RegistryError(DopplerError):
    """A version or the history of a registry is missing, damaged, held, or not what is asked."""


class LockedError(DopplerError):
    """Another process has held a lock for as long as this one would wait."""


class StorageError(DopplerError):
    """DVC, Git or a remote does not do what is asked; it may at another time."""


class PromotionError(DopplerError):
    """Champion and challenger cannot be compared."""


class MissingPackageError(DopplerError):
    """A method needs a package that is not installed or does not load here."""


class UnknownNameError(DopplerError):
    """A name (method, preset, workload, ...) is not known; the message offers the nearest."""

    def __init__(self, what: str, name: object, known: Iterable[str]) -> None:
        # The arguments themselves, so that the error can be sent to another process.
        super().__init__(what, name, sorted(known))

    def __str__(self) -> str:
        what, name, choices = self.args
        near = difflib.get_close_matches(str(name), choices, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        given = repr(name) if isinstance(name, str) else " ".join(repr(name).split())
        return f"unknown {what} {given}: {hint}known are {', '.join(choices)}"


class CaptureError(DopplerError):
    """A model cannot be captured; names the line of the user's code where there is one."""


class EngineError(DopplerError):
    """A graph could not be run on real devices.

    Attributes
    ----------
    op : int or None
        The op at fault, if there is one.
    device : str or None
        Name of the device at fault.
    """

    def __init__(self, message: str, op: int | None = None, device: str | None = None) -> None:
        # All arguments, so that the error can be sent to another process.
        super().__init__(message, op, device)
        self.op = op
        self.device = device

    def __str__(self) -> str:
        return str(self.args[0])


class OpError(EngineError):
    """An op failed on its device."""


class TransferError(EngineError):
    """The output of an op could not be brought to another device."""


class RunTimeoutError(EngineError):
    """A run took longer than it may; names what it was waiting for."""


class DeviceLostError(EngineError):
    """A device does not answer any more."""


class DeviceMemoryError(EngineError):
    """A device has too little memory for what was placed on it."""
