"""Reading, and writing whole files or none: each appears complete, under its final name."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import sys
from pathlib import Path

from doppler.checks import check_path
from doppler.errors import DopplerError

STDIN, STDOUT = "/dev/stdin", "/dev/stdout"

# Characters of a name, at most 4 bytes each, of the 255 bytes that a file system allows.
_PREFIX = 40
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/([0-9]{1,9})")
_STREAMS = {STDIN: 0, STDOUT: 1, "/dev/stderr": 2}
# What DVC names an object after, its MD5: two digits for the folder, the others for the file.
_CACHED = re.compile(r"/[0-9a-f]{2}/[0-9a-f]{30}(\.dir)?")


def write_atomic(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write ``content`` to a temporary file beside ``path``, then rename it.

    A symbolic link stays, and the file that it names is replaced; other names of the file (hard
    links) keep the old content. What is no file, such as ``/dev/stdout`` or a named pipe, is
    written to, never replaced.

    Parameters
    ----------
    path : path-like
        Final name. Missing parent directories are created.
    content : str or bytes
        Text is encoded as UTF-8.

    Returns
    -------
    pathlib.Path
        The final path.

    Raises
    ------
    DopplerError
        As :func:`check_writable`, or if the file cannot be written; nothing is left behind.
    BrokenPipeError
        If whoever reads the pipe went away.
    """
    target = check_path(path, "path of the file to write", DopplerError)
    check_writable(target)
    try:
        data = content.encode() if isinstance(content, str) else content
        if (descriptor := _descriptor(target)) is not None:
            _send(descriptor, data)
        elif target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _replace(Path(os.path.realpath(target)), data)
    except BrokenPipeError:
        raise
    except (OSError, UnicodeEncodeError) as error:
        raise _refusal(target, getattr(error, "strerror", None) or str(error)) from error
    return target


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise if a file cannot be written, so before the work that would fill it.

    Raises
    ------
    DopplerError
        If it is a directory, read-only, an object of a cache that a link names, or below
        something that is no writable directory.
    """
    target = Path(path)
    if _descriptor(target) is not None:
        return
    try:
        real = Path(os.path.realpath(target))
        if real.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if real.is_dir():
            raise _refusal(target, "it is a directory")
        if _CACHED.search(str(real)):
            raise _refusal(target, f"it is {real}, an object of a cache", unprotect=True)
        exists = real.exists()
        # Root may write what is read-only, but that is not what whoever made it so wants.
        if exists and not (real.stat().st_mode & 0o222 and os.access(real, os.W_OK)):
            raise _refusal(target, "it is read-only", unprotect=True)
        folder = real.parent
        if target.is_symlink() and not folder.is_dir():
            raise _refusal(target, f"it links to {real}, but {folder} is missing")
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if not folder.is_dir():
            raise _refusal(target, f"{folder} is not a directory")
        if not os.access(folder, os.W_OK) and not (exists and not real.is_file()):
            raise _refusal(target, f"no permission in {folder}")
    except (OSError, ValueError) as error:
        raise _refusal(target, getattr(error, "strerror", None) or str(error)) from None


def read_text(path: str | os.PathLike[str], kind: str, error: type[DopplerError]) -> str:
    """Read a UTF-8 text file, or raise ``error`` with one line that names the file.

    A byte order mark is no part of the text. A pipe is emptied: what reads the text of one twice
    finds nothing the second time.

    Parameters
    ----------
    path : path-like
        The file.
    kind : str
        What the file should hold, for the message (``"graph"``, ``"placement"``).
    error : type of DopplerError
        Raised when the file is missing, a directory, unreadable or not text.
    """
    source = check_path(path, f"path of a {kind} file", error)
    try:
        return read_bytes(source).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        raise error(f"{source}: no such file; give the path of a {kind} file") from None
    except IsADirectoryError:
        raise error(f"{source}: is a directory; give the path of a {kind} file") from None
    except UnicodeDecodeError:
        raise error(f"{source}: is not UTF-8 text, so it cannot be a {kind} file") from None
    except OSError as failure:
        raise error(f"{source}: cannot be read ({failure.strerror})") from None
    except ValueError:  # a null character
        raise error(f"{str(source)!r}: is not a path; give the path of a {kind} file") from None


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Read a file, once; ``/dev/stdin`` is what the process was given.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    if str(path) == STDIN and sys.stdin is not None:
        return sys.stdin.buffer.read()
    return Path(path).read_bytes()


def name_of(path: str | os.PathLike[str]) -> str:
    """Return the name of a file without its ending, as text even where it is none."""
    return os.fsencode(Path(path).stem).decode(errors="replace")


def _refusal(target: Path, reason: str, unprotect: bool = False) -> DopplerError:
    fix = f"make it writable ('dvc unprotect {target}' if DVC tracks it), or " if unprotect else ""
    return DopplerError(f"{target}: cannot be written ({reason}); {fix}choose another path")


def _descriptor(target: Path) -> int | None:
    """Return the descriptor that a path names, if it does.

    To open such a path would open the file behind it anew, at its start, and to replace it would
    take it away from the shell's ``>`` or ``>>``.
    """
    name = str(target)
    match = _DESCRIPTOR.fullmatch(name)
    return int(match[1]) if match else _STREAMS.get(name)


def _send(descriptor: int, data: bytes) -> None:
    if descriptor == 1 and sys.stdout is not None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    with open(descriptor, "wb", closefd=False) as stream:
        stream.write(data)


def _replace(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Only the start of the name: a long one leaves no room for what makes it unique.
    temporary = target.with_name(f".{target.name[:_PREFIX]}.{secrets.token_hex(8)}")
    # The kernel applies the umask, which a process cannot ask for without setting it.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as stream:
            if target.exists():
                os.fchmod(handle, stat.S_IMODE(target.stat().st_mode))
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
