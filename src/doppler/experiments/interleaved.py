"""Placements measured on real devices in turns, with the interval of their medians."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from doppler.engine import Engine
from doppler.experiments.statistics import CONFIDENCE
from doppler.placement import Placement
from doppler.profiling.load import OtherLoad


class Runs(NamedTuple):
    """Measured runs of several placements.

    Attributes
    ----------
    seconds : dict of str to list of float
        Makespans by name, in the order of the rounds: those of one round belong together.
    disturbance : float
        Cores that other processes used meanwhile, on average.
    """

    seconds: dict[str, list[float]]
    disturbance: float


def run_in_turns(
    engine: Engine, placements: Mapping[str, Placement], rounds: int, seed: int
) -> Runs:
    """Run every placement once a round, in another order each round.

    What the machine does meanwhile hits all of them alike. One round warms up and does not count.

    Parameters
    ----------
    engine : Engine
    placements : mapping of str to Placement
    rounds : int
    seed : int
        Of the orders.
    """
    mix = random.Random(seed)
    seconds: dict[str, list[float]] = {name: [] for name in placements}
    names = list(placements)
    for name in names:
        engine.run(placements[name])
    load = OtherLoad()
    for _ in range(rounds):
        mix.shuffle(names)
        for name in names:
            seconds[name].append(engine.run(placements[name]).makespan)
    return Runs(seconds, load.look())


def median_interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Median, and the interval that covers that of all runs, whatever their distribution.

    The ends are the order statistics that the sign test does not reject (David and Nagaraja, Order
    Statistics, 2003, section 7.1); with five samples or fewer, the least and the most.

    Returns
    -------
    median, low, high : float
    """
    from scipy.stats import binom

    ordered = sorted(samples)
    count = len(ordered)
    # So many of the samples lie below the median at least, but for a chance of half the error.
    rank = max(0, int(binom.ppf((1 - CONFIDENCE) / 2, count, 0.5)) - 1)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return middle, ordered[rank], ordered[count - 1 - rank]
