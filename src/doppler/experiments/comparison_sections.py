"""Sections that hold methods against each other: simulated, measured, and against optima."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from doppler.experiments.claims import (
    EQUAL,
    LARGE,
    RESTARTED,
    RIVALS,
    best_of_both,
    compared,
    learning_pairs,
    measured_correlations,
    measured_ratio,
    meetings,
    optimum_gaps,
    synchronous_pairs,
)
from doppler.experiments.contrasts import (
    JITTER,
    RUNTIME,
    Makespans,
    by_case,
    cases_of,
    episodes_table,
    gain,
    measured_case,
    measured_table,
    methods_in,
    over_cases,
    over_seeds,
    pairs,
    seconds_table,
)
from doppler.experiments.figures import method_color
from doppler.experiments.headings import section
from doppler.experiments.layout import (
    Chart,
    Entry,
    Section,
    Table,
    gained,
    interval_text,
    number,
    percent,
    ratio,
    seconds,
    signed,
    strip,
    text,
)
from doppler.experiments.learning_curves import curves_chart
from doppler.experiments.results import EpisodesCell, ExactCell, LearningCurve, Results
from doppler.experiments.statistics import (
    falls,
    mean_by,
    mean_of,
    plain_geometric_mean,
)
from doppler.methods import LEARNED
from doppler.viewer.units import count_of, format_percent, format_seconds

SUITES = {
    "workloads": "The five workloads",
    "published": "The paper's own graphs at the paper's costs",
    LARGE: "Large graphs and several nodes",
}
_SETTINGS = ((RUNTIME, JITTER), (RUNTIME, 0.0), ("fifo", JITTER), ("fifo", 0.0))


def seconds_section(results: Results) -> Section:
    """Lay out the main comparison at equal seconds."""
    cells = results.seconds
    if not cells:
        return section("seconds")
    table = seconds_table(cells)
    tables = [_ranking(results), _beside_paper(seconds_table(compared(cells)))]
    tables += _losses(results)
    for suite, title in SUITES.items():
        own = seconds_table([cell for cell in cells if cell.given.suite == suite])
        if own:
            tables.append(_matrix(f"{title}: {_setting(RUNTIME, JITTER)}", own))
    missing = [title for suite, title in SUITES.items() if not _has_suite(results, suite)]
    found = _won(results) + _nearest(table)
    if missing:
        found += f" Not run: {', '.join(title[0].lower() + title[1:] for title in missing)}."
    return section("seconds", found, tables)


def _has_suite(results: Results, suite: str) -> bool:
    return any(cell.given.suite == suite for cell in results.seconds)


def _won(results: Results) -> str:
    met = meetings(results.seconds)
    won = sum(each.excess <= 1e-9 for each in met)
    near = sum(each.excess <= EQUAL for each in met)
    return (
        f"{LEARNED} is at or below every other method in {won:,} of {count_of(len(met), 'cell')} "
        f"(case, seed, run-time and jitter), in {near:,} within {format_percent(EQUAL)}."
    )


def _nearest(table: Makespans) -> str:
    """Say which other method is the nearest to doppler, by geometric mean over the cases."""
    means = {
        name: mean
        for name in methods_in(table)
        if name != LEARNED and (mean := over_cases(pairs(table, name, LEARNED))) is not None
    }
    if not means:
        return ""
    nearest = min(means, key=lambda name: means[name].value)
    above = means[nearest].map(lambda value: value - 1)
    return (
        f" The nearest of the others is {nearest}, {interval_text(above)} on geometric mean over "
        f"{count_of(above.points, 'case')}."
    )


def _setting(runtime: str, jitter: float) -> str:
    rule = "priority" if runtime == "priority" else "first ready, first run"
    return f"{rule}, jitter {format_percent(jitter, 0)}"


def _ratios_to_best(table: Makespans) -> dict[str, dict[str, float]]:
    """Geometric mean over seeds of each method over the best of each case, by method and case."""
    found: dict[str, dict[str, float]] = {}
    for case in cases_of(table):
        rows = [row for (name, _), row in table.items() if name == case]
        means = {
            method: plain_geometric_mean(values)
            for method in methods_in(table)
            if (values := [row[method] for row in rows if method in row])
        }
        least = min(means.values(), default=1.0)
        for method, mean in means.items():
            found.setdefault(method, {})[case] = mean / least
    return found


def _ranking(results: Results) -> Table:
    tables = [seconds_table(results.seconds, *setting) for setting in _SETTINGS]
    ratios = [_ratios_to_best(table) for table in tables]
    spent = mean_by(
        (run.method, max(run.seconds, 1e-9)) for cell in results.seconds for run in cell.result.runs
    )
    first = ratios[0]
    rows = []
    for method in sorted(first, key=lambda name: plain_geometric_mean(first[name].values())):
        own = [each.get(method) for each in ratios]
        rows.append(
            (
                text(method),
                strip(list(first[method].values())),
                *(
                    Entry("-") if not each else percent(plain_geometric_mean(each.values()) - 1)
                    for each in own
                ),
                number(sum(each <= 1 + EQUAL for each in first[method].values())),
                number(len(first[method])),
                seconds(spent[method]),
            )
        )
    return Table(
        "All methods",
        (
            "method",
            "over the best of each case",
            *(_setting(*setting) for setting in _SETTINGS),
            "best",
            "cases",
            "time spent",
        ),
        rows,
        "Geometric mean over the cases of the makespan over the best of all methods; each dot is a "
        "case. A method that ran on fewer cases is held against the best of those.",
    )


def _beside_paper(table: Makespans) -> Table:
    columns = [
        (ours, rival.name.removeprefix("the "), rival.methods, rival.paper)
        for rival in RIVALS
        for ours in (LEARNED, "doppler-paper")
    ]
    rows: list[tuple[Entry, ...]] = []
    found = [by_case(pairs(table, ours, methods)) for ours, _, methods, _ in columns]
    means = [over_cases(pairs(table, ours, methods)) for ours, _, methods, _ in columns]
    for case in cases_of(table):
        entries = [gained(gain(each[case]) if case in each else None) for each in found]
        rows.append((text(case), *entries))
    rows.append(
        (
            text("geometric mean"),
            *(gained(None if mean is None else gain(mean)) for mean in means),
        )
    )
    rows.append((text("the paper: up to"), *(percent(paper) for _, _, _, paper in columns)))
    return Table(
        "Lower execution time, beside the paper's figures",
        ("case", *(f"{ours} against {name}" for ours, name, _, _ in columns)),
        rows,
        f"Share by which the makespan is lower, {_setting(RUNTIME, JITTER)}, with the 95% interval "
        "over seeds, of the mean over cases; red where it is higher.",
    )


def _losses(results: Results) -> list[Table]:
    lost = sorted(
        (each for each in meetings(results.seconds) if each.excess > 1e-9),
        key=lambda each: -each.excess,
    )
    if not lost:
        return []
    rows = [
        (
            text(each.case),
            text(each.suite),
            text(each.rival),
            text(_setting(each.runtime, each.jitter)),
            number(each.seed),
            Entry(signed(each.excess, 2), each.excess, bad=each.excess > EQUAL),
        )
        for each in lost
    ]
    return [
        Table(
            f"Where {LEARNED} is above another method",
            ("case", "suite", "the best", "run-time", "seed", f"{LEARNED} above it"),
            rows,
            f"Every cell, the worst first; red beyond {format_percent(EQUAL)}.",
            texts=4,
        )
    ]


def _matrix(title: str, table: Makespans) -> Table:
    ratios = _ratios_to_best(table)
    methods = sorted(
        ratios, key=lambda name: (name != LEARNED, plain_geometric_mean(ratios[name].values()))
    )
    rows: list[tuple[Entry, ...]] = [
        (text(case), *(ratio(ratios[method].get(case)) for method in methods))
        for case in cases_of(table)
    ]
    means = [plain_geometric_mean(ratios[method].values()) for method in methods]
    rows.append((text("geometric mean"), *(ratio(mean) for mean in means)))
    return Table(
        title,
        ("case", *methods),
        rows,
        "Makespan over the best of the case, geometric mean over the seeds.",
    )


def episodes_section(results: Results) -> Section:
    """Lay out the comparison at equal episodes."""
    cells = results.episodes
    if not cells:
        return section("episodes")
    table = episodes_table(cells)
    counts = sorted({int(max(r.curve.episodes)) for c in cells for r in c.result.runs if r.curve})
    found = f"{_shown(counts)} episodes for each method." + _nearest(table)
    tables = [_matrix("Best placement of all episodes", table), _learning(cells), _clocks(cells)]
    charts = _pooled_curves(cells)
    return section("episodes", found, tables, charts, _case_curves(cells))


def _shown(counts: Sequence[int]) -> str:
    ends = dict.fromkeys((counts[0], counts[-1]))
    return " to ".join(f"{count:,}" for count in ends)


def _learning(cells: Sequence[EpisodesCell]) -> Table:
    methods = list(dict.fromkeys(run.method for cell in cells for run in cell.result.runs))
    methods = [method for method in methods if method not in RESTARTED]
    ratios = {method: learning_pairs(cells, method) for method in methods}
    graphs = dict.fromkeys(graph for found in ratios.values() for graph in found)
    chances: dict[str, float] = {}
    rows: list[tuple[Entry, ...]] = []
    for graph in graphs:
        entries = []
        for method in methods:
            own = ratios[method].get(graph, [])
            mean = over_seeds(own)
            if mean is None:
                entries.append(Entry("-"))
                continue
            seeds = mean_by((pair.seed, pair.ratio) for pair in own)
            chance = falls([1.0] * len(seeds), list(seeds.values()))
            chances[method] = max(chance, chances.get(method, 0.0))
            entries.append(gained(gain(mean))._replace(title=f"p = {chance:.3f}"))
        rows.append((text(graph), *entries))
    rows.append((text("largest p-value"), *(number(chances.get(each), ".3f") for each in methods)))
    return Table(
        "Does it learn: fall of the mean makespan from the first to the last eighth of episodes",
        ("workload", *methods),
        rows,
        "With the 95% interval over seeds. The p-value is that of a fall without learning: "
        "Wilcoxon's signed-rank test, one-sided and exact, at least 2⁻ⁿ with n seeds.",
    )


def _clocks(cells: Sequence[EpisodesCell]) -> Table:
    times = mean_by(
        (run.method, run.seconds / max(1.0, max(run.curve.episodes)))
        for cell in cells
        for run in cell.result.runs
        if run.seconds > 0
    )
    return Table(
        "Time of an episode with its share of the learning",
        ("method", "geometric mean over the cases"),
        [(text(method), seconds(each)) for method, each in times.items()],
    )


def _pooled_curves(cells: Sequence[EpisodesCell]) -> list[Chart]:
    """Draw the curves of all cases as one, each over the best makespan of its case."""
    return [
        _curves("All cases, mean of each batch", cells),
        _curves("All cases, best so far", cells, best=True),
        _curves("All cases, best so far, by the clock", cells, best=True, clock=True),
    ]


def _case_curves(cells: Sequence[EpisodesCell]) -> list[Chart]:
    by_name: dict[str, list[EpisodesCell]] = {}
    for cell in cells:
        by_name.setdefault(cell.given.case, []).append(cell)
    return [_curves(case, own) for case, own in by_name.items()]


def _curves(
    title: str, cells: Sequence[EpisodesCell], best: bool = False, clock: bool = False
) -> Chart:
    table = episodes_table(cells)
    scale: dict[str, float] = {}
    for (case, _), row in table.items():
        least = min(row.values())
        scale[case] = min(scale.get(case, least), least)
    curves: dict[str, list[tuple[LearningCurve, float]]] = {}
    for cell in cells:
        for run in cell.result.runs:
            curves.setdefault(run.method, []).append((run.curve, scale[cell.given.case]))
    return curves_chart(
        title,
        {name: (method_color(name), own) for name, own in curves.items()},
        "makespan over the best",
        y_from=1.0,
        best=best,
        clock=clock,
    )


def measured_section(results: Results) -> Section:
    """Lay out what the engine measured."""
    cells = results.measured
    if not cells:
        return section("measured")
    table = measured_table(cells)
    ranks = measured_correlations(cells)
    methods = methods_in(table)
    rows, simulated = [], []
    for cell in cells:
        case = measured_case(cell)
        runs = {run.method: run for run in cell.result.runs}
        least = min(run.median_s for run in runs.values())
        entries = []
        for method in methods:
            run = runs.get(method)
            if run is None:
                entries.append(Entry(""))
                continue
            shown = ratio(run.median_s / least)
            spread = f"{format_seconds(run.low_s)} to {format_seconds(run.high_s)}"
            entries.append(shown._replace(title=f"{format_seconds(run.median_s)}, {spread}"))
            simulated.append(
                (
                    text(case),
                    text(method),
                    seconds(run.simulated_s),
                    seconds(run.median_s),
                    seconds(run.low_s),
                    seconds(run.high_s),
                    number(run.median_s / run.simulated_s, ".3f"),
                )
            )
        rows.append((text(case), *entries, number(ranks.get(case), ".3f")))
    others = [name for name in methods if name != LEARNED]
    gains = [
        (text(name), gained(gain(saved)))
        for name in others
        if (saved := measured_ratio(cells, LEARNED, [name])) is not None
    ]
    best = measured_ratio(cells, LEARNED, others)
    found = f"{count_of(len(cells), 'graph')}, interleaved runs."
    if best is not None:
        found += (
            f" Against the best of all others on each graph, {LEARNED} saves "
            f"{interval_text(gain(best))} of the time."
        )
    if ranks:
        found += (
            f" The rank correlation of simulated and measured makespans is "
            f"{mean_of(list(ranks.values())).value:.3f} on average."
        )
    tables = [
        Table(
            "Measured makespan over the least of the graph",
            ("graph", *methods, "rank correlation"),
            rows,
            "Medians; point at a figure for its seconds and their interval.",
        ),
        Table(
            f"Time that {LEARNED} saves against each method, measured",
            ("method", "saved"),
            gains,
            "Geometric mean over the graphs of the ratio of medians; the interval is that of a "
            "bootstrap over the rounds.",
        ),
        Table(
            "Simulated and measured",
            ("graph", "method", "simulated", "measured, median", "low", "high", "ratio"),
            simulated,
            texts=2,
            folded=True,
        ),
    ]
    return section("measured", found, tables)


def synchronous_section(results: Results) -> Section:
    """Lay out work-conserving against bulk-synchronous execution."""
    if not results.synchronous:
        return section("synchronous")
    methods = list(
        dict.fromkeys(run.method for cell in results.synchronous for run in cell.result.runs)
    )
    ratios = {method: synchronous_pairs(results, method) for method in methods}
    cases = {method: by_case(found) for method, found in ratios.items()}
    rows: list[tuple[Entry, ...]] = [
        (
            text(case),
            *(
                gained(gain(cases[method][case]) if case in cases[method] else None)
                for method in methods
            ),
        )
        for case in dict.fromkeys(cell.given.case for cell in results.synchronous)
    ]
    means = [over_cases(ratios[method]) for method in methods]
    rows.append(
        (
            text("geometric mean"),
            *(gained(None if mean is None else gain(mean)) for mean in means),
        )
    )
    every, best = over_cases(synchronous_pairs(results)), over_cases(best_of_both(results))
    found = ""
    if every is not None:
        saved = gain(every)
        found = (
            f"Work-conserving execution saves {interval_text(saved)} of the time, on geometric "
            f"mean over {count_of(saved.points, 'case')} and all methods."
        )
    if best is not None:
        found += (
            f" With the placement that is best for each kind it saves {interval_text(gain(best))}."
        )
    table = Table(
        "Time saved on the same placements",
        ("case", *methods),
        rows,
        "Share by which work-conserving execution is below bulk-synchronous, with the 95% interval "
        "over seeds, of the mean over cases.",
    )
    return section("synchronous", found, [table])


def exact_section(results: Results) -> Section:
    """Lay out optima of small graphs and bounds of large ones."""
    if not results.exact:
        return section("exact")
    tables = []
    optima = [cell for cell in results.exact if cell.given.kind == "optimum"]
    found = ""
    if optima:
        gaps = optimum_gaps(optima)
        proven = f"{len(gaps)} of {count_of(len(optima), 'small graph')} have a proven optimum"
        optimal = sum(gap <= 1e-6 for gap in gaps)
        found = f"{proven}; {LEARNED} finds {optimal} of them" + (
            f", and the worst gap is {format_percent(max(gaps), 2)}." if gaps else "."
        )
        tables.append(_optima(optima))
    bounds = [cell for cell in results.exact if cell.given.kind == "bound"]
    if bounds:
        tables.append(_bounds(bounds))
        simple, strong = (_mean_gap(bounds, name) for name in ("simple_bound_s", "bound_s"))
        found += (
            f" On graphs too large for a proof, {LEARNED} is {signed(strong)} above a bound that "
            f"counts communication, {signed(simple)} above work over devices and the longest path."
        )
    return section("exact", found.strip(), tables)


def _mean_gap(cells: Iterable[ExactCell], bound: str) -> float:
    return (
        plain_geometric_mean(cell.result.doppler_s / getattr(cell.result, bound) for cell in cells)
        - 1
    )


def _optima(cells: Sequence[ExactCell]) -> Table:
    rows = []
    sizes = sorted({(_setting_of(cell, "ops"), _setting_of(cell, "devices")) for cell in cells})
    for ops, devices in sizes:
        own = [
            cell
            for cell in cells
            if (_setting_of(cell, "ops"), _setting_of(cell, "devices")) == (ops, devices)
        ]
        gaps = optimum_gaps(own)
        path = [
            cell.result.critical_path_s / cell.result.optimum_s
            for cell in own
            if cell.result.proven and cell.result.critical_path_s and cell.result.optimum_s
        ]
        rows.append(
            (
                number(ops),
                number(devices),
                number(len(own)),
                number(len(gaps)),
                number(sum(gap <= 1e-6 for gap in gaps)),
                percent(max(gaps, default=None), 2),
                percent(plain_geometric_mean(path) - 1 if path else None, 2),
                *(_tightness(own, bound) for bound in ("simple_bound_s", "own_bound_s")),
            )
        )
    return Table(
        "Small graphs",
        (
            "ops",
            "devices",
            "graphs",
            "proven",
            f"{LEARNED} optimal",
            f"worst gap of {LEARNED}",
            "critical path, mean gap",
            "work / devices, longest path, below the optimum",
            "bound with communication below it",
        ),
        rows,
        "The bounds are those of large graphs: here their own distance from an optimum is known.",
        texts=0,
    )


def _tightness(cells: Sequence[ExactCell], bound: str) -> Entry:
    """Say how far a bound is below proven optima, by geometric mean."""
    ratios = [
        found / cell.result.optimum_s
        for cell in cells
        if cell.result.proven and cell.result.optimum_s and (found := getattr(cell.result, bound))
    ]
    return percent(plain_geometric_mean(ratios) - 1 if ratios else None)


def _setting_of(cell: ExactCell, name: str) -> float:
    value = cell.given.settings.get(name, 0)
    return float(value) if isinstance(value, int | float) else 0.0


def _bounds(cells: Sequence[ExactCell]) -> Table:
    rows = []
    for cell in cells:
        simple, strong = cell.result.simple_bound_s or 0.0, cell.result.bound_s or 0.0
        ours = cell.result.doppler_s
        rows.append(
            (
                text(f"{cell.given.graph} on {cell.given.cluster}"),
                seconds(simple),
                seconds(strong),
                seconds(ours),
                percent(ours / simple - 1 if simple else None),
                percent(ours / strong - 1 if strong else None),
            )
        )
    return Table(
        "Lower bounds of large graphs",
        (
            "case",
            "work / devices, longest path",
            "with communication",
            LEARNED,
            "gap to the first",
            "gap to the second",
        ),
        rows,
    )
