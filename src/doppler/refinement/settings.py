"""Settings of Stage III."""

from __future__ import annotations

import difflib
import zoneinfo
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from doppler.cluster.device import MAX_DEVICES
from doppler.refinement.signed_rank import smallest_sample
from doppler.settings import Count, Fraction, Name, NotNegative, Positive, Settings, Whole


class Guard(Settings):
    """What Stage III may cost.

    Attributes
    ----------
    max_regret : float
        Bound on the running mean of the regret: of an exploring run it is
        ``measured / baseline - 1``, of a failed one 1 (it has to be run again), of a run of the
        champion 0. The baseline is the median of the latest runs of the champion. The same bound
        holds against the first champion.
    margin : float
        A placement that the calibrated simulator says is slower than the champion by more than
        this share is not tried.
    """

    max_regret: Positive = 0.05
    margin: Positive = 0.10


class ErrorBudget(Settings):
    """The chance of a false promotion that all tests of a calendar month (UTC) share.

    The k-th test of a month gets ``1 / (spread + k)`` of what is left, so
    ``error * spread / ((spread + k - 1) * (spread + k))``. These sum to ``error`` over any number
    of tests; after k of them ``spread / (spread + k)`` of it is left. By the union bound the chance
    of any false promotion in a month is at most ``error``, however the tests depend on one another
    (alpha-spending: Foster and Stine, Alpha-investing, Journal of the Royal Statistical Society B
    70, 2008; Tian and Ramdas, Online control of the familywise error rate, 2021).

    Attributes
    ----------
    error : float
        Of a month.
    spread : float
        Tests that spend half of it. The more, the less the first ones get and the more later ones.
    """

    error: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    spread: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 10.0


class PromotionParams(Settings):
    """How what a refinement came to is compared with what it began with.

    Attributes
    ----------
    pairs : int
        Paired runs of the two placements, at most.
    looks : int
        How often to look whether they are decided; 1: all pairs run.
    min_gain : float
        Share by which a placement must be faster at least.
    policy_pairs : int
        Problems on which the two policies are compared, at most; 0: the champion's is kept.
    """

    pairs: Count = 100
    looks: Count = 7
    min_gain: Fraction = 0.01
    policy_pairs: Whole = 40


class SystemParams(Settings):
    """A graph that runs on real devices, and how to improve its placement there (Stage III).

    Attributes
    ----------
    graph : str
        Name of the graph.
    backend : {"cpu", "cuda"}
    devices : int
        How many devices of the backend.
    profile_seconds : float
        Time to measure the devices in, about, for the cluster to begin with.
    budget : float
        Seconds of search for the placement to begin with.
    timeout : float
        Seconds after which one run of the graph is given up.
    guard : Guard
    error_budget : ErrorBudget
        Of the champions of a refinement, and of the comparisons at its end.
    promotion : PromotionParams
    """

    graph: Name
    backend: Literal["cpu", "cuda"]
    devices: Annotated[int, Field(ge=1, le=MAX_DEVICES)]
    profile_seconds: Positive
    budget: NotNegative
    timeout: Positive
    guard: Guard
    error_budget: ErrorBudget
    promotion: PromotionParams

    @model_validator(mode="after")
    def _pairs_can_tell(self) -> Self:
        first = self.error_budget.error / (self.error_budget.spread + 1)
        least = smallest_sample(first)
        for name in ("pairs", "policy_pairs"):
            pairs = getattr(self.promotion, name)
            if pairs < least and (name == "pairs" or pairs > 0):
                raise ValueError(
                    f"promotion.{name} is {pairs}, must be at least {least}: fewer cannot tell at "
                    f"{first:.1g}, what the first test of a month may spend of its error"
                )
        return self


class RefineParams(SystemParams):
    """Stage III as a stage of the pipeline.

    Attributes
    ----------
    episodes : int
        Runs of the graph.
    """

    episodes: Count


class NightlyParams(SystemParams):
    """The nightly refinement of the deployed policy.

    Attributes
    ----------
    seconds : float
        Time to refine for.
    wait : float
        Seconds that a second refinement on this machine waits for the first, before it is skipped.
    lock : str
        File that they lock: those that name the same one take turns.
    commit : bool
        Whether to commit what is recorded of the registry to Git.
    cron : str
        When the flow is served: minute, hour, day of the month, month, day of the week.
    timezone : str
        Of ``cron``, ``Europe/Berlin``.
    """

    seconds: Positive
    wait: NotNegative
    lock: Annotated[str, Field(min_length=1)]
    commit: bool
    cron: Annotated[str, Field(pattern=r"^\S+( +\S+){4}$")]
    timezone: str

    @field_validator("timezone")
    @classmethod
    def _timezone_exists(cls, timezone: str) -> str:
        known = zoneinfo.available_timezones()
        if timezone not in known:
            near = difflib.get_close_matches(timezone, known, n=1, cutoff=0.5)
            hint = f": did you mean {near[0]!r}?" if near else ", such as 'Europe/Berlin'"
            raise ValueError(f"{timezone!r} is not a time zone{hint}")
        return timezone
