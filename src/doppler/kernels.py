"""Compile kernels, and keep them for the next process.

numba has a cache of its own, but that fails where neither the source's folder nor the home can be
written, trusts a damaged file, and does not notice that a called kernel in another file changed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import stat
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, ParamSpec, TypeVar, overload

import numba
import numpy as np
from numba import njit
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher
from numba.core.serialize import dumps

P = ParamSpec("P")
R = TypeVar("R")

# Of one kernel in one folder: for other processors, or of other versions of the source.
_MOST_FILES = 8
_CHECKSUM_BYTES = 32

logger = logging.getLogger(__name__)


@overload
def kernel(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def kernel(**options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def kernel(function: Callable[P, R] | None = None, /, **options: Any) -> Any:
    """Compile a function at its first call, or load what an earlier process compiled.

    The compiled code holds no interpreter lock. It is kept in the first of these folders that can
    be written: ``__pycache__`` beside the source, ``doppler`` in the user's cache, one of the user
    among the temporary files; or in ``NUMBA_CACHE_DIR`` alone, if that is set. The log says once
    if it is a temporary one, or none. A damaged file is compiled anew.

    Parameters
    ----------
    function : callable
    **options
        Of :func:`numba.njit`.
    """
    if function is None:
        return lambda function: _compiled(function, options)
    return _compiled(function, options)


def _compiled(function: Callable[P, R], options: dict[str, Any]) -> Callable[P, R]:
    compiled = njit(nogil=True, **options)(function)
    if isinstance(compiled, Dispatcher):  # not with NUMBA_DISABLE_JIT
        compiled._cache = KernelCache(compiled)  # type: ignore[attr-defined]
    return compiled


class KernelCache(NullCache):
    """Keeps the compiled code of one kernel, a file for each set of types.

    Parameters
    ----------
    compiled : numba.core.dispatcher.Dispatcher
    """

    _told = False

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        function = compiled.py_func
        self._source = Path(function.__code__.co_filename).parent
        self._stem = f"{function.__module__}.{function.__qualname__}".replace("<locals>.", "")

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code for these types, or None if there is none that is whole."""
        target_context.refresh()
        name = self._file_name(sig, target_context.codegen())
        for folder in _folders(self._source):
            # Whatever is wrong with a file, compiling makes up for it.
            with suppress(Exception):
                if folder == _temporary() and not _private(folder):
                    continue
                found = (folder / name).read_bytes()
                checksum, code = found[:_CHECKSUM_BYTES], found[_CHECKSUM_BYTES:]
                if hashlib.sha256(code).digest() == checksum:
                    rebuild: Any = CompileResult._rebuild
                    return rebuild(target_context, *pickle.loads(code))
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the code for these types."""
        if data.lifted or data.library.has_dynamic_globals:
            return  # refers to addresses in this process
        name = self._file_name(sig, data.codegen)
        code: bytes = dumps(data._reduce())  # type: ignore[no-untyped-call]
        faults = []
        for folder in _folders(self._source):
            try:
                _write(folder, name, hashlib.sha256(code).digest() + code)
            except OSError as error:
                faults.append(f"{folder}: {error.strerror or error}")
                continue
            _prune(folder, self._stem)
            if folder == _temporary():
                self._tell(f"compiled kernels are kept in {folder} only ({'; '.join(faults)})")
            return
        self._tell(f"compiled kernels are not kept, every start takes long ({'; '.join(faults)})")

    def _file_name(self, sig: Any, codegen: Any) -> str:
        key = (
            *(numba.__version__, np.__version__, sys.implementation.cache_tag),
            *(numba.config.OPT, numba.config.BOUNDSCHECK, codegen.magic_tuple()),
            *(str(sig), list(_fields(sig))),
            *sorted(_closure(self._compiled)),
        )
        return f"{self._stem}-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc"

    @classmethod
    def _tell(cls, message: str) -> None:
        if not KernelCache._told:
            KernelCache._told = True
            logger.warning("%s; set NUMBA_CACHE_DIR to a folder that can be written", message)


def _folders(source: Path) -> Iterator[Path]:
    """List where a kernel may be kept, the best place first."""
    if numba.config.CACHE_DIR:
        yield Path(numba.config.CACHE_DIR, "doppler")
        return
    yield source / "__pycache__"
    user = os.environ.get("XDG_CACHE_HOME", "")
    user = user if os.path.isabs(user) else os.path.expanduser("~/.cache")
    if os.path.isabs(user):  # otherwise nobody knows of a home
        yield Path(user, "doppler")
    yield _temporary()


@cache
def _temporary() -> Path:
    return Path(tempfile.gettempdir(), f"doppler-{os.getuid()}")


def _private(folder: Path) -> bool:
    """Whether nobody else can have put a file into a folder."""
    found = folder.lstat()
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.getuid()
        and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def _write(folder: Path, name: str, data: bytes) -> None:
    if folder == _temporary():
        folder.mkdir(mode=0o700, exist_ok=True)
        if not _private(folder):
            raise PermissionError(0, "others may write there")
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{uuid.uuid4().hex}.tmp"
    try:
        partial.write_bytes(data)
        os.replace(partial, folder / name)
    finally:
        partial.unlink(missing_ok=True)


def _prune(folder: Path, stem: str) -> None:
    """Remove the oldest files of a kernel."""
    with suppress(OSError):  # another process may do so, too
        files = sorted(folder.glob(f"{stem}-*.nbc"), key=lambda path: path.stat().st_mtime)
        for path in files[:-_MOST_FILES]:
            path.unlink()


def _fields(types: Any) -> Iterator[tuple[str, ...]]:
    """Name the fields of named tuples among types: compiled code knows them by position."""
    for each in types if isinstance(types, Iterable) else getattr(types, "args", ()):
        if hasattr(each, "instance_class"):
            yield each.instance_class._fields
        yield from _fields(getattr(each, "types", ()))


def _closure(compiled: Any) -> set[str]:
    """Describe a kernel and every kernel that it calls."""
    found: set[str] = set()
    left = [compiled]
    while left:
        text, called = _description(left.pop())
        if text not in found:
            found.add(text)
            left.extend(called)
    return found


@cache
def _description(compiled: Any) -> tuple[str, tuple[Any, ...]]:
    """Describe what a kernel's compiled code depends on, and list the kernels that it calls."""
    function: FunctionType = compiled.py_func
    called: list[Any] = []

    def described(value: Any) -> object:
        if isinstance(value, Dispatcher):
            called.append(value)
        if isinstance(value, CodeType):
            names = [described(function.__globals__.get(name)) for name in value.co_names]
            return value.co_code, value.co_names, names, described(value.co_consts)
        if isinstance(value, tuple):
            return [described(each) for each in value]
        if isinstance(value, set | frozenset):
            return sorted(map(repr, value))  # their order differs from process to process
        if isinstance(value, ModuleType):
            members = [getattr(value, name, None) for name in function.__code__.co_names]
            return [described(each) for each in members if not isinstance(each, ModuleType)]
        if isinstance(value, np.ndarray):
            return value.dtype.str, value.shape, value.tobytes()
        if isinstance(value, int | float | complex | str | bytes | np.generic | None):
            return repr(value)
        return getattr(value, "__qualname__", type(value)), getattr(value, "_fields", ())

    cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
    options = tuple(sorted(compiled.targetoptions.items()))
    parts = (options, function.__code__, function.__defaults__, cells)
    text = f"{function.__qualname__} {described(parts)}"
    return text, tuple(called)
