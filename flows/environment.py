"""The environment that Prefect, W&B and what they start find. Import this before them.

What the user has set counts, but no request to this machine goes through a proxy.
"""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import redirect_stderr
from io import StringIO
from ipaddress import ip_address
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

DEFAULTS = {
    # Nothing is reported to Prefect, neither by this process nor by the server that it starts.
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # As it stops, that server logs pages about events that it has not stored yet.
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "WANDB_ERROR_REPORTING": "false",
}
LOOPBACK = ("localhost", "127.0.0.1", "::1")
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
EXCEPTIONS = ("no_proxy", "NO_PROXY")


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def reach_loopback() -> None:
    """Let no request to this machine go through a proxy.

    Prefect's client refuses to start with some proxies and exceptions, whether it needs them or
    not. They are dropped, unless its server is elsewhere: that may need them.
    """
    environment = os.environ
    host = _host(environment.get("PREFECT_API_URL", ""))
    local = not host or is_loopback(host)
    for name in [name for name in environment if name.lower() in PROXIES]:
        if local and not _usable("all_proxy", environment[name]):
            del environment[name]
    exempt = [*LOOPBACK, *([host] if local else [])]
    for name in EXCEPTIONS:
        for each in environment.get(name, "").split(","):
            if not local or _usable("no_proxy", each.strip()):
                exempt.append(each.strip())
    # Some programs read the one, some the other.
    for name in EXCEPTIONS:
        environment[name] = ",".join(dict.fromkeys(filter(None, exempt)))


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _usable(variable: str, value: str) -> bool:
    """Whether Prefect's client starts with a variable alone."""
    kept = {
        name: os.environ.pop(name)
        for name in [*os.environ]
        if name.lower() in (*PROXIES, *EXCEPTIONS)
    }
    os.environ[variable] = value
    try:
        httpx.Client(verify=False).close()
    except (ImportError, ValueError, httpx.InvalidURL):
        return False
    finally:
        del os.environ[variable]
        os.environ.update(kept)
    return True


def load_prefect() -> None:
    """Load Prefect, which reads its settings meanwhile; exit with one line if it refuses them."""
    # Flows that report elsewhere need no folder, and the others refuse to start without.
    warnings.filterwarnings("ignore", "Failed to create the Prefect home directory")
    said = StringIO()
    try:
        with redirect_stderr(said):
            import prefect.context  # noqa: F401
    except ValueError as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, [error.title, *first['loc']]))}: {first['msg']}"
        print(f"error: Prefect does not load with its settings: {reason}", file=sys.stderr)
        sys.exit(2)
    sys.stderr.write(said.getvalue())


for _name, _value in DEFAULTS.items():
    os.environ.setdefault(_name, _value)
reach_loopback()
load_prefect()
