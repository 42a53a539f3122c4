"""The best placements known: a table that long searches fill and that anyone can check."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, RootModel

from doppler.documents.json_text import read_json
from doppler.documents.schema import Strict, check
from doppler.errors import DopplerError
from doppler.files import write_atomic
from doppler.graph.fingerprint import fingerprint
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.simulator import simulate

# Relative difference that two machines' arithmetic may make.
_ROUNDING = 1e-9
# The arrays of larger graphs are packed: as lists they would fill megabytes.
LISTED_OPS = 1000
_MOST_BYTES = 4 * 10_000_000


@dataclass(frozen=True, eq=False)
class Reference:
    """The best placement known of one graph on one cluster.

    Attributes
    ----------
    graph, cluster : str
        Their names.
    graph_fingerprint, cluster_fingerprint : str
        What they were when it was found; see :func:`cluster_fingerprint`.
    best_known_s, lower_bound_s : float
        Its makespan, and what no placement can beat, in seconds.
    seconds : float
        Time of all searches so far.
    how : str
        What found it.
    placement : Placement
    """

    graph: str
    cluster: str
    graph_fingerprint: str
    cluster_fingerprint: str
    best_known_s: float
    lower_bound_s: float
    seconds: float
    how: str
    placement: Placement

    def suits(self, problem: Problem) -> bool:
        """Whether it is about this very graph and cluster."""
        return self.graph_fingerprint == fingerprint(
            problem.graph
        ) and self.cluster_fingerprint == cluster_fingerprint(problem)

    def check(self, problem: Problem) -> None:
        """Simulate the placement.

        Raises
        ------
        DopplerError
            If it does not suit the problem, does not fit in memory, or has another makespan.
        """
        where = f"{self.graph} on {self.cluster}"
        result = simulate(problem, self.placement)
        if (result.peak_memory > problem.arrays.capacity).any():
            raise DopplerError(f"{where}: the best known placement does not fit in memory")
        if not math.isclose(result.makespan, self.best_known_s, rel_tol=_ROUNDING):
            raise DopplerError(
                f"{where}: the best known placement takes {result.makespan} s, and the table says "
                f"{self.best_known_s} s"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, one entry of the table."""
        priority = self.placement.priority
        return {
            "graph": self.graph,
            "cluster": self.cluster,
            "best_known_s": self.best_known_s,
            "lower_bound_s": self.lower_bound_s,
            "seconds": self.seconds,
            "how": self.how,
            "graph_fingerprint": self.graph_fingerprint,
            "cluster_fingerprint": self.cluster_fingerprint,
            "devices": _pack(self.placement.devices),
            "priority": None if priority is None else _pack(priority),
        }


class References(Mapping[tuple[str, str], Reference]):
    """A table of references, by the names of graph and cluster.

    Parameters
    ----------
    entries : iterable of Reference
        The last of equal names counts.
    """

    def __init__(self, entries: Iterable[Reference] = ()) -> None:
        self._entries = {(entry.graph, entry.cluster): entry for entry in entries}

    def __getitem__(self, names: tuple[str, str]) -> Reference:
        return self._entries[names]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def best_known(self, graph: str, cluster: str, problem: Problem) -> float | None:
        """Makespan in seconds, or None if the table has none for this very problem."""
        entry = self.get((graph, cluster))
        return entry.best_known_s if entry is not None and entry.suits(problem) else None


def cluster_fingerprint(problem: Problem) -> str:
    """Hash what the cluster makes of a problem: the seconds of ops and transfers, and memory.

    Returns
    -------
    str
        16 hexadecimal digits; figures count to nine digits.
    """
    arrays = problem.arrays
    digest = hashlib.sha256()
    for column in (arrays.compute, arrays.latency, arrays.factor, arrays.capacity):
        text = ",".join(f"{value:.9g}" for value in np.ravel(column).tolist())
        digest.update(text.encode())
        digest.update(b";")
    digest.update(arrays.channel.astype("<i4").tobytes())
    return digest.hexdigest()[:16]


_Figure = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Entry(Strict):
    graph: str
    cluster: str
    best_known_s: _Figure
    lower_bound_s: _Figure
    seconds: _Figure
    how: str
    graph_fingerprint: str
    cluster_fingerprint: str
    devices: Any
    priority: Any


class _File(RootModel[list[_Entry]]):
    pass


def load_references(path: str | os.PathLike[str]) -> References:
    """Read a table.

    Raises
    ------
    DopplerError
        If the file is missing, not a JSON list, or an entry breaks a rule.
    """
    entries = read_json(path, "reference", DopplerError)
    found = []
    for place, entry in enumerate(check(_File, entries, str(path), DopplerError).root):
        try:
            found.append(_reference(entry))
        except DopplerError as error:
            raise DopplerError(f"{path}: [{place}]: {error}") from None
    table = References(found)
    if len(table) < len(found):
        raise DopplerError(f"{path}: a graph and cluster occur twice")
    return table


def save_references(references: References, path: str | os.PathLike[str]) -> Path:
    """Write a table, one entry a line, in the order of the names.

    Raises
    ------
    DopplerError
        If the file cannot be written.
    """
    lines = [
        json.dumps(references[names].to_json(), allow_nan=False) for names in sorted(references)
    ]
    return write_atomic(path, "[\n" + ",\n".join(lines) + "\n]\n")


def _reference(entry: _Entry) -> Reference:
    if not entry.best_known_s >= entry.lower_bound_s * (1 - _ROUNDING):
        raise DopplerError(
            f"best_known_s {entry.best_known_s} is below lower_bound_s {entry.lower_bound_s}"
        )
    values = dict(entry)
    devices, priority = (_unpack(values.pop(key), key) for key in ("devices", "priority"))
    return Reference(**values, placement=Placement(devices, priority))


def _pack(values: npt.NDArray[np.int32]) -> list[int] | str:
    """Return a list, or a long one zlib-compressed as little-endian 32-bit numbers in base64."""
    if values.size <= LISTED_OPS:
        listed: list[int] = values.tolist()
        return listed
    return base64.b64encode(zlib.compress(values.astype("<i4").tobytes(), 9)).decode()


def _unpack(values: Any, what: str) -> Any:
    if not isinstance(values, str):
        return values
    try:
        packed = base64.b64decode(values, validate=True)
        inflater = zlib.decompressobj()
        data = inflater.decompress(packed, _MOST_BYTES + 1)
        if not inflater.eof or inflater.unused_data:
            raise ValueError("cut off, too long, or followed by something else")
        return np.frombuffer(data, "<i4").astype(np.int32)
    except (binascii.Error, zlib.error, ValueError):
        raise DopplerError(f"{what} must be a list of whole numbers, or packed ones") from None
