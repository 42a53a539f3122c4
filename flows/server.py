"""The Prefect server that the flows report to: the configured one, or one of their own."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import environment  # noqa: F401 - before Prefect

# isort: split
import httpx
from prefect.client.orchestration import get_client
from prefect.context import refresh_global_settings_context
from prefect.settings import get_current_settings

from doppler.errors import DopplerError

HOST = "127.0.0.1"
START_SECONDS = 180.0
STOP_SECONDS = 30.0
# Of a server that is not this process's own; it is asked four times.
ANSWER_SECONDS = 3.0
LOG = Path(".cache/prefect/server.log")


def find_server(port: int | None = None, *, pages: bool = False) -> str:
    """Let flows report to the configured server, or start one until this process ends.

    Parameters
    ----------
    port : int, optional
        Of the server that is started; a free one by default. If a server answers there already,
        that is taken.
    pages : bool
        Whether a server that is started shows its pages.

    Returns
    -------
    str
        Its address.

    Raises
    ------
    DopplerError
        If the server that is configured does not answer, or none can be started.
    """
    configured = get_current_settings().api.url
    if configured:
        _check(configured)
        return configured
    port = port or _free_port()
    url = f"http://{HOST}:{port}/api"
    if not _answers(url):
        _start(url, port, pages)
    os.environ["PREFECT_API_URL"] = url
    refresh_global_settings_context()
    return url


def _check(url: str) -> None:
    """Raise unless a server answers."""
    try:
        with get_client({"timeout": ANSWER_SECONDS}, sync_client=True) as client:
            fault = client.api_healthcheck()
    except (ImportError, ValueError, httpx.InvalidURL) as error:  # a proxy that it cannot use
        fault = error
    if fault is not None:
        raise DopplerError(
            f"{url}: no Prefect server answers ({fault}); start it, or unset PREFECT_API_URL"
        )


def _start(url: str, port: int, pages: bool) -> None:
    home = get_current_settings().home
    try:
        home.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=home).close()
    except OSError as error:
        raise DopplerError(
            f"{home}: Prefect's server cannot keep its data there ({error.strerror}); "
            "set PREFECT_HOME to a folder that can be written"
        ) from None
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with LOG.open("w") as stream:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "prefect", "server", "start"),
                *("--host", HOST, "--port", str(port), "--ui" if pages else "--no-ui"),
            ],
            stdout=stream,
            stderr=subprocess.STDOUT,
            # Ctrl-C is not for it: its flows still have to tell it of their end.
            start_new_session=True,
        )
    # At the exit, when Prefect has sent what it still had to send.
    atexit.register(_stop, server)
    deadline = time.monotonic() + START_SECONDS
    while not _answers(url):
        if server.poll() is not None or time.monotonic() > deadline:
            raise DopplerError(f"the Prefect server did not start; {LOG} tells why")
        time.sleep(0.1)


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _answers(url: str) -> bool:
    """Whether a server of this machine answers."""
    with suppress(httpx.HTTPError):
        return httpx.get(f"{url}/health", timeout=5, trust_env=False).is_success
    return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port
