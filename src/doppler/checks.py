"""Check what a caller gives: an error in one line says what it is and what it must be."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from doppler.errors import DopplerError, ParamsError, UnknownNameError
from doppler.messages import shown_value

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

T = TypeVar("T")
Error = type[DopplerError]

RUNTIMES = ("priority", "fifo")
MOST_JITTER = 10.0


def check_whole(
    value: object, name: str, least: int, most: int | None = None, error: Error = ParamsError
) -> int:
    """Return a whole number from ``least`` to ``most``; ``True`` and ``2.0`` are none."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        found = int(value)
        if least <= found and (most is None or found <= most):
            return found
    rule = f">= {least}" if most is None else f"from {least} to {most}"
    raise error(f"{name} is {shown_value(value)}, must be a whole number {rule}")


def check_number(
    value: object,
    name: str,
    least: float = 0.0,
    most: float = math.inf,
    *,
    above: bool = False,
    infinite: bool = False,
    error: Error = ParamsError,
) -> float:
    """Return a number from ``least`` to ``most``.

    Parameters
    ----------
    above : bool
        Whether ``least`` itself is too small.
    infinite : bool
        Whether the number may be infinite.
    """
    found = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):
            found = float(value)
    large = found > least if above else found >= least
    if large and found <= most and (infinite or found < math.inf):
        return found
    rule = f"{'>' if above else '>='} {least:g}"
    if most < math.inf:
        rule = f"{rule} and <= {most:g}" if above else f"from {least:g} to {most:g}"
    elif not infinite:
        raise error(f"{name} is {shown_value(value)}, must be a finite number {rule}")
    raise error(f"{name} is {shown_value(value)}, must be a number {rule}")


def check_name(value: object, what: str, known: Collection[str]) -> str:
    """Return a name that is known; otherwise the error offers the nearest.

    Raises
    ------
    UnknownNameError
    """
    if isinstance(value, str) and value in known:
        return value
    raise UnknownNameError(what, value, known)


def check_type(value: object, kind: type[T], name: str, error: Error = ParamsError) -> T:
    """Return an object of a class."""
    if isinstance(value, kind):
        return value
    article = "an" if kind.__name__[0] in "AEIOaeio" else "a"
    raise error(f"{name} is {shown_value(value)}, must be {article} {kind.__name__}")


def check_path(value: object, name: str, error: Error = ParamsError) -> Path:
    """Return a path."""
    if isinstance(value, str | os.PathLike) and not isinstance(found := os.fspath(value), bytes):
        return Path(found)
    raise error(f"{name} is {shown_value(value)}, must be a path")


def check_items(
    values: object, kind: type[T], name: str, error: Error = ParamsError
) -> tuple[T, ...]:
    """Return objects of a class as a tuple."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise error(f"{name} is {shown_value(values)}, must be a list of {kind.__name__}")
    return tuple(check_type(value, kind, f"{name}[{at}]", error) for at, value in enumerate(values))


def check_mapping(values: object, name: str, error: Error = ParamsError) -> dict[Any, Any]:
    """Return a copy of a mapping."""
    if isinstance(values, Mapping):
        return dict(values)
    raise error(f"{name} is {shown_value(values)}, must be a mapping")


def check_indices(
    values: npt.ArrayLike, what: str, error: Error, axes: int = 1
) -> npt.NDArray[np.int32]:
    """Return whole numbers as a new int32 array of so many axes."""
    # Imported late here and below: `doppler --help` checks nothing.
    import numpy as np

    array = as_numbers(values)
    if array is None or array.ndim != axes or (array.size and array.dtype.kind not in "iu"):
        lists = "list" if axes == 1 else "list of lists"
        raise error(f"{what} must be a {lists} of whole numbers")
    limits = np.iinfo(np.int32)
    if array.size and not limits.min <= array.min() <= array.max() <= limits.max:
        raise error(f"{what} holds a number that is too large")
    return array.astype(np.int32, order="C")


def as_numbers(values: npt.ArrayLike) -> npt.NDArray[Any] | None:
    """Copy values to an array, or return None where they are ragged or no values at all.

    The numbers of an array of objects are taken one by one, and booleans among numbers stay
    objects, so that the type of the result tells what they are.
    """
    import numpy as np

    if isinstance(values, np.ndarray) and values.dtype == object:
        values = values.tolist()
    try:
        array = np.array(values)
        flat = array.ndim == 1 and isinstance(values, Sequence)
        if flat and not {bool, np.bool_}.isdisjoint(map(type, cast(Sequence[Any], values))):
            array = np.array(values, object)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    return array


def check_seed(seed: object) -> int:
    """Return a seed."""
    return check_whole(seed, "seed", 0)


def check_jitter(jitter: object) -> float:
    """Return the standard deviation of the logarithm of durations."""
    return check_number(jitter, "jitter", 0.0, MOST_JITTER)


def check_runtime(runtime: object) -> str:
    """Return how a run-time orders ready ops."""
    return check_name(runtime, "runtime", RUNTIMES)
