"""The heuristics by name."""

from __future__ import annotations

from doppler.errors import UnknownNameError
from doppler.heuristics.base import Heuristic
from doppler.heuristics.critical_path import critical_path
from doppler.heuristics.enumerative import enumerative
from doppler.heuristics.heft import heft
from doppler.heuristics.local_search import local_search
from doppler.heuristics.random import random
from doppler.heuristics.round_robin import round_robin
from doppler.heuristics.sibling_affinity import sibling_affinity
from doppler.heuristics.single_device import single_device

HEURISTICS: dict[str, Heuristic] = {
    "single_device": single_device,
    "round_robin": round_robin,
    "random": random,
    "critical_path": critical_path,
    "heft": heft,
    "enumerative": enumerative,
    "sibling_affinity": sibling_affinity,
    "local_search": local_search,
}


def heuristic(name: str) -> Heuristic:
    """Return a heuristic by its name.

    Raises
    ------
    UnknownNameError
        If there is none of that name; offers the nearest.
    """
    try:
        return HEURISTICS[name]
    except KeyError:
        raise UnknownNameError("method", name, HEURISTICS) from None
