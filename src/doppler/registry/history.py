"""What was decided about versions: a list of events that only grows, and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from doppler.documents.schema import Strict
from doppler.errors import RegistryError
from doppler.registry.document import RESTORE, read_document
from doppler.registry.version import VersionId

HISTORY = "history.json"
FORMAT = "doppler-registry"
VERSION = 1

Kind = Literal["promote", "rollback", "reject"]
#: A challenger was not decided on yet; a retired version was champion until another was promoted;
#: a rejected one lost its comparison or was rolled back.
Status = Literal["champion", "challenger", "retired", "rejected"]


@dataclass(frozen=True)
class Event:
    """One decision.

    Attributes
    ----------
    kind : {"promote", "rollback", "reject"}
    id : str
        The version promoted, returned to, or rejected.
    previous : str or None
        The champion before the decision.
    time : str
        UTC, ISO 8601.
    evidence : mapping
        Why.
    """

    kind: Kind
    id: str
    previous: str | None
    time: str
    evidence: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return what the history file holds of it."""
        return {
            "event": self.kind,
            "id": self.id,
            "previous": self.previous,
            "time": self.time,
            "evidence": dict(self.evidence),
        }


class Decisions:
    """All decisions, oldest first, and what they say of every version.

    Attributes
    ----------
    events : tuple of Event
    champions : tuple of str
        The present champion last, before it those that rollbacks return to.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        """Replay the events.

        Raises
        ------
        ValueError
            If one cannot have followed those before it.
        """
        self.events = tuple(events)
        champions: list[str] = []
        self._status: dict[str, Status] = {}
        for event in self.events:
            if event.previous != (champions[-1] if champions else None):
                raise ValueError(f"{event.kind} of {event.id} does not follow from what was before")
            if event.kind == "promote":
                if event.previous is not None:
                    self._status[event.previous] = "retired"
                champions.append(event.id)
                self._status[event.id] = "champion"
            elif event.kind == "rollback":
                if len(champions) < 2 or champions[-2] != event.id:
                    raise ValueError(f"{event.id} is not what a rollback returns to")
                self._status[champions.pop()] = "rejected"
                self._status[event.id] = "champion"
            elif event.id == event.previous:
                raise ValueError(f"{event.id} is the champion and cannot be rejected")
            else:
                self._status[event.id] = "rejected"
        self.champions = tuple(champions)

    @property
    def champion(self) -> str | None:
        """Id of the champion, None before the first promotion."""
        return self.champions[-1] if self.champions else None

    def status(self, version: str) -> Status:
        """Say what a version is now."""
        return self._status.get(version, "challenger")

    def of(self, version: str) -> tuple[Event, ...]:
        """Return the decisions that concern a version: decided on, or replaced by another."""
        return tuple(
            event
            for event in self.events
            if event.id == version or (event.kind != "reject" and event.previous == version)
        )

    def ids(self) -> set[str]:
        """Every version that was ever decided on."""
        return {event.id for event in self.events}

    def after(self, event: Event) -> Decisions:
        """Return the history with one more event."""
        return Decisions((*self.events, event))

    def to_text(self) -> str:
        """Write the file.

        Raises
        ------
        RegistryError
            If the evidence holds what JSON cannot express.
        """
        document = {
            "format": FORMAT,
            "version": VERSION,
            "events": [event.to_json() for event in self.events],
        }
        try:
            return json.dumps(document, indent=1, allow_nan=False) + "\n"
        except (TypeError, ValueError) as error:
            raise RegistryError(f"evidence must be what JSON can express ({error})") from None


def read_history(path: Path) -> Decisions:
    """Read the history; without a file it is empty.

    Raises
    ------
    RegistryError
        If the file is damaged, of another format version, or tells what cannot have happened.
    """
    if not path.exists():
        return Decisions()
    document = read_document(path, "history", _File, FORMAT, VERSION)
    try:
        return Decisions(
            Event(entry.event, entry.id, entry.previous, entry.time, entry.evidence)
            for entry in document.events
        )
    except ValueError as error:
        raise RegistryError(f"{path}: is damaged ({error}); {RESTORE}") from None


class _Entry(Strict):
    event: Kind
    id: VersionId
    previous: VersionId | None
    time: str
    evidence: dict[str, Any]


class _File(Strict):
    format: str
    version: int
    events: list[_Entry]
