"""Every claim, the paper's and our own, computed from the stored cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from doppler.experiments.contrasts import (
    LEARNED_BASELINES,
    Makespans,
    RatioPair,
    ablation_table,
    best_rival,
    by_case,
    episodes_table,
    excess,
    gain,
    measured_case,
    measured_table,
    methods_in,
    over_cases,
    over_seeds,
    pairs,
    robustness_table,
    seconds_table,
    stages_table,
)
from doppler.experiments.results import (
    EpisodesCell,
    ExactCell,
    MeasuredCell,
    Results,
    RobustnessCell,
    ScalingCell,
    SecondsCell,
)
from doppler.experiments.statistics import (
    Estimate,
    PowerFit,
    bootstrap_medians,
    fit_power,
    mean_of,
    rank_correlation,
    share_of,
)
from doppler.experiments.verdict import Claim, counted
from doppler.methods import LEARNED
from doppler.viewer.units import count_of, format_percent

#: The suite on which the paper makes no claim, and most baselines cannot run.
LARGE = "large"
#: Critical path restarted, under a run-time that honors its order, and under the paper's.
RESTARTED = ("critical_path", "critical_path, first ready")
#: Makespans within this share of each other are equal, as in the other reports.
EQUAL = 0.002
#: An optimum is reached within rounding.
_OPTIMAL = 1e-6
_LEAST_GRAPHS = 30
_FEW_SHOT, _FEW_EPISODES = 0.02, 0.25
_LINEAR = 1.1
_NEAR = 0.10
STAGES = ("I", "II", "III", "I+II", "I+II+III")
KINDS = {
    "workload": "another workload",
    "devices": "another number of devices",
    "machine": "another machine",
}
DISTURBANCES = {"jitter": "jitter", "costs": "wrong costs"}
#: What is fitted against the ops, by the columns of the cells.
SCALES = {
    "train_step_s": "training step, time",
    "inference_s": "inference, time",
    "train_memory_bytes": "training step, memory",
    "inference_memory_bytes": "inference, memory",
}


def claims(results: Results) -> list[Claim]:
    """Compute every claim from the cells, in the order of the report."""
    makers: Sequence[Callable[[Results], list[Claim]]] = (
        _headlines,
        _published,
        _everywhere,
        _synchronous,
        _policies,
        _message_passing,
        _stages,
        _baselines_learn,
        _transfer,
        _scaling,
        _robustness,
        _search,
        _exact,
        _measured,
    )
    return [claim for make in makers for claim in make(results)]


def compared(cells: Iterable[SecondsCell]) -> list[SecondsCell]:
    """Leave out the large suite."""
    return [cell for cell in cells if cell.given.suite != LARGE]


#: What methods are called in a sentence.
NAMES = {"placeto": "PLACETO", "gdp": "GDP", "critical_path": "critical path"}


class Rival(NamedTuple):
    """A rival of the paper's headlines: its methods, and how far the paper is below the best."""

    topic: str
    name: str
    methods: tuple[str, ...]
    paper: float
    episodes: bool


RIVALS = (
    Rival(
        "Below the best learned baseline",
        "the best of PLACETO and GDP",
        LEARNED_BASELINES,
        0.527,
        True,
    ),
    Rival("Below critical path", "critical path", ("critical_path",), 0.782, True),
    Rival(
        "Below the expert's enumerative optimizer",
        "the enumerative optimizer",
        ("enumerative",),
        0.138,
        False,
    ),
)


def _headlines(results: Results) -> list[Claim]:
    equal_seconds = seconds_table(compared(results.seconds))
    equal_episodes = episodes_table(results.episodes)
    found = []
    for rival in RIVALS:
        found += _below(rival, equal_seconds, LEARNED, "equal seconds")
        if rival.episodes:
            for method in rival.methods:
                one = rival._replace(name=NAMES.get(method, method), methods=(method,))
                table = episodes_table(results.episodes, method)
                found += _below(one, table, LEARNED, "equal episodes, pretrained and hinted")
                found += _below(one, table, "doppler-policy", "equal episodes, from scratch")
                if rival.methods != RESTARTED[:1]:
                    found += _below(
                        one, table, "doppler-paper", "equal episodes, its teacher's too"
                    )
            if rival.methods == RESTARTED[:1]:
                same = rival._replace(
                    name="critical path under the same run-time", methods=RESTARTED[1:]
                )
                found += _below(same, equal_episodes, "doppler-paper", "equal episodes")
        else:
            found += _below(rival, equal_seconds, "doppler-paper", "equal seconds")
    return found


