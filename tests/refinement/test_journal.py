from __future__ import annotations

from pathlib import Path

import pytest

from doppler.errors import DopplerError
from doppler.refinement.journal import Journal


def written(path: Path, count: int) -> bytes:
    journal = Journal(path)
    for number in range(count):
        journal.append({"run": number, "makespan": 0.1 * number})
    journal.close()
    return path.read_bytes()


def test_what_was_appended_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.jsonl"
    written(path, 3)
    journal = Journal(path)
    assert journal.records == [{"run": n, "makespan": 0.1 * n} for n in range(3)]
    journal.append({"run": 3})
    journal.close()
    assert Journal(path).records[-1] == {"run": 3}


def test_a_torn_last_line_is_dropped_wherever_it_was_torn(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    whole = written(path, 3)
    first_two = written(tmp_path / "two.jsonl", 2)
    for size in range(len(first_two), len(whole)):
        path.write_bytes(whole[:size])
        journal = Journal(path)
        assert [record["run"] for record in journal.records] == [0, 1]
        journal.append({"run": 2, "makespan": 0.2})
        journal.close()
        assert path.read_bytes() == whole


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
