"""Whole files or none."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from doppler.errors import DopplerError
from doppler.files import write_atomic


def test_a_longest_name_can_be_written(tmp_path: Path) -> None:
    for name in ("n" * 255, "é" * 127):
        assert write_atomic(tmp_path / name, "x").read_text() == "x"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DopplerError, match=r"cannot be written \(File name too long\)"):
        write_atomic(tmp_path / ("n" * 256), "x")
    assert not list(tmp_path.iterdir())


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    kept, link = tmp_path / "kept.json", tmp_path / "link.json"
    kept.write_text("old")
    link.symlink_to(kept)
    write_atomic(link, "new")
    assert link.is_symlink()
    assert kept.read_text() == "new"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_is_written_to_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomic(pipe, "through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DopplerError, match="cannot be written"):
        write_atomic(tmp_path, "x")
