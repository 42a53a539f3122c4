"""What the report compares."""

from __future__ import annotations

from doppler.cases import Case, Grids, cases, trained_on
from doppler.cluster import Cluster
from doppler.graph.workloads.settings import Graphs
from doppler.problem import Problem
from doppler.settings import Count, Fraction, NotNegative, Seed, Settings


class SuiteSettings(Settings):
    """Cases on which every method is run.

    Attributes
    ----------
    cases : list of Grid
    budget : float
        Seconds of one core that each anytime method may search on each case.
    """

    cases: Grids
    budget: NotNegative


class EvaluateSettings(Settings):
    """Cases of the report, and what to spend on each.

    Attributes
    ----------
    suite, large, operators : SuiteSettings
        Small graphs; large ones and several nodes; irregular ones.
    zero_shot : list of Grid
        Cases whose graphs no training has seen, for the policy alone.
    zero_shot_large : list of Grid
        The same with thousands of ops and several nodes.
    samples : int
        Sampled episodes of the zero-shot comparison.
    search : float
        Seconds of search for what is best known of a zero-shot case that the table lacks.
    jitter : float
        Standard deviation of the logarithm of each duration, for the expected makespans.
    jitter_seeds : int
        Simulated runs with jitter of each placement.
    """

    suite: SuiteSettings
    large: SuiteSettings
    operators: SuiteSettings
    zero_shot: Grids
    zero_shot_large: Grids
    samples: Count
    search: NotNegative
    jitter: Fraction
    jitter_seeds: Count

    @property
    def suites(self) -> dict[str, SuiteSettings]:
        """The suites by name."""
        return {"suite": self.suite, "large": self.large, "operators": self.operators}


class EvaluationSections(Settings):
    """The sections of a parameter file that an evaluation reads.

    Attributes
    ----------
    seed : int
    graphs : dict of str to WorkloadSettings
    training : list of Grid
        What the policy has seen.
    evaluate : EvaluateSettings
    """

    seed: Seed
    graphs: Graphs
    training: Grids
    evaluate: EvaluateSettings

    @property
    def evaluated(self) -> list[Case]:
        """All cases of the evaluation, each once."""
        settings = self.evaluate
        suites = [grid for suite in settings.suites.values() for grid in suite.cases]
        return cases([*suites, *settings.zero_shot, *settings.zero_shot_large])

    def problem(self, case: Case) -> Problem:
        """Make the problem of a case; large graphs are generated sooner than read from a file.

        Raises
        ------
        GraphError, ClusterError, UnknownNameError
            If the graph cannot be generated or the cluster not be loaded.
        """
        return Problem(self.graphs[case.graph].build(), Cluster.load(case.cluster))

    def trained(self, case: Case) -> str:
        """Say how much of a case is trained on, see :func:`~doppler.cases.trained_on`."""
        return trained_on(case, self.training)
