"""A version: files that never change, and a manifest that says what they are."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from doppler.documents.schema import Strict
from doppler.errors import RegistryError
from doppler.messages import shown
from doppler.registry.document import RESTORE, read_document

MANIFEST = "manifest.json"
#: Name of the policy among the files of a version.
POLICY = "policy.safetensors"
#: Name of the cluster among them.
CLUSTER = "cluster.yaml"
FORMAT = "doppler-version"
VERSION = 1

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_ID = re.compile(r"v[1-9][0-9]{0,8}")
_CHUNK = 1 << 20

VersionId = Annotated[str, Field(pattern=rf"^{_ID.pattern}$")]


class StoredFile(Strict):
    """What a manifest says of a file.

    Attributes
    ----------
    size : int
        Bytes.
    sha256 : str
        Hexadecimal.
    """

    size: int
    sha256: str


@dataclass(frozen=True)
class Version:
    """One version of a policy and of what belongs to it.

    Attributes
    ----------
    id : str
        ``v1``, ``v2`` and so on, in the order in which they were added.
    directory : pathlib.Path
        Where its files lie.
    created : str
        UTC, ISO 8601.
    parent : str or None
        The version that it was trained from.
    origin : mapping
        Where it came from: data, params, git revision, seed.
    metrics : mapping of str to float
    files : mapping of str to StoredFile
    """

    id: str
    directory: Path
    created: str
    parent: str | None
    origin: Mapping[str, Any]
    metrics: Mapping[str, float]
    files: Mapping[str, StoredFile]

    @property
    def number(self) -> int:
        """The number in the id; versions sort by it."""
        return number_of(self.id)

    def path(self, name: str) -> Path:
        """Return the path of a file, after its size and SHA-256 were found right.

        Raises
        ------
        RegistryError
            If the version has no such file, or it is missing, cut short or changed.
        """
        problem = self.problem(name)
        if problem is not None:
            raise RegistryError(f"{problem}; {RESTORE}")
        return self.directory / name

    def paths(self) -> dict[str, Path]:
        """Return the paths of all files by name, after each was found right, as :meth:`path`."""
        return {name: self.path(name) for name in self.files}

    def problem(self, name: str) -> str | None:
        """Say what is wrong with a file, or None.

        Raises
        ------
        RegistryError
            If the version has no such file.
        """
        expected = self.files.get(name)
        if expected is None:
            raise RegistryError(
                f"{self.directory}: version {self.id} has no file {shown(name)!r}; "
                f"it has {', '.join(sorted(self.files))}"
            )
        path = self.directory / name
        try:
            size, sha256 = digest(path)
        except FileNotFoundError:
            return f"{path}: is missing"
        except OSError as error:
            return f"{path}: cannot be read ({error.strerror})"
        if size < expected.size:
            return f"{path}: is cut short ({size:,} of {expected.size:,} bytes)"
        if sha256 != expected.sha256:
            return f"{path}: was changed (its SHA-256 is not that of the manifest)"
        return None

    def problems(self) -> list[str]:
        """Say everything that is wrong with the files of this version."""
        found = [problem for name in sorted(self.files) if (problem := self.problem(name))]
        known = {*self.files, MANIFEST}
        strange = sorted(entry for entry in os.listdir(self.directory) if entry not in known)
        return found + [
            f"{self.directory / name}: is not in the manifest; remove it" for name in strange
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the manifest, without its own checksum."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "id": self.id,
            "created": self.created,
            "parent": self.parent,
            "origin": dict(self.origin),
            "metrics": dict(self.metrics),
            "files": {
                name: {"size": file.size, "sha256": file.sha256}
                for name, file in sorted(self.files.items())
            },
        }

    def manifest(self) -> str:
        """Write the manifest, with its own checksum.

        Raises
        ------
        RegistryError
            If origin or metrics hold what JSON cannot express.
        """
        document = self.to_json()
        try:
            document["sha256"] = _checksum(document)
            return json.dumps(document, indent=1, allow_nan=False) + "\n"
        except (TypeError, ValueError) as error:
            raise RegistryError(
                f"{self.id}: origin and metrics must be what JSON can express ({error})"
            ) from None


def read_version(directory: Path) -> Version:
    """Read the manifest of a version.

    Raises
    ------
    RegistryError
        If it is missing, damaged, of another format, or of another version.
    """
    source = directory / MANIFEST
    if not source.exists():
        raise RegistryError(f"{source}: is missing; {RESTORE}")
    manifest = read_document(source, "manifest", _Manifest, FORMAT, VERSION)
    fault = None
    if manifest.sha256 != _checksum(manifest.model_dump(exclude={"sha256"})):
        fault = "its checksum is wrong"
    elif manifest.id != directory.name:
        fault = f"it is of {manifest.id}"
    if fault is not None:
        raise RegistryError(f"{source}: was changed ({fault}); {RESTORE}")
    return Version(
        id=manifest.id,
        directory=directory,
        created=manifest.created,
        parent=manifest.parent,
        origin=MappingProxyType(manifest.origin),
        metrics=MappingProxyType(manifest.metrics),
        files=MappingProxyType(manifest.files),
    )


class _Manifest(Strict):
    format: str
    version: int
    id: VersionId
    created: str
    parent: VersionId | None
    origin: dict[str, Any]
    metrics: dict[str, float]
    files: dict[Annotated[str, Field(pattern=rf"^{_FILE_NAME.pattern}$")], StoredFile]
    sha256: str


def digest(path: Path) -> tuple[int, str]:
    """Return the size and the SHA-256 of a file.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    sha256, size = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            sha256.update(chunk)
            size += len(chunk)
    return size, sha256.hexdigest()


def check_name(name: str) -> str:
    """Return the name of a file of a version, if it may have that name.

    Raises
    ------
    RegistryError
        If it is a path, hidden, or the manifest's own.
    """
    if not _FILE_NAME.fullmatch(name) or name == MANIFEST:
        raise RegistryError(
            f"{shown(name)!r} cannot be the name of a file of a version: letters, digits, '.', '_' "
            f"and '-', starting with a letter or digit, and not {MANIFEST!r}"
        )
    return name


def is_id(text: str) -> bool:
    """Whether a text has the form of a version's id."""
    return _ID.fullmatch(text) is not None


def number_of(version: str) -> int:
    """Return the number in an id."""
    return int(version.removeprefix("v"))


def _checksum(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
