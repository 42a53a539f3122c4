"""Whole files or none: every file that Doppler writes appears complete, under its final name."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from doppler.errors import DopplerError

# Characters of a name, at most 4 bytes each, of the 255 bytes that a file system allows.
_PREFIX = 40


def write_atomic(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write ``content`` to a temporary file beside ``path``, then rename it.

    A symbolic link stays, and the file that it names is replaced. What is no file, such as
    ``/dev/stdout`` or a named pipe, is written to, never replaced.

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
        If the file cannot be written; nothing is left behind.
    """
    target = Path(path)
    data = content.encode() if isinstance(content, str) else content
    try:
        if target.is_dir():
            raise IsADirectoryError("it is a directory")
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _replace(Path(os.path.realpath(target)), data)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DopplerError(
            f"{target}: cannot be written ({reason}); choose another path"
        ) from error
    return target


def read_text(path: str | os.PathLike[str], kind: str, error: type[DopplerError]) -> str:
    """Read a UTF-8 text file, or raise ``error`` with one line that names the file.

    Parameters
    ----------
    path : path-like
        The file.
    kind : str
        What the file should hold, for the message (``"graph"``, ``"placement"``).
    error : type of DopplerError
        Raised when the file is missing, a directory, unreadable or not text.
    """
    source = Path(path)
    try:
        return source.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise error(f"{source}: no such file; give the path of a {kind} file") from None
    except IsADirectoryError:
        raise error(f"{source}: is a directory; give the path of a {kind} file") from None
    except UnicodeDecodeError:
        raise error(f"{source}: is not text, so it cannot be a {kind} file") from None
    except OSError as failure:
        raise error(f"{source}: cannot be read ({failure.strerror})") from None
    except ValueError:  # a null character
        raise error(f"{str(source)!r}: is not a path; give the path of a {kind} file") from None


def _replace(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Only the start of the name: a long one leaves no room for what makes it unique.
    prefix = f".{target.name[:_PREFIX]}."
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=prefix)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
