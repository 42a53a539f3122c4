"""Sections about the policy: its parts, its training, and where it can be used."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from doppler.experiments.claims import (
    DISTURBANCES,
    KINDS,
    SCALES,
    STAGES,
    levels_of,
    scaling_fit,
    scaling_points,
    search_pairs,
    transfer_pairs,
)
from doppler.experiments.contrasts import (
    Makespans,
    RatioPair,
    ablation_table,
    by_case,
    excess,
    gain,
    methods_in,
    over_cases,
    over_seeds,
    pairs,
    robustness_table,
    stages_table,
)
from doppler.experiments.figures import Line, chart_svg, method_color
from doppler.experiments.headings import section
from doppler.experiments.layout import (
    Chart,
    Entry,
    Section,
    Table,
    gained,
    interval_text,
    number,
    number_interval,
    percent,
    seconds,
    shaded_interval,
    text,
)
from doppler.experiments.learning_curves import curves_chart
from doppler.experiments.results import LearningCurve, Results, TransferCell
from doppler.experiments.statistics import Estimate, plain_geometric_mean
from doppler.methods import LEARNED
from doppler.viewer.palette import color
from doppler.viewer.units import count_of, format_bytes, format_percent, format_seconds

FAMILIES = {
    "paper": "DOPPLER as published",
    "ours": "Our policy",
    "messages": "DOPPLER as published, small",
}
_NEITHER = "The paper: both policies are needed. Neither is critical path, restarted as often."
_CLAIMED = {
    "paper": _NEITHER,
    "ours": _NEITHER,
    "messages": "The paper: message passing once per episode is as good, and faster.",
}
_SHOTS = {
    "zero-shot": "zero_shot_s",
    "few-shot": "few_shot_s",
    "as few from scratch": "few_scratch_s",
}
_OVER_SEEDS = "Geometric mean over the cases, with the 95% interval over seeds."


def ablation_section(results: Results) -> Section:
    """Lay out what the parts of the policy contribute."""
    if not results.ablation:
        return section("ablation")
    tables, charts, said = [], [], []
    for family, title in FAMILIES.items():
        makespans = ablation_table(results.ablation, family)
        if not makespans:
            continue
        variants = _variants(results, family, makespans)
        tables += [variants, _variants_by_case(title, makespans)]
        said.append(f"{title}: {_sure(makespans)}.")
        charts.append(_ablation_curves(results, family))
    return section("ablation", " ".join(said), tables, charts)


def _sure(makespans: Makespans) -> str:
    """List the variants that the whole policy is below without doubt, and the others."""
    sure: list[str] = []
    unsure: list[str] = []
    worse: list[str] = []
    for variant in methods_in(makespans):
        mean = over_seeds(pairs(makespans, "both", variant))
        if variant == "both" or mean is None:
            continue
        known = mean.low is not None and mean.high is not None
        group = unsure
        if known and mean.high is not None and mean.high < 1:
            group = sure
        elif known and mean.low is not None and mean.low > 1:
            group = worse
        group.append(variant)
    groups = (
        ("the whole policy is below {} without doubt", sure),
        ("not to be told from {}", unsure),
        ("above {}", worse),
    )
    return "; ".join(said.format(", ".join(names)) for said, names in groups if names)


def _variants(results: Results, family: str, makespans: Makespans) -> Table:
    greedy = ablation_table(results.ablation, family, "greedy_s")
    times = ablation_table(results.ablation, family, "seconds")
    rows = []
    for variant in methods_in(makespans):
        found = [over_seeds(pairs(table, variant, "both")) for table in (makespans, greedy, times)]
        rows.append(
            (
                text("both" if variant == "both" else variant),
                *(
                    Entry("-") if variant == "both" else _above(None if f is None else excess(f))
                    for f in found
                ),
                seconds(
                    plain_geometric_mean(row[variant] for row in times.values() if variant in row)
                ),
            )
        )
    return Table(
        f"{FAMILIES[family]}: each variant against both policies whole",
        ("variant", "best placement", "greedy placement", "time of training", "seconds"),
        rows,
        f"Share by which the variant is above. {_CLAIMED[family]} {_OVER_SEEDS}",
    )


def _above(found: Estimate | None) -> Entry:
    """Make an entry of what a variant is above the whole: red where it is surely below."""
    if found is None:
        return Entry("-")
    return Entry(
        interval_text(found),
        found.value,
        sure=found.low is not None and found.low > 0,
        bad=found.high is not None and found.high < 0,
    )


def _variants_by_case(title: str, makespans: Makespans) -> Table:
    variants = [name for name in methods_in(makespans) if name != "both"]
    found = {name: by_case(pairs(makespans, name, "both")) for name in variants}
    cases = dict.fromkeys(case for case, _ in makespans)
    rows = [
        (
            text(case),
            *(
                _above(excess(found[name][case]) if case in found[name] else None)
                for name in variants
            ),
        )
        for case in cases
    ]
    return Table(
        f"{title}: best placement of each variant above both policies, by case",
        ("case", *variants),
        rows,
        folded=True,
    )


def _ablation_curves(results: Results, family: str) -> Chart:
    cells = [cell for cell in results.ablation if cell.given.family == family]
    scale: dict[str, float] = {}
    for cell in cells:
        least = min(run.makespan_s for run in cell.result.runs)
        scale[cell.given.case] = min(scale.get(cell.given.case, least), least)
    curves: dict[str, list[tuple[LearningCurve, float]]] = {}
    for cell in cells:
        for run in cell.result.runs:
            if run.curve is not None:
                curves.setdefault(run.variant, []).append((run.curve, scale[cell.given.case]))
    colored = {name: (color(i), own) for i, (name, own) in enumerate(curves.items())}
    return curves_chart(
        f"{FAMILIES[family]}, all cases, mean of each batch",
        colored,
        "makespan over the best",
        y_from=1.0,
    )


def stages_section(results: Results) -> Section:
    """Lay out the stages of the training."""
    if not results.stages:
        return section("stages")
    measured, simulated = (
        stages_table(results.stages, column) for column in ("measured_s", "simulated_s")
    )
    whole = STAGES[-1]
    rows = []
    for stages in [name for name in STAGES if name in methods_in(measured)]:
        found = [over_seeds(pairs(table, stages, whole)) for table in (measured, simulated)]
        rows.append(
            (
                text(stages),
                *(
                    Entry("-") if stages == whole else _above(None if f is None else excess(f))
                    for f in found
                ),
                seconds(
                    plain_geometric_mean(row[stages] for row in measured.values() if stages in row)
                ),
            )
        )
    table = Table(
        f"Each combination against {whole}",
        ("stages", "measured", "simulated", "measured makespan"),
        rows,
        f"Share by which it is above; the paper: all three are needed. {_OVER_SEEDS}",
    )
    graphs = dict.fromkeys(cell.given.graph for cell in results.stages)
    charts = [_stage_curves(results, graph) for graph in graphs]
    sure = []
    for stages in STAGES[:-1]:
        mean = over_seeds(pairs(measured, whole, stages))
        if mean is not None and mean.high is not None and mean.high < 1:
            sure.append(stages)
    found_text = (
        f"{whole} is below {', '.join(sure) if sure else 'none of the others'} without doubt, "
        f"measured on {count_of(len(graphs), 'graph')}."
    )
    return section("stages", found_text, [table], [chart for chart in charts if chart.svg])


def _stage_curves(results: Results, graph: str) -> Chart:
    curves: dict[str, list[tuple[LearningCurve, float]]] = {}
    for cell in results.stages:
        if cell.given.graph != graph:
            continue
        for run in cell.result.runs:
            if run.curve is not None:
                curves.setdefault(run.stages, []).append((run.curve, 1e-3))
    colored = {name: (color(i), own) for i, (name, own) in enumerate(curves.items())}
    return curves_chart(graph, colored, "mean makespan of a batch, ms")


def transfer_section(results: Results) -> Section:
    """Lay out what is left of a policy on another problem."""
    if not results.transfer:
        return section("transfer")
    tables, said = [], []
    for kind, name in KINDS.items():
        cells = [cell for cell in results.transfer if cell.given.kind == kind]
        if not cells:
            continue
        zero, few, alone = (
            over_seeds(transfer_pairs(results, kind, column)) for column in _SHOTS.values()
        )
        if few is not None and zero is not None:
            share = max(c.result.few_episodes / c.result.scratch_episodes for c in cells)
            said.append(
                f"On {name}: {interval_text(excess(zero))} at once, "
                f"{interval_text(excess(few))} with {format_percent(share)} of the episodes"
                + ("." if alone is None else f", {interval_text(excess(alone))} without transfer.")
            )
        tables.append(_transfer_matrix(kind, name, cells, results))
    lead = (
        "Makespan above that of a policy trained on the target from scratch, with the 95% interval "
        "over seeds; below 0% the one that was trained elsewhere is better. The paper: 2,000 to "
        "4,000 episodes suffice."
    )
    charts = [_transfer_curves(pair, own) for pair, own in _by_pair(results.transfer).items()]
    return section("transfer", " ".join([lead, *said]), tables, charts[:3], charts[3:])


def _by_pair(cells: Sequence[TransferCell]) -> dict[str, list[TransferCell]]:
    found: dict[str, list[TransferCell]] = {}
    for cell in cells:
        found.setdefault(f"{cell.given.source} → {cell.given.target}", []).append(cell)
    return found


def _transfer_matrix(
    kind: str, name: str, cells: Sequence[TransferCell], results: Results
) -> Table:
    """Put sources down, targets across; in each zero-shot, few-shot, and what has no transfer."""
    shots = {
        name: by_case(transfer_pairs(results, kind, column)) for name, column in _SHOTS.items()
    }
    sources = dict.fromkeys(cell.given.source for cell in cells)
    targets = list(dict.fromkeys(cell.given.target for cell in cells))
    rows = []
    for source in sources:
        entries = []
        for target in targets:
            pair = f"{source} → {target}"
            for found in shots.values():
                entries.append(shaded_interval(excess(found[pair]) if pair in found else None))
        rows.append((text(source), *entries))
    columns = [f"{target}, {shot}" for target in targets for shot in shots]
    return Table(f"To {name}", ("trained on", *columns), rows)


def _transfer_curves(pair: str, cells: Sequence[TransferCell]) -> Chart:
    least = min(min(cell.result.scratch_s, cell.result.few_shot_s) for cell in cells)
    scratch = [(c.result.curve_scratch, least) for c in cells if c.result.curve_scratch]
    few = [(c.result.curve_few, least) for c in cells if c.result.curve_few]
    curves = {"from scratch": (color(7), scratch), "trained elsewhere": (color(0), few)}
    return curves_chart(pair, curves, "makespan over the best", y_from=1.0)


def scaling_section(results: Results) -> Section:
    """Lay out time and memory against the ops."""
    cells = results.scaling
    if not cells:
        return section("scaling")
    methods = list(dict.fromkeys(cell.given.method for cell in cells))
    rows: list[tuple[Entry, ...]] = []
    charts = []
    for column, title in SCALES.items():
        lines = []
        write = format_seconds if column.endswith("_s") else format_bytes
        for method in methods:
            points = scaling_points(cells, method, column)
            if not points:
                continue
            fit = scaling_fit(cells, method, column)
            x, y = np.array(points).T
            lines.append(Line(method, x, y, method_color(method), dots=True, joined=False))
            last = None
            if fit is not None:
                ends = np.array([x[0], x[-1]])
                fitted = np.array([fit.at(float(end)) for end in ends])
                lines.append(Line(method, ends, fitted, method_color(method), dashed=True))
            if len(points) > 1 and x[-1] > x[-2]:
                last = float(np.log(y[-1] / y[-2]) / np.log(x[-1] / x[-2]))
            rows.append(
                (
                    text(title),
                    text(method),
                    number_interval(None if fit is None else fit.exponent),
                    number(last, ".2f"),
                    number(float(x[0])),
                    number(float(x[-1])),
                    Entry(write(float(y[-1])), float(y[-1])),
                )
            )
        if lines:
            unit = "seconds" if column.endswith("_s") else "bytes"
            svg = chart_svg(title, lines, "ops", unit, x_log=True, y_log=True)
            legend = {line.name: line.color for line in lines}
            charts.append(Chart(title, svg, tuple(legend.items())))
    table = Table(
        "Fitted exponents",
        (
            "what",
            "method",
            "exponent of the ops",
            "of the last two sizes",
            "from ops",
            "to ops",
            "at the largest",
        ),
        rows,
        "Least squares on logarithms, with the 95% interval; 1 is linear. A constant part makes "
        "the exponent of small sizes smaller, so that of the last two sizes is beside it.",
        texts=2,
    )
    found = ", ".join(
        f"{title} {fit.exponent.value:.2f}"
        for column, title in SCALES.items()
        if (fit := scaling_fit(cells, LEARNED, column)) is not None
    )
    return section("scaling", f"Exponents of {LEARNED}: {found}.", [table], charts)


def robustness_section(results: Results) -> Section:
    """Lay out what is left of placements under what they were not planned for."""
    if not results.robustness:
        return section("robustness")
    tables, charts, said = [], [], []
    for kind, name in DISTURBANCES.items():
        levels = levels_of(results.robustness, kind)
        if not levels:
            continue
        table, chart, sure = _disturbed(results, kind, name, levels)
        tables.append(table)
        charts.append(chart)
        said.append(
            f"Under {name}, {LEARNED} is below the best rival of each case without doubt at {sure} "
            f"of {count_of(len(levels), 'level')}."
        )
    return section("robustness", " ".join(said), tables, charts)


def _disturbed(
    results: Results, kind: str, name: str, levels: Sequence[float]
) -> tuple[Table, Chart, int]:
    informed = {
        (cell.given.case, cell.given.seed, row.level): row.informed_s
        for cell in results.robustness
        for row in cell.result.rows
        if row.kind == kind
    }
    found: dict[str, dict[float, Estimate]] = {}
    against: dict[float, Estimate] = {}
    for level in levels:
        makespans = robustness_table(results.robustness, kind, level)
        methods = methods_in(makespans)
        for method in methods:
            ratios = [
                RatioPair(case, seed, row[method] / informed[case, seed, level])
                for (case, seed), row in makespans.items()
                if method in row
            ]
            mean = over_seeds(ratios)
            if mean is not None:
                found.setdefault(method, {})[level] = mean
        rivals = [method for method in methods if method != LEARNED]
        best = over_seeds(pairs(makespans, LEARNED, rivals))
        if best is not None:
            against[level] = gain(best)
    names = list(found)
    rows = [
        (
            percent(level, 0)._replace(text=format_percent(level, 0)),
            *(
                shaded_interval(excess(found[method][level]) if level in found[method] else None)
                for method in names
            ),
            gained(against.get(level)),
        )
        for level in levels
    ]
    lines = [_line(method, found[method]) for method in names]
    title = f"{name[0].upper()}{name[1:]}"
    return (
        Table(
            title,
            ("level", *names, f"{LEARNED} below the best rival"),
            rows,
            "Expected makespan above that of a planner who knew it, with the 95% interval over "
            "seeds.",
            texts=0,
        ),
        Chart(
            title,
            chart_svg(title, lines, f"{name}, %", "makespan over the informed", y_from=1.0),
            tuple((line.name, line.color) for line in lines),
        ),
        sum(each.low is not None and each.low > 0 for each in against.values()),
    )


def _line(method: str, means: dict[float, Estimate]) -> Line:
    x = 100 * np.array(list(means))
    y, low, high = (
        np.array([getattr(mean, end) for mean in means.values()], dtype=np.float64)
        for end in ("value", "low", "high")
    )
    banded = bool(np.isfinite(low).all() and np.isfinite(high).all())
    return Line(
        method,
        x,
        y,
        method_color(method),
        low if banded else None,
        high if banded else None,
        dots=True,
    )


def search_section(results: Results) -> Section:
    """Lay out search with the policy against search alone."""
    if not results.search:
        return section("search")
    budgets = search_pairs(results)
    means = {
        budget: mean for budget, found in budgets.items() if (mean := over_cases(found)) is not None
    }
    cases = list(dict.fromkeys(cell.given.case for cell in results.search))
    by_budget = {budget: by_case(found) for budget, found in budgets.items()}
    columns = [f"{budget:g} s" for budget in budgets]
    rows: list[tuple[Entry, ...]] = [
        (
            text(case),
            *(gained(gain(each[case]) if case in each else None) for each in by_budget.values()),
        )
        for case in cases
    ]
    rows.append((text("geometric mean"), *(gained(gain(mean)) for mean in means.values())))
    table = Table(
        "Makespan with the policy below that of search alone",
        ("case", *columns),
        rows,
        "At equal seconds, with the 95% interval over seeds, of the mean over cases.",
    )
    found = "; ".join(
        f"{interval_text(gain(mean))} with {budget:g} s" for budget, mean in means.items()
    )
    return section(
        "search",
        f"Makespan saved by the policy, geometric mean over {count_of(len(cases), 'case')}: "
        f"{found}.",
        [table],
        [_budget_curves(results)],
    )


def _budget_curves(results: Results) -> Chart:
    """Draw the makespan by budget, each case over the best that was found in it."""
    least: dict[str, float] = {}
    for cell in results.search:
        found = min(cell.result.with_policy_s, cell.result.search_alone_s)
        least[cell.given.case] = min(least.get(cell.given.case, found), found)
    lines = []
    for i, (column, name) in enumerate(
        (("with_policy_s", "policy and search"), ("search_alone_s", "search alone"))
    ):
        means = {}
        for budget in sorted({cell.given.budget for cell in results.search}):
            mean = over_cases(
                [
                    RatioPair(
                        cell.given.case,
                        cell.given.seed,
                        float(getattr(cell.result, column)) / least[cell.given.case],
                    )
                    for cell in results.search
                    if cell.given.budget == budget
                ]
            )
            if mean is not None:
                means[budget] = mean
        line = _line(name, means)
        lines.append(
            Line(name, line.x / 100, line.y, color((0, 5)[i]), line.low, line.high, dots=True)
        )
    title = "Makespan by budget, all cases"
    x_label, y_label = "seconds of one core", "makespan over the best"
    svg = chart_svg(title, lines, x_label, y_label, x_log=True, y_from=1.0)
    return Chart(title, svg, tuple((line.name, line.color) for line in lines))