def _below(rival: Rival, table: Makespans, ours: str, equal: str) -> list[Claim]:
    found = pairs(table, ours, rival.methods)
    cases = by_case(found)
    case = min(cases, key=lambda name: cases[name].value) if cases else None
    mean = over_cases(found)
    return [
        Claim(
            rival.topic,
            f"{ours} is below {rival.name}, largest of the cases, {equal}",
            None if case is None else gain(cases[case]),
            paper=rival.paper,
            note="" if case is None else f"The largest of {count_of(len(cases), 'case')}: {case}.",
        ),
        Claim(
            rival.topic,
            f"{ours} is below {rival.name}, geometric mean, {equal}",
            None if mean is None else gain(mean),
            over="cases",
            note=_extremes(cases),
        ),
    ]


def _extremes(cases: Mapping[str, Estimate]) -> str:
    """Say on how many cases a ratio is below 1, and where it is the worst."""
    if not cases:
        return ""
    worst = max(cases, key=lambda name: cases[name].value)
    below = sum(each.value < 1 for each in cases.values())
    ratio = cases[worst].value
    return (
        f"Below in {below} of {count_of(len(cases), 'case')}; the worst is {worst}, "
        f"{format_percent(abs(ratio - 1))} {'above' if ratio >= 1 else 'below'}."
    )


def _published(results: Results) -> list[Claim]:
    topic = "Below DOPPLER as published"
    equal_episodes = episodes_table(results.episodes)
    rows = (
        (LEARNED, seconds_table(compared(results.seconds)), "equal seconds"),
        (LEARNED, equal_episodes, "equal episodes, pretrained"),
        ("doppler-policy", equal_episodes, "equal episodes, from scratch, without search"),
    )
    found = []
    for ours, table, equal in rows:
        ratios = pairs(table, ours, "doppler-paper")
        mean = over_cases(ratios)
        found.append(
            Claim(
                topic,
                f"{ours} is below doppler-paper, geometric mean, {equal}",
                None if mean is None else gain(mean),
                over="cases",
                note=_extremes(by_case(ratios)),
            )
        )
    return found


class Meeting(NamedTuple):
    """Doppler beside the best of all others, in one cell under one run-time and jitter.

    ``excess`` is the share by which doppler is above it, below 0 where it is better.
    """

    suite: str
    case: str
    seed: int
    runtime: str
    jitter: float
    rival: str
    excess: float


def meetings(cells: Iterable[SecondsCell]) -> list[Meeting]:
    """Hold doppler against the best of all others in every cell."""
    found = []
    for cell in cells:
        given = cell.given
        keys = dict.fromkeys((run.runtime, run.jitter) for run in cell.result.runs)
        for runtime, jitter in keys:
            row = {
                run.method: run.makespan_s
                for run in cell.result.runs
                if (run.runtime, run.jitter) == (runtime, jitter)
            }
            ours = row.pop(LEARNED, None)
            if not row:
                continue
            # What does not fit in memory, while another method does, is lost.
            ours = np.inf if ours is None else ours
            rival = min(row, key=lambda name: row[name])
            above = ours / row[rival] - 1
            found.append(
                Meeting(given.suite, given.case, given.seed, runtime, jitter, rival, above)
            )
    return found


