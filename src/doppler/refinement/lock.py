"""One refinement at a time on a machine, and a note of who is at it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from doppler.clock import utc_now
from doppler.documents.schema import Strict
from doppler.errors import DopplerError, LockedError
from doppler.files import write_atomic
from doppler.locks import hold


class OccupiedError(DopplerError):
    """Another refinement has held the machine for as long as this one would wait."""


class Holder(Strict):
    """Who holds the machine.

    Attributes
    ----------
    run : str
        Id of its flow run; empty if it has none.
    pid : int
    since : str
        UTC, ISO 8601.
    """

    run: str
    pid: int
    since: str


@contextmanager
def hold_machine(path: str | os.PathLike[str], wait: float, run: str) -> Iterator[Holder | None]:
    """Hold the machine for the time of a ``with`` block.

    The lock of a process that ends is free, however it ended. What it noted of itself stays if it
    was killed, so that its successor can tell.

    Parameters
    ----------
    path : path-like
        The lock; the note lies beside it.
    wait : float
        Seconds to wait for the present holder.
    run : str
        Id of this flow run.

    Yields
    ------
    Holder or None
        The last one, if it was killed while it held the machine.

    Raises
    ------
    OccupiedError
        If the machine is still held then; says by whom and since when.
    DopplerError
        If the file cannot be made.
    """
    place = Path(path)
    note = place.with_name(f"{place.name}.json")
    with ExitStack() as stack:
        try:
            stack.enter_context(hold(place, wait))
        except LockedError:
            holder = _read(note)
            who = f"process {holder.pid} since {holder.since}" if holder else "another process"
            raise OccupiedError(
                f"{place}: a refinement is under way here, by {who}; waited {wait:g} s for it"
            ) from None
        killed = _read(note)
        stack.callback(note.unlink, missing_ok=True)
        holder = Holder(run=run, pid=os.getpid(), since=utc_now())
        write_atomic(note, f"{holder.model_dump_json()}\n")
        yield killed


def _read(note: Path) -> Holder | None:
    try:
        return Holder.model_validate_json(note.read_bytes())
    except (OSError, ValueError):
        return None
