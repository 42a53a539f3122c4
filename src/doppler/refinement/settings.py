"""Settings of Stage III."""

from __future__ import annotations

import difflib
import zoneinfo
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from doppler.cluster.device import MAX_DEVICES
from doppler.refinement.signed_rank import smallest_sample
from doppler.settings import Count, Fraction, Name, NotNegative, Positive, Settings, Share, Whole


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


class ExplorationSettings(Settings):
    """What to try next, as far as the guard allows.

    Attributes
    ----------
    episode_rate : float
        Share of the runs that are episodes just as the policy drew them.
    exploration_rate : float
        Share of the chances to explore on which what is promising is left for what is unknown, and
        of these, on which that is tried.
    knowledge_share : float
        Share of what may be spent that goes into knowledge, so that gains can always be tried.
    worth_knowing : float
        How far explanations must disagree about a placement, as the deviation of logarithms, for
        its run to be worth its cost.
    least_gain : float
        What a challenger must promise, as a share of the champion's seconds.
    tries : int
        How often a placement is tried before it has to become a challenger or be left alone.
    """

    episode_rate: Share = 0.1
    exploration_rate: Share = 0.25
    knowledge_share: Share = 0.5
    worth_knowing: NotNegative = 0.03
    least_gain: Fraction = 0.003
    tries: Count = 2


class PolicyUpdateSettings(Settings):
    """How the policy learns from measured runs.

    Attributes
    ----------
    every : int
        Rounds of learning between two turns of the policy.
    drawn : int
        Episodes that it then draws: many, since the guard forbids most.
    enough : int
        Measured runs that it takes to learn from.
    learning_rate, gradient_norm : float
        Of Adam; longer gradients are scaled down.
    epochs : int
        Steps that a batch of measured episodes is good for.
    clip : float
        By what share these may change the probability of a choice.
    batch, batch_ops : int
        Episodes of an update by the simulator: so many, or as many as these ops make, but two.
    """

    every: Count = 8
    drawn: Count = 16
    enough: Count = 4
    learning_rate: Positive = 2e-4
    gradient_norm: Positive = 1.0
    epochs: Count = 3
    clip: Fraction = 0.2
    batch: Count = 8
    batch_ops: Count = 100_000


class LearningSettings(Settings):
    """What Stage III learns by.

    Attributes
    ----------
    fitted : int
        Placements that the simulator is fitted to: those run last.
    lasting : int
        Runs after which what was measured is no longer held against the simulator: systems change.
    moves : int
        Of a search of the calibrated simulator.
    starts : int
        The best placements, from one of which a search starts.
    snapshots : int
        States of a search that are compared with jitter.
    untried : int
        Placements never run that are kept, besides the episodes drawn last.
    exploration : ExplorationSettings
    policy : PolicyUpdateSettings
    """

    fitted: Count = 48
    lasting: Count = 1000
    moves: Count = 4000
    starts: Count = 4
    snapshots: Count = 12
    untried: Count = 24
    exploration: ExplorationSettings = ExplorationSettings()
    policy: PolicyUpdateSettings = PolicyUpdateSettings()


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
    learning : LearningSettings
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
    learning: LearningSettings = LearningSettings()
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