def _everywhere(results: Results) -> list[Claim]:
    topic = "At or below every other method in every cell, equal seconds"
    met = meetings(results.seconds)
    found = []
    for tolerance, name in ((1e-9, "exactly"), (EQUAL, f"within {format_percent(EQUAL)}")):
        above = [each for each in met if each.excess > tolerance]
        worst = max(above, key=lambda each: each.excess, default=None)
        note = f"{len(met) - len(above):,} of {count_of(len(met), 'cell')}."
        if worst is not None:
            note += (
                f" The worst: {format_percent(worst.excess, 2)} above {worst.rival}, {worst.case}, "
                f"seed {worst.seed}, {worst.runtime}, jitter {format_percent(worst.jitter, 0)}."
            )
        share = 1 - len(above) / len(met) if met else 0.0
        found.append(
            Claim(
                topic,
                f"share of cells in which doppler is at or below all others, {name}",
                counted(share, len(met)) if met else None,
                bar=1.0,
                none=None,
                over="cells, counted",
                note=note if met else "",
            )
        )
    return found


def synchronous_pairs(results: Results, method: str | None = None) -> list[RatioPair]:
    """Ratios of work-conserving to bulk-synchronous execution of the same placement."""
    return [
        RatioPair(cell.given.case, cell.given.seed, run.work_conserving_s / run.synchronous_s)
        for cell in results.synchronous
        for run in cell.result.runs
        if method is None or run.method == method
    ]


def best_of_both(results: Results) -> list[RatioPair]:
    """Ratios of the best work-conserving to the best bulk-synchronous run of any placement."""
    return [
        RatioPair(
            cell.given.case,
            cell.given.seed,
            min(run.work_conserving_s for run in cell.result.runs)
            / min(run.synchronous_s for run in cell.result.runs),
        )
        for cell in results.synchronous
        if cell.result.runs
    ]


def _synchronous(results: Results) -> list[Claim]:
    topic = "Work-conserving execution is faster than bulk-synchronous"
    found = []
    for name, ratios in (
        ("on the same placements, all methods", synchronous_pairs(results)),
        (f"on the same placements, {LEARNED}", synchronous_pairs(results, LEARNED)),
        ("each kind with the placement that is best for it", best_of_both(results)),
    ):
        mean = over_cases(ratios)
        found.append(
            Claim(
                topic,
                f"time saved {name}",
                None if mean is None else gain(mean),
                paper="faster",
                over="cases",
                note=_extremes(by_case(ratios)),
            )
        )
    return found


def _contrast(
    topic: str, claim: str, table: Makespans, ours: str, theirs: str, paper: str | None
) -> Claim:
    ratios = pairs(table, ours, theirs)
    mean = over_seeds(ratios)
    return Claim(
        topic,
        claim,
        None if mean is None else gain(mean),
        paper=paper,
        note=_extremes(by_case(ratios)),
    )


def _policies(results: Results) -> list[Claim]:
    names = {"paper": "as published", "ours": "ours"}
    tables = {family: ablation_table(results.ablation, family) for family in names}
    # The best of all episodes may be one that Stage I only watched.
    columns = {"makespan_s": "best episode", "last_s": "mean episode at the end"}
    found = [
        _contrast(
            "Both policies are needed",
            f"SEL and PLC are below {variant}, {name}, {shown}",
            ablation_table(results.ablation, family, column),
            "both",
            variant,
            "both are needed",
        )
        for family, name in names.items()
        for variant in ("SEL only", "PLC only")
        for column, shown in columns.items()
    ]
    found.append(
        _contrast(
            "Features",
            "our features are below the paper's",
            tables["ours"],
            "both",
            "paper features",
            None,
        )
    )
    topic = "A run-time that honors the priority"
    found.append(
        _contrast(
            topic,
            "policy trained with priorities is below one whose priorities are ignored",
            tables["ours"],
            "both",
            "priority ignored",
            None,
        )
    )
    honored, ignored = (
        seconds_table(compared(results.seconds), runtime) for runtime in ("priority", "fifo")
    )
    table = {
        key: {"priority": honored[key][LEARNED], "fifo": ignored[key][LEARNED]}
        for key in honored
        if LEARNED in honored[key] and LEARNED in ignored.get(key, {})
    }
    ratios = pairs(table, "priority", "fifo")
    mean = over_cases(ratios)
    found.append(
        Claim(
            topic,
            "doppler with priorities is below doppler with first ready, first run, equal seconds",
            None if mean is None else gain(mean),
            over="cases",
            note=_extremes(by_case(ratios)),
        )
    )
    return found


