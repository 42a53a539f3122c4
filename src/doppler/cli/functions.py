"""Functions of the user's own code, named as ``package.module:function``."""

from __future__ import annotations

import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from doppler.errors import DopplerError, UnknownNameError
from doppler.messages import shown, shown_value

_LONGEST = 300


def call_function(name: str) -> Any:
    """Import a function, from the current directory first, and call it without arguments.

    What it prints goes to stderr.

    Parameters
    ----------
    name : str
        ``"package.module:function"``.

    Raises
    ------
    DopplerError
        If there is no such module or function, or if one of them fails: the message then names
        the line of the user's code.
    """
    module_name, colon, path = name.partition(":")
    if not (colon and path and all(part.isidentifier() for part in module_name.split("."))):
        hint = ""
        if module_name.endswith(".py"):
            module = ".".join(Path(module_name).with_suffix("").parts)
            hint = f": {module}:{path or 'FUNCTION'}"
        raise DopplerError(f"{shown(name)}: write it as package.module:function{hint}")
    with redirect_stdout(sys.stderr):
        function = _find(_import(module_name, name), path, name)
        with _explained(name):
            return function()


def _import(module: str, name: str) -> ModuleType:
    folder = os.getcwd()
    # As `python -m` has it. It stays: the function may import more when it is called.
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        with _explained(name):
            return import_module(module)
    except DopplerError as error:
        cause = error.__cause__
        missing = cause.name or "" if isinstance(cause, ModuleNotFoundError) else ""
        if missing and f"{module}.".startswith(f"{missing}."):
            raise DopplerError(
                f"{shown(name)}: there is no module {shown(missing)!r} in {folder}, nor among the "
                "installed packages; go to the directory that holds it, or set PYTHONPATH"
            ) from None
        raise


def _find(module: ModuleType, path: str, name: str) -> Callable[[], Any]:
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise UnknownNameError(f"function of {module.__name__}", path, _functions(module))
        found = getattr(found, part)
    if not callable(found):
        raise DopplerError(f"{shown(name)}: is {shown_value(found)}, must be a function")
    with suppress(ValueError, TypeError):
        signature = inspect.signature(found)
        try:
            signature.bind()
        except TypeError:
            raise DopplerError(
                f"{shown(name)}: takes the arguments {signature}, but is called without any; give "
                "them defaults, or write a function that calls it"
            ) from None
    function: Callable[[], Any] = found
    return function


def _functions(module: ModuleType) -> list[str]:
    """List the public functions that are the user's: not those of the packages it imports."""
    package = module.__name__.partition(".")[0]
    return [
        name
        for name, value in vars(module).items()
        if callable(value)
        and not inspect.isclass(value)
        and not name.startswith("_")
        and (getattr(value, "__module__", None) or "").partition(".")[0] == package
    ]


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn whatever the user's code raises into one line that names the line of that code."""
    try:
        yield
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())[:_LONGEST]
        kind = type(error).__name__
        what = f"{kind}: {text}" if text else kind
        raise DopplerError(f"{_where(error) or shown(name)}: {what}") from error


def _where(error: BaseException) -> str:
    """Name the innermost line of the user's code: not of Python, of a package or of Doppler."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    paths = sysconfig.get_paths()
    folders = [paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    others = tuple(f"{folder}{os.sep}" for folder in (*folders, Path(__file__).parents[1]))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((*others, "<")):
            return f"{frame.filename}:{frame.lineno}"
    return ""
