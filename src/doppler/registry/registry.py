"""The registry: a folder of versions that appear whole, and the history of what was decided.

What makes it safe: a version is one rename of a folder that was filled elsewhere, and a decision
is one rename of a history file that was written elsewhere. No file of the folder is ever written
in place, so that files may be links into DVC's cache. Whoever writes holds the lock; whoever reads
needs none. The lock and what is being written lie in a folder of their own beside the registry,
out of DVC's sight.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from doppler.clock import utc_now
from doppler.errors import LockedError, RegistryError, UnknownNameError
from doppler.files import write_atomic
from doppler.locks import hold
from doppler.registry.history import HISTORY, Decisions, Event, Kind, Status, read_history
from doppler.registry.version import (
    MANIFEST,
    StoredFile,
    Version,
    check_name,
    digest,
    is_id,
    number_of,
    read_version,
)

# Where the pipeline keeps the versions, from the root of a checkout.
DIRECTORY = "models/registry"
_VERSIONS = "versions"
_LOCK = "lock"
_IGNORE = ".gitignore"
_NEW = "new"


class Registry:
    """Versions of policies on disk.

    Reading needs no lock and writes nothing; the folder is made with the first version.

    Parameters
    ----------
    directory : path-like
        The registry's folder: plain files, for ``dvc add`` or as an output of a stage. Its lock
        and its unfinished files lie beside it, in ``.NAME.unfinished``.
    timeout : float
        Seconds to wait for another process that is writing.

    Raises
    ------
    RegistryError
        If the directory is the root of the file system.

    Attributes
    ----------
    directory : pathlib.Path
    """

    def __init__(
        self, directory: str | os.PathLike[str] = DIRECTORY, *, timeout: float = 30.0
    ) -> None:
        self.directory = Path(directory)
        self._timeout = timeout
        # A link to the folder has the lock of the folder.
        real = Path(os.path.realpath(self.directory))
        if not real.name:
            raise RegistryError(f"{self.directory}: cannot be a registry; give a folder of its own")
        self._work = real.parent / f".{real.name}.unfinished"

    @property
    def history(self) -> Decisions:
        """What was decided, oldest first.

        Raises
        ------
        RegistryError
            If its file is damaged.
        """
        return read_history(self.directory / HISTORY)

    @property
    def champion(self) -> Version | None:
        """The version in use, None before the first promotion.

        Raises
        ------
        RegistryError
            If the history or the version is damaged.
        """
        champion = self.history.champion
        return None if champion is None else self.version(champion)

    @property
    def challengers(self) -> tuple[Version, ...]:
        """The versions that were not decided on yet, oldest first."""
        history = self.history
        return tuple(v for v in self.versions() if history.status(v.id) == "challenger")

    def status(self, version: str) -> Status:
        """Say whether a version is champion, challenger, retired or rejected."""
        return self.history.status(self.version(version).id)

    def versions(self) -> tuple[Version, ...]:
        """Return every version, oldest first.

        Raises
        ------
        RegistryError
            If a manifest is damaged.
        """
        return tuple(read_version(self._place(version)) for version in self._ids())

    def version(self, version: str) -> Version:
        """Return a version.

        Raises
        ------
        RegistryError
            If there is none of that id, or its manifest is damaged.
        """
        if is_id(version) and (self._place(version).is_dir() or version in self.history.ids()):
            return read_version(self._place(version))
        known = self._ids()
        if not known:
            raise self._empty()
        raise RegistryError(f"{self.directory}: {UnknownNameError('version', version, known)}")

    def path(self, version: str, name: str) -> Path:
        """Return the path of a file of a version, after its SHA-256 was found right.

        Raises
        ------
        RegistryError
            If there is no such version or file, or it is missing, cut short or changed.
        """
        return self.version(version).path(name)

    def require_champion(self) -> Version:
        """Return the champion.

        Raises
        ------
        RegistryError
            If there is none, or the history or the version is damaged.
        """
        champion = self.champion
        if champion is None:
            raise RegistryError(
                f"{self.directory}: has no champion; 'doppler registry promote ID' makes one, "
                "'dvc pull' fetches the registry of others"
            )
        return champion

    def describe(self, version: str) -> dict[str, Any]:
        """Return what is known of a version, as JSON can express it.

        Returns
        -------
        dict
            ``id``, ``status``, ``created``, ``parent``, ``origin``, ``metrics``, ``files``,
            ``directory``, and ``decisions`` with their evidence.

        Raises
        ------
        RegistryError
            As :meth:`version`.
        """
        return _described(self.version(version), self.history)

    def to_json(self) -> dict[str, Any]:
        """Return everything, as JSON can express it.

        Returns
        -------
        dict
            ``directory``, ``champion``, ``versions`` as :meth:`describe` gives them, ``history``.

        Raises
        ------
        RegistryError
            If the history or a manifest is damaged.
        """
        history = self.history
        return {
            "directory": str(self.directory),
            "champion": history.champion,
            "versions": [_described(version, history) for version in self.versions()],
            "history": [event.to_json() for event in history.events],
        }

    def add(
        self,
        files: Mapping[str, str | os.PathLike[str]],
        *,
        parent: str | None = None,
        origin: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> Version:
        """Add a version, as a challenger; it appears whole or not at all.

        Parameters
        ----------
        files : mapping of str to path-like
            What to copy, by its name in the version: ``policy.safetensors``, ``cluster.yaml``.
        parent : str, optional
            The version that it was made from.
        origin : mapping, optional
            Where it came from; see :func:`describe_origin`.
        metrics : mapping of str to float, optional

        Returns
        -------
        Version

        Raises
        ------
        RegistryError
            If a file cannot be read or has no proper name, the parent is not there, or another
            process holds the registry.
        """
        if not files:
            raise RegistryError(f"{self.directory}: a version needs at least one file")
        for name, value in (metrics or {}).items():
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise RegistryError(f"metric {name!r} is {value!r}, must be a finite number")
        sources = {check_name(name): Path(path) for name, path in files.items()}
        with self._writing(first=True):
            if parent is not None:
                parent = self.version(parent).id
            unfinished = self._work / _NEW
            unfinished.mkdir()
            stored = {name: _copy(path, unfinished / name) for name, path in sources.items()}
            numbers = [number_of(known) for known in {*self._ids(), *self.history.ids()}]
            version = Version(
                id=f"v{max(numbers, default=0) + 1}",
                directory=unfinished,
                created=utc_now(),
                parent=parent,
                origin=dict(origin or {}),
                metrics={name: float(value) for name, value in (metrics or {}).items()},
                files=stored,
            )
            write_atomic(unfinished / MANIFEST, version.manifest())
            _flush(unfinished)
            place = self._place(version.id)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.rename(unfinished, place)
            _flush(place.parent)
        return read_version(place)

    def promote(self, version: str, evidence: Mapping[str, Any] | None = None) -> Version:
        """Make a version the champion; the present one is retired.

        Parameters
        ----------
        version : str
            Its id. Its files are verified first.
        evidence : mapping, optional
            Why; kept in the history.

        Raises
        ------
        RegistryError
            If it is the champion already, not there or damaged, or another process holds the
            registry.
        """
        with self._writing():
            found = self._verified(version)
            if self.history.champion == found.id:
                raise RegistryError(f"{self.directory}: {found.id} is the champion already")
            self._decide("promote", found.id, evidence)
        return found

    def reject(self, version: str, evidence: Mapping[str, Any] | None = None) -> Version:
        """Record that a version is not going to be the champion.

        Raises
        ------
        RegistryError
            If it is the champion, or not there, or another process holds the registry.
        """
        with self._writing():
            found = self.version(version)
            if self.history.champion == found.id:
                raise RegistryError(
                    f"{self.directory}: {found.id} is the champion; 'doppler registry rollback' "
                    "returns to the one before"
                )
            self._decide("reject", found.id, evidence)
        return found

    def rollback(self, evidence: Mapping[str, Any] | None = None) -> Version:
        """Return to the champion before the present one, which is rejected.

        Returns
        -------
        Version
            The champion now: the very files that it had.

        Raises
        ------
        RegistryError
            If there was no champion before, its files are damaged, or another process holds the
            registry.
        """
        with self._writing():
            champions = self.history.champions
            if len(champions) < 2:
                now = f"{champions[0]} is the first champion" if champions else "has no champion"
                raise RegistryError(f"{self.directory}: {now}, so there is none to roll back to")
            found = self._verified(champions[-2])
            self._decide("rollback", found.id, evidence)
        return found

    def problems(self) -> list[str]:
        """Say everything that is damaged, a line each; each line names a file.

        Reads and checks every byte of every version.
        """
        found: list[str] = []
        try:
            decided = self.history.ids()
        except RegistryError as error:
            found.append(str(error))
            decided = set()
        there = self._ids()
        folder = self.directory / _VERSIONS
        entries = sorted(os.listdir(folder)) if folder.is_dir() else []
        found += [f"{folder / x}: is no version; remove it" for x in entries if not is_id(x)]
        for version in sorted({*there, *decided}, key=number_of):
            try:
                manifest = read_version(self._place(version))
            except RegistryError as error:
                found.append(str(error))
                continue
            found += manifest.problems()
            if manifest.parent is not None and manifest.parent not in there:
                found.append(f"{self._place(manifest.parent)}: is missing, the parent of {version}")
        return found

    def _empty(self) -> RegistryError:
        return RegistryError(
            f"{self.directory}: has no versions; 'dvc pull' fetches those of others, "
            "'doppler registry add' adds one"
        )

    def _place(self, version: str) -> Path:
        return self.directory / _VERSIONS / version

    def _ids(self) -> list[str]:
        try:
            entries = os.listdir(self.directory / _VERSIONS)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RegistryError(
                f"{self.directory}: cannot be read ({error.strerror}); give the folder of a "
                "registry"
            ) from None
        return sorted((entry for entry in entries if is_id(entry)), key=number_of)

    def _verified(self, version: str) -> Version:
        found = self.version(version)
        for name in found.files:
            found.path(name)
        return found

    def _decide(self, kind: Kind, version: str, evidence: Mapping[str, Any] | None) -> None:
        history = self.history
        event = Event(kind, version, history.champion, utc_now(), dict(evidence or {}))
        # Renamed over the old one, which may be a link into DVC's cache.
        written = write_atomic(self._work / HISTORY, history.after(event).to_text())
        os.replace(written, self.directory / HISTORY)
        _flush(self.directory)

    @contextmanager
    def _writing(self, first: bool = False) -> Iterator[None]:
        """Hold the lock, with nothing left of a writer that was killed.

        Unless what is written may be the first version, the registry must be there.
        """
        if not first and not self.directory.is_dir():
            raise self._empty()
        lock = self._work / _LOCK
        try:
            self._work.mkdir(parents=True, exist_ok=True)
            if self._work.is_symlink():
                raise self._not_ours()
            with hold(lock, self._timeout):
                self._clean()
                try:
                    yield
                finally:
                    self._clean()
        except LockedError:
            raise RegistryError(
                f"{lock}: another process has held the registry for {self._timeout:g} s; wait "
                "until it ends (the lock of one that was killed is free)"
            ) from None
        except OSError as error:
            raise RegistryError(
                f"{error.filename or self.directory}: cannot be written "
                f"({error.strerror or error}); mend it or choose another --directory"
            ) from error

    def _clean(self) -> None:
        """Remove what a writer that was killed left; nothing that a writer does not make."""
        ignore, entries = self._work / _IGNORE, [*os.scandir(self._work)]
        # Only what a writer made has these, and as its first files.
        if not ignore.exists() and any(
            entry.name != _LOCK and not entry.name.startswith(f".{_IGNORE}.") for entry in entries
        ):
            raise self._not_ours()
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name == _NEW:
                    shutil.rmtree(entry.path)
            elif entry.name == HISTORY or entry.name.startswith((f".{HISTORY}.", f".{_IGNORE}.")):
                os.unlink(entry.path)
        if not ignore.exists():
            write_atomic(ignore, "*\n")

    def _not_ours(self) -> RegistryError:
        return RegistryError(
            f"{self._work}: is where a registry prepares versions, but was not made by one; move it"
        )


def _described(version: Version, history: Decisions) -> dict[str, Any]:
    manifest = version.to_json()
    return {
        "id": version.id,
        "status": history.status(version.id),
        **{name: manifest[name] for name in ("created", "parent", "origin", "metrics", "files")},
        "directory": str(version.directory),
        "decisions": [event.to_json() for event in history.of(version.id)],
    }


def _copy(source: Path, target: Path) -> StoredFile:
    """Copy a file and flush it to disk; say what arrived."""
    if source.exists() and not (source.is_file() or source.is_dir()):
        raise RegistryError(
            f"{source}: cannot be copied into the registry: a pipe is read once, and it was to "
            "see what it holds; give a file"
        )
    try:
        with source.open("rb") as stream, target.open("xb") as copy:
            shutil.copyfileobj(stream, copy)
            copy.flush()
            os.fsync(copy.fileno())
    except OSError as error:
        raise RegistryError(
            f"{source}: cannot be copied into the registry ({error.strerror}); give a file that "
            "can be read"
        ) from None
    size, sha256 = digest(target)
    return StoredFile(size=size, sha256=sha256)


def _flush(folder: Path) -> None:
    """Make the names in a folder last through a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