def _message_passing(results: Results) -> list[Claim]:
    topic = "Message passing once per episode is as good as per step, and faster"
    makespans, times = (
        over_seeds(
            pairs(
                ablation_table(results.ablation, "messages", column),
                "both",
                "message passing per step",
            )
        )
        for column in ("makespan_s", "seconds")
    )
    return [
        Claim(
            topic,
            f"makespan of once over per step is at most {format_percent(_FEW_SHOT, 0)} more",
            None if makespans is None else excess(makespans),
            paper="as good",
            bar=_FEW_SHOT,
            none=None,
            higher=False,
        ),
        Claim(
            topic,
            "training time saved by once instead of per step",
            None if times is None else gain(times),
            paper="faster per episode",
        ),
    ]


def _stages(results: Results) -> list[Claim]:
    table = stages_table(results.stages)
    return [
        _contrast(
            "All three stages are needed",
            f"I+II+III is below {stages}, measured on the engine",
            table,
            STAGES[-1],
            stages,
            "all three are needed",
        )
        for stages in STAGES[:-1]
    ]


def learning_pairs(cells: Iterable[EpisodesCell], method: str) -> dict[str, list[RatioPair]]:
    """Ratios of the mean of the last eighth of the batches to that of the first, by graph."""
    found: dict[str, list[RatioPair]] = {}
    for cell in cells:
        for run in cell.result.runs:
            if run.method == method:
                pair = RatioPair(cell.given.cluster, cell.given.seed, run.last_s / run.first_s)
                found.setdefault(cell.given.graph, []).append(pair)
    return found


def _baselines_learn(results: Results) -> list[Claim]:
    topic = "The learned baselines learn"
    found = []
    for method in LEARNED_BASELINES:
        means = {
            graph: mean
            for graph, ratios in learning_pairs(results.episodes, method).items()
            if (mean := over_seeds(ratios)) is not None
        }
        # The least sure of all: every workload must show it.
        worst = max(means, key=lambda name: means[name].high or np.inf, default=None)
        note = ""
        if worst is not None:
            falling = sum(mean.high is not None and mean.high < 1 for mean in means.values())
            note = (
                f"The least sure of {count_of(len(means), 'workload')}: {worst}. The fall excludes "
                f"chance on {falling} of them."
            )
        found.append(
            Claim(
                topic,
                f"{method}: the last eighth of its episodes is below the first on every workload, "
                "least sure fall",
                None if worst is None else gain(means[worst]),
                note=note,
            )
        )
    for rival, rule in zip(RESTARTED[::-1], ("the same run-time", "priorities"), strict=True):
        ratios = pairs(episodes_table(results.episodes), "gdp", rival)
        mean = over_cases(ratios)
        found.append(
            Claim(
                topic,
                f"gdp is at most {format_percent(_NEAR, 0)} above critical path restarted as "
                f"often, under {rule}, geometric mean",
                None if mean is None else excess(mean),
                bar=_NEAR,
                none=None,
                higher=False,
                over="cases",
                note=_extremes(by_case(ratios)),
            )
        )
    return found


def transfer_pairs(
    results: Results, kind: str, column: str = "few_shot_s", base: str = "scratch_s"
) -> list[RatioPair]:
    """Ratios of few-shot or zero-shot makespans to those from scratch."""
    return [
        RatioPair(
            f"{cell.given.source} → {cell.given.target}",
            cell.given.seed,
            float(getattr(cell.result, column)) / float(getattr(cell.result, base)),
        )
        for cell in results.transfer
        if cell.given.kind == kind and getattr(cell.result, column) and getattr(cell.result, base)
    ]


