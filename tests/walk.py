"""Which functions of Doppler a call enters, in the order in which each is entered first."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


def entered(call: Callable[[], Any]) -> list[str]:
    """Run a call and name the functions it enters, those of other threads too."""
    seen: dict[str, None] = {}

    def look(frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("doppler."):
            seen.setdefault(f"{module}.{frame.f_code.co_qualname}")

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(seen)
