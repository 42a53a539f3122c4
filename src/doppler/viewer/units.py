"""Numbers for people: three or four figures and the unit that suits them."""

from __future__ import annotations

import math

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_DECIMAL = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def seconds_unit(largest: float) -> tuple[float, str]:
    """Choose the unit in which ``largest`` seconds is at least 1.

    Parameters
    ----------
    largest : float
        Seconds, the end of an axis or the value itself.

    Returns
    -------
    scale : float
        Seconds in one unit: divide by it.
    unit : str
        ``"s"``, ``"ms"``, ``"µs"`` or ``"ns"``.
    """
    size = abs(largest)
    if size == 0 or not math.isfinite(size):
        return _SECONDS[0]
    for scale, unit in _SECONDS:
        # Rounded to the four figures that are shown, 0.99996 s is 1.000 s and not 1000 ms.
        if size >= scale * 0.99995:
            return scale, unit
    return _SECONDS[-1]


def significant(value: float, figures: int = 4) -> str:
    """Round to ``figures`` significant figures, in exponent form beyond 1e15 and below 1e-9."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞" if value < 0 else "-"
    rounded = float(f"{value:.{figures - 1}e}")
    whole = math.floor(math.log10(abs(rounded))) + 1
    if not -9 < whole <= 16:
        return f"{rounded:.{figures - 1}e}"
    return f"{rounded:.{max(0, figures - whole)}f}"


def format_seconds(seconds: float, figures: int = 4) -> str:
    """Write a duration: ``"1.234 ms"``, ``"87.50 µs"``, ``"1200 s"``."""
    scale, unit = seconds_unit(seconds)
    return f"{significant(seconds / scale, figures)} {unit}"


def format_bytes(size: float) -> str:
    """Write a number of bytes in decimal units: ``"1.50 GB"``."""
    return _decimal(size, "B")


def format_flops(flops: float) -> str:
    """Write a number of floating-point operations: ``"2.20 TFLOP"``."""
    return _decimal(flops, "FLOP")


def format_percent(share: float, figures: int = 1) -> str:
    """Write a share of one as a percentage: ``"87.5%"``."""
    return f"{share * 100:.{figures}f}%"


def count_of(count: int, noun: str) -> str:
    """Write a count with its noun: ``"1 op"``, ``"1,200 ops"``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def ticks(largest: float, count: int = 6) -> list[float]:
    """Round positions on an axis from 0 to ``largest``, about ``count`` of them."""
    if not (math.isfinite(largest) and largest > 0):
        return [0.0]
    rough = largest / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * (1 - 1e-9))
    return [i * step for i in range(int(largest / step * (1 + 1e-9)) + 1)]


def _decimal(value: float, unit: str) -> str:
    for scale, prefix in _DECIMAL:
        if abs(value) >= scale:
            return f"{significant(value / scale, 3)} {prefix}{unit}"
    return f"{significant(value, 3)} {unit}"