def _transfer(results: Results) -> list[Claim]:
    topic = "Few-shot transfer"
    found = []
    for kind, name in KINDS.items():
        mean = over_seeds(transfer_pairs(results, kind))
        shares = [
            cell.result.few_episodes / cell.result.scratch_episodes
            for cell in results.transfer
            if cell.given.kind == kind
        ]
        share = max(shares, default=0.0)
        found.append(
            Claim(
                topic,
                f"few-shot on {name} is at most {format_percent(_FEW_SHOT, 0)} above training "
                f"from scratch, with at most {format_percent(_FEW_EPISODES, 0)} of its episodes",
                None if mean is None else excess(mean),
                paper="2,000 to 4,000 episodes suffice",
                bar=_FEW_SHOT,
                none=None,
                higher=False,
                met=share <= _FEW_EPISODES,
                note=f"With {format_percent(share)} of the episodes." if shares else "",
            )
        )
        # Without it, being within 2% may only say that the episodes were too many.
        ratios = transfer_pairs(results, kind, base="few_scratch_s")
        helped = over_seeds(ratios)
        found.append(
            Claim(
                topic,
                f"few-shot on {name} is below as few episodes from scratch",
                None if helped is None else gain(helped),
                paper="it helps",
                note=_extremes(by_case(ratios)),
            )
        )
    return found


def scaling_fit(cells: Iterable[ScalingCell], method: str, column: str) -> PowerFit | None:
    """Fit time or memory of a method against the ops."""
    points = scaling_points(cells, method, column)
    return fit_power([x for x, _ in points], [y for _, y in points])


def scaling_points(
    cells: Iterable[ScalingCell], method: str, column: str
) -> list[tuple[float, float]]:
    """Ops and time or memory of a method, by size."""
    return sorted(
        (float(cell.result.ops), float(value))
        for cell in cells
        if cell.given.method == method and (value := getattr(cell.result, column))
    )


def _scaling(results: Results) -> list[Claim]:
    found = []
    for column, name in SCALES.items():
        fit = scaling_fit(results.scaling, LEARNED, column)
        points = scaling_points(results.scaling, LEARNED, column)
        note = ""
        if points:
            note = f"From {points[0][0]:,.0f} to {count_of(int(points[-1][0]), 'op')}."
        found.append(
            Claim(
                "Training and inference are linear in the graph",
                f"{name}: fitted exponent of the ops at most {_LINEAR}",
                None if fit is None else fit.exponent,
                paper="linear",
                bar=_LINEAR,
                none=None,
                higher=False,
                unit="number",
                over="sizes",
                note=note,
            )
        )
    return found


def levels_of(cells: Iterable[RobustnessCell], kind: str) -> list[float]:
    """All levels of one kind of disturbance."""
    return sorted({row.level for cell in cells for row in cell.result.rows if row.kind == kind})


def _robustness(results: Results) -> list[Claim]:
    found = []
    for kind, name in DISTURBANCES.items():
        levels: dict[float, Estimate] = {}
        for level in levels_of(results.robustness, kind):
            table = robustness_table(results.robustness, kind, level)
            rivals = [method for method in methods_in(table) if method != LEARNED]
            mean = over_seeds(pairs(table, LEARNED, rivals))
            if mean is not None:
                levels[level] = gain(mean)
        worst = min(levels, key=lambda level: _least(levels[level]), default=None)
        note = ""
        if worst is not None:
            better = sum(each.low is not None and each.low > 0 for each in levels.values())
            note = (
                f"The least sure level, {format_percent(worst, 0)}; below without doubt at "
                f"{better} of {count_of(len(levels), 'level')}."
            )
        found.append(
            Claim(
                "Robustness",
                f"{name}: doppler is below the best rival of each case at every level",
                None if worst is None else levels[worst],
                note=note,
            )
        )
    return found


def _least(found: Estimate) -> float:
    return found.value if found.low is None else found.low


def search_pairs(results: Results) -> dict[float, list[RatioPair]]:
    """Ratios of search with the policy to search alone, by budget."""
    found: dict[float, list[RatioPair]] = {}
    for cell in sorted(results.search, key=lambda cell: cell.given.budget):
        ratio = cell.result.with_policy_s / cell.result.search_alone_s
        pair = RatioPair(cell.given.case, cell.given.seed, ratio)
        found.setdefault(cell.given.budget, []).append(pair)
    return found


