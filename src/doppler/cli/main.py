"""The way in and every way out: exit codes, one line for an error, interrupts, closed pipes."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType

import typer

from doppler.cli.app import app
from doppler.errors import DopplerError

BAD_INPUT = 2
INTERRUPTED = 130
# As Typer itself has it.
BROKEN_PIPE = 1
# Typer exports the leaf only; an unknown option or a missing argument derive from its base too.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
# How long an interrupted search may take to wind up before the process ends without it.
_GRACE_SECONDS = 1.0


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit.

    Exits with 0 if all went well; 2 on bad input or usage, with one line on stderr; 130 when
    interrupted; 1 when whoever reads stdout went away.

    Parameters
    ----------
    arguments : list of str, optional
        By default those of the process.
    """
    signal.signal(signal.SIGINT, _interrupt)
    # What is imported stays: to look through it for garbage takes a tenth of a short command.
    gc.set_threshold(100_000, 50, 50)
    # A process that was started with a stream closed has None in its place.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal cannot show is no reason to fail.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    code = run(arguments)
    _to_stderr("")
    if code and threading.active_count() > 1:
        # Closing the interpreter around an op that was given up would end the process by SIGABRT.
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(code)
    # Nor as the interpreter closes: that takes a fifth of a short command.
    gc.freeze()
    sys.exit(code)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code; see :func:`main`."""
    try:
        code = app(args=arguments, prog_name="doppler", standalone_mode=False)
        sys.stdout.flush()
    except DopplerError as error:
        _complain(str(error))
        return BAD_INPUT
    except _UsageError as error:
        _complain(_usage(error))
        return BAD_INPUT
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        # What is still buffered must not be written when the interpreter closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        _complain(f"{error.filename or 'stdout'}: {error.strerror or error}")
        # What could not be written now cannot be written when the interpreter closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BAD_INPUT
    except typer.Abort:
        return _interrupted()
    if code == INTERRUPTED:
        return _interrupted()
    return code if isinstance(code, int) else 0


def _usage(error: Exception) -> str:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "doppler"
    return f"{message.rstrip('.')}; see '{command} --help'"


def _interrupted() -> int:
    _complain("interrupted")
    return INTERRUPTED


def _complain(message: str) -> None:
    _to_stderr(f"error: {' '.join(message.split())}\n")


def _to_stderr(text: str) -> None:
    """Write what is left for stderr; if it cannot be written, the exit code has to tell."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        # Nor must it be written when the interpreter closes stderr.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """Unwind, so that no temporary file stays; but do not wait for a search to use up its time."""
    end = threading.Timer(_GRACE_SECONDS, _end)
    end.daemon = True
    end.start()
    raise KeyboardInterrupt


def _end() -> None:
    _complain("interrupted")
    os._exit(INTERRUPTED)
