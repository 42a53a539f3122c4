"""A journal that survives being killed: one JSON object a line, only ever appended to."""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path

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
    records : list of bytes
        What the file held when it was opened, each a JSON object.
    size : int
        Bytes of the file.

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
            raise _failure(self.path, error) from None
        try:
            self.records, self.size = read_journal(self.path)
            # What follows the last line break was being written when the process ended.
            if os.fstat(self._file.fileno()).st_size > self.size:
                os.truncate(self.path, self.size)
        except OSError as error:
            self._file.close()
            raise _failure(self.path, error) from None
        except BaseException:
            self._file.close()
            raise

    def append(self, record: str) -> None:
        """Add one record, a JSON object that is not empty.

        Raises
        ------
        DopplerError
            If it cannot be written.
        """
        text = record[:-1].encode()
        line = b'%b, "crc": "%08x"}\n' % (text, zlib.crc32(text))
        self.size += len(line)
        try:
            while line:
                line = line[self._file.write(line) :]
        except (OSError, ValueError) as error:
            raise _failure(self.path, error) from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_journal(path: Path, begin: int = 0, end: int | None = None) -> tuple[list[bytes], int]:
    """Read the whole lines from one byte to another.

    Parameters
    ----------
    path : pathlib.Path
    begin : int
        Where a line begins.
    end : int, optional
        Default: the end of the file.

    Returns
    -------
    records : list of bytes
        Each a JSON object.
    end : int
        Where the last of them ends.

    Raises
    ------
    DopplerError
        If the file cannot be read, or a line is corrupt.
    """
    try:
        with open(path, "rb") as file:
            file.seek(begin)
            lines = file.read(-1 if end is None else end - begin).split(b"\n")
    except OSError as error:
        raise _failure(path, error) from None
    records, position = [], begin
    for number, line in enumerate(lines[:-1], 1):
        matched = _LINE.fullmatch(line)
        if matched is None or zlib.crc32(matched[1]) != int(matched[2], 16):
            where = f"line {number}" if begin == 0 else f"line {number} after byte {begin}"
            raise DopplerError(
                f"{path}: {where} is corrupt; restore the file from a copy, or remove "
                f"{path.parent} to start anew"
            )
        records.append(matched[1] + b"}")
        position += len(line) + 1
    return records, position


def _failure(path: Path, error: OSError | ValueError) -> DopplerError:
    reason = getattr(error, "strerror", None) or str(error)
    return DopplerError(f"{path}: cannot be read or written ({reason}); choose another directory")