def _search(results: Results) -> list[Claim]:
    topic = "The policy helps the search"
    budgets = search_pairs(results)
    if not budgets:
        return [Claim(topic, "policy and search are below search alone, equal seconds", None)]
    found = []
    for budget, ratios in budgets.items():
        mean = over_cases(ratios)
        found.append(
            Claim(
                topic,
                f"policy and search are below search alone with {budget:g} s",
                None if mean is None else gain(mean),
                over="cases",
                note=_extremes(by_case(ratios)),
            )
        )
    return found


def optimum_gaps(cells: Iterable[ExactCell]) -> list[float]:
    """Shares by which doppler is above a proven optimum."""
    return [
        max(0.0, cell.result.doppler_s / cell.result.optimum_s - 1)
        for cell in cells
        if cell.given.kind == "optimum" and cell.result.proven and cell.result.optimum_s
    ]


def _exact(results: Results) -> list[Claim]:
    gaps = optimum_gaps(results.exact)
    optimal = sum(gap <= _OPTIMAL for gap in gaps)
    note = ""
    if gaps:
        note = (
            f"{optimal} of {count_of(len(gaps), 'graph')}; the worst gap is "
            f"{format_percent(max(gaps), 2)}."
        )
        if len(gaps) < _LEAST_GRAPHS:
            note += f" Fewer than {_LEAST_GRAPHS} graphs have a proven optimum."
    return [
        Claim(
            "Optimal on small graphs",
            "doppler finds the proven optimum in at least 95% of the graphs",
            share_of(optimal, len(gaps)) if gaps else None,
            bar=0.95,
            none=None,
            met=len(gaps) >= _LEAST_GRAPHS,
            over="graphs",
            note=note,
        )
    ]


def measured_ratio(
    cells: Sequence[MeasuredCell], ours: str, theirs: Sequence[str]
) -> Estimate | None:
    """Ratio of the medians of interleaved runs, geometric mean over the graphs.

    The interval is that of the bootstrap over the rounds: what other runs would show.
    """
    table = measured_table(cells)
    samples = {}
    for cell in cells:
        case = measured_case(cell)
        runs = {run.method: run.samples_s for run in cell.result.runs}
        rival = best_rival(table, case, theirs)
        if rival is not None and ours in runs:
            samples[case] = list(zip(runs[ours], runs[rival], strict=False))
    return bootstrap_medians(samples) if samples else None


def measured_correlations(cells: Iterable[MeasuredCell]) -> dict[str, float]:
    """Spearman's correlation of simulated and measured makespans of the methods, by case."""
    found = {}
    for cell in cells:
        runs = cell.result.runs
        rank = rank_correlation([run.simulated_s for run in runs], [run.median_s for run in runs])
        if rank is not None:
            found[measured_case(cell)] = rank
    return found


def _measured(results: Results) -> list[Claim]:
    topic = "Measured on the engine"
    cells = results.measured
    others = [name for name in methods_in(measured_table(cells)) if name != LEARNED]
    rows = (
        ("the best of PLACETO and GDP", LEARNED_BASELINES),
        ("critical path", ("critical_path",)),
        ("the enumerative optimizer", ("enumerative",)),
        ("the best of all others on each graph", others),
    )
    found = []
    for name, rivals in rows:
        ratio = measured_ratio(cells, LEARNED, rivals)
        cases = by_case(pairs(measured_table(cells), LEARNED, rivals))
        found.append(
            Claim(
                topic,
                f"doppler is below {name}, geometric mean",
                None if ratio is None else gain(ratio),
                over="runs",
                note=_extremes(cases),
            )
        )
    ranks = measured_correlations(cells)
    found.append(
        Claim(
            topic,
            "rank correlation of simulated and measured makespans over the methods",
            mean_of(list(ranks.values())) if ranks else None,
            unit="number",
            over="graphs",
            note=""
            if not ranks
            else f"From {min(ranks.values()):.2f} to "
            f"{max(ranks.values()):.2f} over {count_of(len(ranks), 'graph')}.",
        )
    )
    return found
