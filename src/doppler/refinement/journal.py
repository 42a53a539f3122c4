"""A journal that survives being killed: one JSON object a line, only ever appended to."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from doppler.errors import DopplerError

_LINE = re.compile(rb'(\{.*), "crc": "([0-9a-f]{8})"\}')


class Journal:
    """Appends records to a file, each with a checksum.

    A line that was torn when the process was killed, which can only be the last, is dropped when
    the journal is opened again. What was appended outlives the process; whether it outlives the
    machine is up to the file system, since nothing waits for the disk.

    Parameters
    ----------
    path : path-like
        Missing: made, with its parent directories.

    Attributes
    ----------
    records : list of dict
        What the file held when it was opened.

    Raises
    ------
    DopplerError
        If the file cannot be read or written, or a line other than a torn last one is corrupt.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a+b", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise self._failure(error) from None
        try:
            self.records = self._read()
        except BaseException:
            self._file.close()
            raise

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record.

        Raises
        ------
        DopplerError
            If it cannot be written.
        """
        text = json.dumps(record)[:-1].encode()
        line = b'%b, "crc": "%08x"}\n' % (text, zlib.crc32(text))
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise self._failure(error) from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read(self) -> list[dict[str, Any]]:
        try:
            self._file.seek(0)
            lines = self._file.read().split(b"\n")
            whole = 0
            records = []
            for number, line in enumerate(lines[:-1], 1):
                records.append(self._parse(line, number))
                whole += len(line) + 1
            # What follows the last line break was being written when the process ended.
            if lines[-1]:
                os.truncate(self.path, whole)
        except OSError as error:
            raise self._failure(error) from None
        return records

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        matched = _LINE.fullmatch(line)
        if matched is not None and zlib.crc32(matched[1]) == int(matched[2], 16):
            record: dict[str, Any] = json.loads(matched[1] + b"}")
            return record
        raise DopplerError(
            f"{self.path}: line {number} is corrupt; restore the file from a copy, or remove "
            f"{self.path.parent} to start anew"
        )

    def _failure(self, error: OSError) -> DopplerError:
        return DopplerError(
            f"{self.path}: cannot be read or written ({error.strerror}); choose another directory"
        )
