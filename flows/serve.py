"""Serve the nightly refinement on this machine, by a schedule, until Ctrl-C.

The schedule is that of params.yaml unless another is given. Runs, their results, and which of them
failed or are late are shown by Prefect's page. Without a server (PREFECT_API_URL) one is started on
this machine, and stopped at the end.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from common import (
    CronSchedule,
    IntervalSchedule,
    exiting,
    find_server,
    get_current_settings,
    pause_deployment,
)
from doppler.errors import DopplerError
from doppler.params import load_params
from nightly import nightly

NAME = "nightly"
NIGHTLY = Path(__file__).with_name("nightly.py")


def by_cron(cron: str, timezone: str) -> CronSchedule:
    """Make a schedule of a cron expression.

    Raises
    ------
    DopplerError
        If it is none.
    """
    try:
        return CronSchedule(cron=cron, timezone=timezone)
    except ValueError:
        raise DopplerError(
            f"cron: {cron!r} is no schedule; give minute, hour, day, month and weekday, "
            'as in "0 2 * * *"'
        ) from None


def main(arguments: list[str] | None = None) -> int:
    """Serve; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--cron", help='such as "0 2 * * *", in the time zone of params.yaml')
    when.add_argument("--interval", type=float, metavar="SECONDS", help="run every so often")
    when.add_argument("--once", action="store_true", help="run once, now, and end")
    parser.add_argument("--params", default="params.yaml", metavar="FILE")
    parser.add_argument("--port", type=int, default=4200, help="of a server that is started")
    given = parser.parse_args(arguments)
    if given.interval is not None and not 1 <= given.interval < float("inf"):
        parser.error("--interval must be at least 1")
    if not 1 <= given.port < 2**16:
        parser.error("--port must be from 1 to 65535")
    settings = load_params(given.params).nightly
    if given.interval is not None:
        schedule: CronSchedule | IntervalSchedule = IntervalSchedule(
            interval=timedelta(seconds=given.interval)
        )
        said = f"every {given.interval:g} s"
    else:
        cron = given.cron or settings.cron
        schedule = by_cron(cron, settings.timezone)
        said = f"at {cron!r} {settings.timezone}"
    url = find_server(given.port, pages=True)
    page = get_current_settings().ui_url or url.removesuffix("/api")
    print(f"Prefect's page: {page}", flush=True)
    if given.once:
        command = [sys.executable, str(NIGHTLY), "--params", given.params]
        return subprocess.run(command, check=False).returncode
    print(
        f"Serving 'nightly/nightly' {said}; 'prefect deployment run nightly/nightly' runs it "
        "now, Ctrl-C ends",
        flush=True,
    )
    try:
        # An interrupt is how it ends, also while it starts.
        with suppress(KeyboardInterrupt):
            nightly.serve(
                NAME,
                schedules=[schedule],
                parameters={"params_file": given.params},
                limit=1,
                paused=False,
                pause_on_shutdown=False,
                print_starting_message=False,
            )
    finally:
        pause_deployment(f"{nightly.name}/{NAME}")
    return 0


if __name__ == "__main__":
    try:
        with exiting():
            sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
