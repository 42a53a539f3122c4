from __future__ import annotations

import json
from pathlib import Path

import pytest

from doppler.errors import DopplerError
from doppler.refinement.journal import Journal, read_journal


def record(number: int) -> str:
    return json.dumps({"run": number, "makespan": 0.1 * number})


def written(path: Path, count: int) -> bytes:
    journal = Journal(path)
    for number in range(count):
        journal.append(record(number))
    journal.close()
    return path.read_bytes()


def test_what_was_appended_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.jsonl"
    written(path, 3)
    journal = Journal(path)
    assert journal.records == [record(number).encode() for number in range(3)]
    journal.append('{"run": 3}')
    journal.close()
    assert Journal(path).records[-1] == b'{"run": 3}'


def test_a_torn_last_line_is_dropped_wherever_it_was_torn(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    whole = written(path, 3)
    first_two = written(tmp_path / "two.jsonl", 2)
    for size in range(len(first_two), len(whole)):
        path.write_bytes(whole[:size])
        journal = Journal(path)
        assert journal.records == [record(0).encode(), record(1).encode()]
        journal.append(record(2))
        journal.close()
        assert path.read_bytes() == whole


def test_a_reader_takes_what_was_appended_since(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, 2)
    records, end = read_journal(path)
    assert len(records) == 2
    written(path, 1)
    assert read_journal(path, end) == ([record(0).encode()], path.stat().st_size)
    assert read_journal(path, end, end) == ([], end)


def test_any_changed_byte_elsewhere_is_found(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    whole = written(path, 3)
    for index in range(len(whole) - 1):
        changed = bytearray(whole)
        changed[index] ^= 1
        path.write_bytes(changed)
        with pytest.raises(DopplerError, match=r"journal.jsonl: line \d is corrupt; restore"):
            Journal(path)


def test_a_directory_in_its_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DopplerError, match="choose another directory"):
        Journal(tmp_path)
