"""Whole files or none."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from doppler.errors import DopplerError
from doppler.files import check_writable, read_text, write_atomic

OBJECT = "cache/files/md5/d4/1d8cd98f00b204e9800998ecf8427e"


def test_a_longest_name_can_be_written(tmp_path: Path) -> None:
    for name in ("n" * 255, "é" * 127):
        assert write_atomic(tmp_path / name, "x").read_text() == "x"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DopplerError, match=r"cannot be written \(File name too long\)"):
        write_atomic(tmp_path / ("n" * 256), "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("to", ["kept.json", "away/kept.json"])
def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path, to: str) -> None:
    link = tmp_path / "link.json"
    (tmp_path / "away").mkdir()
    link.symlink_to(to)
    # One that dangles is made.
    for content in ("old", "new"):
        write_atomic(link, content)
        assert os.readlink(link) == to
        assert (tmp_path / to).read_text() == content


def test_links_that_lead_nowhere_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "lost").symlink_to("gone/file")
    with pytest.raises(DopplerError, match=r"loop: cannot be written .*levels of symbolic links"):
        write_atomic(tmp_path / "loop", "x")
    with pytest.raises(DopplerError, match=r"lost: cannot be written .*gone is missing"):
        write_atomic(tmp_path / "lost", "x")
    assert sorted(os.listdir(tmp_path)) == ["loop", "lost"]


@pytest.mark.parametrize("make", [os.symlink, os.link], ids=["symlink", "hard link"])
def test_a_protected_object_of_a_cache_is_not_written_through(tmp_path: Path, make) -> None:
    cached, out = tmp_path / OBJECT, tmp_path / "out.json"
    cached.parent.mkdir(parents=True)
    cached.write_text("one version")
    cached.chmod(0o444)
    make(cached, out)
    with pytest.raises(DopplerError, match=rf"out.json: cannot be written .*unprotect {out}' if"):
        write_atomic(out, "another")
    assert cached.read_text() == out.read_text() == "one version"


@pytest.mark.parametrize("there", [True, False], ids=["unprotected", "collected"])
def test_a_link_into_a_cache_is_refused_whatever_is_there(tmp_path: Path, there: bool) -> None:
    cached, out = tmp_path / OBJECT, tmp_path / "out.json"
    cached.parent.mkdir(parents=True)
    if there:
        cached.write_text("one version")
    out.symlink_to(os.path.relpath(cached, tmp_path))
    with pytest.raises(DopplerError, match="1d8cd98f00b204e9800998ecf8427e, an object of a cache"):
        write_atomic(out, "another")
    assert cached.exists() == there
    assert out.is_symlink()


def test_another_name_of_a_file_keeps_the_old_content(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("old")
    os.link(one, other)
    write_atomic(one, "new")
    assert (one.read_text(), other.read_text()) == ("new", "old")


def test_a_read_only_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text("old")
    path.chmod(0o444)
    for write in (lambda: write_atomic(path, "new"), lambda: check_writable(path)):
        with pytest.raises(DopplerError, match=r"kept.json: cannot be written \(it is read-only\)"):
            write()
    assert path.read_text() == "old"


def test_the_mode_of_a_file_stays_and_a_new_one_has_that_of_the_umask(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.write_text("old")
    private.chmod(0o600)
    write_atomic(private, "new")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    code = (
        "import os, sys; from doppler.files import write_atomic; os.umask(0o027);"
        "write_atomic(sys.argv[1], 'x')"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "made"], check=True)
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o640


def test_to_write_does_not_touch_the_umask(tmp_path: Path, monkeypatch) -> None:
    # It belongs to the process: what another thread makes meanwhile would be open to everyone.
    monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the umask was set"))
    write_atomic(tmp_path / "made", "x")


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


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_what_the_shell_appends_to_is_appended_to(tmp_path: Path, name: str) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    code = f"""from doppler.files import write_atomic
print("first")
write_atomic({name!r}, "second\\n")
print("third")"""
    with log.open("a") as stream:
        subprocess.run([sys.executable, "-c", code], stdout=stream, check=True)
    assert log.read_text() == "before\nfirst\nsecond\nthird\n"


def test_a_pipe_that_no_one_reads_is_told_as_such(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        with pytest.raises(BrokenPipeError):
            write_atomic(f"/dev/fd/{writer}", "x")
    finally:
        os.close(writer)


def test_what_cannot_hold_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    for path, words in (
        (tmp_path, "it is a directory"),
        (tmp_path / "file" / "below" / "x", "file is not a directory"),
        (tmp_path / "nul\0", "null byte"),
        ("/dev/fd/987654", "Bad file descriptor"),
    ):
        with pytest.raises(DopplerError, match=f"cannot be written .*{words}"):
            write_atomic(path, "x")
    assert os.listdir(tmp_path) == ["file"]


def test_a_text_that_is_none_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(DopplerError, match=r"x: cannot be written .*surrogates not allowed"):
        write_atomic(tmp_path / "x", "half \ud800")
    assert not list(tmp_path.iterdir())


def test_a_byte_order_mark_and_the_ends_of_lines_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\n")
    assert read_text(path, "graph", DopplerError) == "one\ntwo\nthree\n"


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "utf16").write_bytes("{}".encode("utf-16"))
    for path, words in (
        (tmp_path / "gone", "gone: no such file; give the path of a graph file"),
        (tmp_path, "is a directory; give the path of a graph file"),
        (tmp_path / "utf16", "utf16: is not UTF-8 text, so it cannot be a graph file"),
        ("/dev/fd/987654", "no such file"),
        ("nul\0", "is not a path"),
    ):
        with pytest.raises(DopplerError, match=re.escape(words)):
            read_text(path, "graph", DopplerError)


def test_a_pipe_is_read_to_its_end() -> None:
    reader, writer = os.pipe()
    text = "x" * 200_000

    def fill() -> None:
        with os.fdopen(writer, "w") as stream:
            stream.write(text)

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        assert read_text(f"/dev/fd/{reader}", "graph", DopplerError) == text
    finally:
        thread.join()
        os.close(reader)
