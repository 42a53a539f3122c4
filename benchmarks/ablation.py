"""What each part contributes: reports/ablation.json and reports/ablation.md.

Each variant of the method leaves out or exchanges one part: where placements come from (starts),
what the search may do (moves), what the policy has learned. It is held against the whole method on
cases that no training has seen: same case, seed, seconds and cores, by the expected makespan over
fresh runs. ``python benchmarks/ablation.py`` takes some minutes; ``--full`` takes all held-out
cases, five seeds and the budgets 0, 0.5, 2 and 10, which is hours; ``--resume`` goes on where a run
with the same settings stopped.

Three variants need policies from files, and are left out, which is said, where there are none:
``models/imitation.safetensors`` (Stage I alone) is made by the pipeline; for the paper's features
run ``dvc exp run -S policy.features=paper`` and copy its policy to
``models/ablation/paper.safetensors``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import torch

from doppler import Problem
from doppler.cases import Case
from doppler.cores import cores
from doppler.errors import DopplerError
from doppler.evaluation.comparison import measure
from doppler.experiments.statistics import interval
from doppler.files import read_text, write_atomic
from doppler.heuristics import Solution
from doppler.methods import LEARNED, check_options, solve
from doppler.params import Params, load_params
from doppler.policy.checkpoint import load_policy
from doppler.policy.network import DualPolicy
from doppler.portfolio import STARTS, search
from doppler.search.anneal import PLAIN

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "reports" / "ablation.json"
#: Cases, seeds and budgets by default, and with ``--full``.
CASES = ("llama_four_layers@v100_4x4", "moe_layer_32@*", "lstm_grid@v100_4x4", "llama_layer_2k@*")
SEEDS, BUDGETS = range(5), (0.0, 0.5)
FULL_BUDGETS = (0.0, 0.5, 2.0, 10.0)
#: The policy of the package, as the pipeline trained it.
TRAINED = "I+II"
#: The variant that all others are held against.
WHOLE = "whole method"


@dataclass(frozen=True)
class Variant:
    """One way to place.

    Attributes
    ----------
    group : str
        What it varies.
    policy : str
        Name of a policy, see :func:`policies`.
    method : str
        ``doppler``, or a heuristic that restarts for the same seconds.
    options : mapping
        Keyword arguments of :func:`doppler.portfolio.search`.
    """

    group: str
    policy: str = TRAINED
    method: str = LEARNED
    options: Mapping[str, Any] = field(default_factory=dict)


def only(*starts: str) -> dict[str, Any]:
    """Leave all starts out but those named."""
    return {"starts": starts}


def without(start: str) -> dict[str, Any]:
    """Leave one start out."""
    return {"starts": tuple(name for name in STARTS if name != start)}


#: Every variant by name.
VARIANTS: dict[str, Variant] = {
    WHOLE: Variant("whole"),
    **{f"without {name}": Variant("starts", options=without(name)) for name in STARTS},
    **{f"{name} alone": Variant("starts", options=only(name)) for name in STARTS},
    "sibling_affinity restarts": Variant("methods", method="sibling_affinity"),
    "critical_path restarts": Variant("methods", method="critical_path"),
    "partition": Variant("methods", method="partition"),
    "spmd": Variant("methods", method="spmd"),
    "plain moves": Variant("moves", options={"moves": PLAIN}),
    "plain moves, recreate": Variant("moves", options={"moves": {**PLAIN, "recreate": 1.8}}),
    "untrained": Variant("policy", policy="untrained"),
    "Stage I": Variant("policy", policy="I"),
    "SEL only": Variant("policy", policy="SEL only"),
    "PLC only": Variant("policy", policy="PLC only"),
    "paper's features": Variant("policy", policy="paper"),
}


def untrained(policy: DualPolicy) -> DualPolicy:
    """Make a policy of the same sizes that is as before training: a list scheduler."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        fresh = DualPolicy(policy.sizes, policy.features)
    with torch.no_grad():
        # The hidden layers start small, but not at nothing.
        for layer in (fresh.second, fresh.select_out):
            for parameter in layer.parameters():
                parameter.zero_()
    return fresh.eval()


def one_head(policy: DualPolicy, select: bool) -> DualPolicy:
    """Keep what SEL has learned, or what PLC has, and leave the other as before training."""
    mixed = untrained(policy)
    kept = {
        name: tensor
        for name, tensor in policy.state_dict().items()
        if name.startswith("encoder.") or name.startswith("select_") == select
    }
    mixed.load_state_dict(kept, strict=False)
    return mixed.eval()


def policies(trained: str) -> tuple[dict[str, DualPolicy], dict[str, str]]:
    """Load or make the policies of the variants.

    Returns
    -------
    found : dict of str to DualPolicy
    missing : dict of str to str
        Why there is none of the others.
    """
    whole = load_policy(trained)
    found = {
        TRAINED: whole,
        "untrained": untrained(whole),
        "SEL only": one_head(whole, select=True),
        "PLC only": one_head(whole, select=False),
    }
    missing = {}
    for name, path in (("I", "models/imitation"), ("paper", "models/ablation/paper")):
        try:
            found[name] = load_policy(ROOT / f"{path}.safetensors")
        except DopplerError as error:
            missing[name] = str(error).replace(f"{ROOT}/", "").split(";")[0]
    return found, missing


class Run(NamedTuple):
    """One placement of one case."""

    variant: str
    graph: str
    cluster: str
    budget_s: float
    seed: int
    expected_makespan_s: float
    makespan_s: float
    seconds: float
    origin: str

    @property
    def key(self) -> tuple[str, str, str, float, int]:
        """What it is a run of."""
        return self.variant, self.graph, self.cluster, self.budget_s, self.seed


class Effect(NamedTuple):
    """A variant against the whole method, at one budget.

    ``ratio`` is the geometric mean of its expected makespans over those of the whole method, above
    1 where the variant is worse; ``low`` and ``high`` bound it with 95% confidence, None for a
    single case.
    """

    group: str
    variant: str
    budget_s: float
    cases: int
    runs: int
    ratio: float
    low: float | None
    high: float | None


def place(
    problem: Problem, variant: Variant, policy: DualPolicy, budget: float, seed: int, jitter: float
) -> Solution:
    """Place a problem by a variant."""
    if variant.method != LEARNED:
        return solve(problem, variant.method, budget=budget, seed=seed, jitter=jitter)
    return search(problem, policy, budget=budget, seed=seed, jitter=jitter, **variant.options)


def effects(runs: Sequence[Run]) -> list[Effect]:
    """Hold every variant against the whole method, in pairs of equal case, seed and budget.

    The seeds of a case are averaged first, and the interval is Student's over the cases: what other
    cases would show is the question, not what other seeds would.
    """
    whole = {run.key[1:]: run.expected_makespan_s for run in runs if run.variant == WHOLE}
    logs: dict[tuple[str, float], dict[tuple[str, str], list[float]]] = {}
    for run in runs:
        base = whole.get(run.key[1:])
        if run.variant == WHOLE or not base or not run.expected_makespan_s:
            continue
        by_case = logs.setdefault((run.variant, run.budget_s), {})
        ratio = math.log(run.expected_makespan_s / base)
        by_case.setdefault((run.graph, run.cluster), []).append(ratio)
    names = list(VARIANTS)
    found = []
    for (variant, budget), by_case in sorted(
        logs.items(), key=lambda item: (item[0][1], names.index(item[0][0]))
    ):
        means = [sum(each) / len(each) for each in by_case.values()]
        mean, half = interval(means)
        found.append(
            Effect(
                VARIANTS[variant].group,
                variant,
                budget,
                len(means),
                sum(map(len, by_case.values())),
                math.exp(mean),
                None if half is None else math.exp(mean - half),
                None if half is None else math.exp(mean + half),
            )
        )
    return found


def markdown(found: Sequence[Effect], missing: Mapping[str, str]) -> str:
    """Lay out the effects, one row a variant and one column a budget."""
    budgets = sorted({effect.budget_s for effect in found})
    rows = [
        ["part", "variant", *(f"{budget:g} s" for budget in budgets)],
        ["---", "---", *["---:"] * len(budgets)],
    ]
    table = {(effect.variant, effect.budget_s): effect for effect in found}
    for name in dict.fromkeys(effect.variant for effect in found):
        cells = [_cell(table.get((name, budget))) for budget in budgets]
        rows.append([VARIANTS[name].group, name, *cells])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    about = (
        f"Expected makespan of each variant over that of the {WHOLE}, geometric mean, and the 95% "
        "interval over cases held out of training; above 0% the variant is worse."
    )
    notes = [f"Not measured: policy `{name}` ({why})." for name, why in missing.items()]
    return "\n".join([about, "", *lines, *([""] if notes else []), *notes]) + "\n"


def _cell(effect: Effect | None) -> str:
    if effect is None:
        return "-"
    text = f"{100 * (effect.ratio - 1):+.1f}%"
    if effect.low is None or effect.high is None:
        return text
    return f"{text} [{100 * (effect.low - 1):+.1f}, {100 * (effect.high - 1):+.1f}]"


def held_out(params: Params, patterns: Sequence[str]) -> list[Case]:
    """List the cases of the evaluation whose graphs no training has seen and a pattern names."""
    return [
        case
        for case in params.evaluated
        if params.trained(case) == "none"
        and any(fnmatch(str(case), pattern) for pattern in patterns)
    ]


def measured(
    cases: Sequence[Case],
    variants: Sequence[str],
    networks: Mapping[str, DualPolicy],
    budgets: Sequence[float],
    seeds: Sequence[int],
    jitter: float,
    build: Callable[[Case], Problem],
    done: Mapping[Any, Run],
) -> Iterator[Run]:
    """Run what is not done yet: the variants of a case, seed and budget one after the other."""
    for case in cases:
        problem = build(case)
        for seed in seeds:
            for budget in budgets:
                for name in variants:
                    key = (name, *case, budget, seed)
                    if key in done:
                        continue
                    variant = VARIANTS[name]
                    solution = place(
                        problem, variant, networks[variant.policy], budget, seed, jitter
                    )
                    found = measure(problem, solution, jitter)
                    yield Run(
                        name,
                        *case,
                        budget,
                        seed,
                        found.expected_makespan_s or 0.0,
                        found.makespan_s,
                        round(found.seconds, 3),
                        solution.origin,
                    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write after every case, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="all held-out cases and budgets")
    parser.add_argument("--cases", nargs="+", metavar="PATTERN", help="of GRAPH@CLUSTER")
    parser.add_argument("--variants", nargs="+", metavar="PATTERN", default=["*"])
    parser.add_argument("--budgets", type=float, nargs="+", metavar="S")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--jitter", type=float, default=0.1)
    parser.add_argument("--policy", default="pretrained", help="the policy that is taken apart")
    parser.add_argument("--output", type=Path, default=REPORT)
    parser.add_argument("--resume", action="store_true", help="go on with the report that is there")
    options = parser.parse_args(arguments)
    try:
        _run(options)
    except DopplerError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _run(options: argparse.Namespace) -> None:
    params = load_params(ROOT / "params.yaml")
    networks, missing = policies(options.policy)
    chosen = held_out(params, options.cases or (["*"] if options.full else CASES))
    variants = [
        name
        for name, variant in VARIANTS.items()
        if variant.policy in networks
        and (name == WHOLE or any(fnmatch(name, pattern) for pattern in options.variants))
    ]
    budgets = options.budgets or (FULL_BUDGETS if options.full else BUDGETS)
    if not chosen or len(variants) < 2:
        what = "--variants" if chosen else "--cases"
        raise DopplerError(f"{what}: nothing is named so")
    for seed, budget in itertools.product(options.seeds, budgets):
        check_options(budget=budget, seed=seed, jitter=options.jitter)
    settings = {"jitter": options.jitter, "policy": options.policy, "cores": cores()}
    runs = _read(options.output, settings) if options.resume and options.output.exists() else []
    done = {run.key: run for run in runs}
    for run in measured(
        chosen,
        variants,
        networks,
        budgets,
        options.seeds,
        options.jitter,
        params.problem,
        done,
    ):
        runs.append(run)
        print(
            f"{run.graph}@{run.cluster} seed {run.seed}, {run.budget_s:g} s, {run.variant}: "
            f"{run.expected_makespan_s * 1e3:.3f} ms",
            flush=True,
        )
        if run.variant == variants[-1]:
            _write(options.output, settings, runs, missing)
    _write(options.output, settings, runs, missing)
    print(markdown(effects(runs), missing))


def _write(
    path: Path, settings: Mapping[str, Any], runs: Sequence[Run], missing: Mapping[str, str]
) -> None:
    found = effects(runs)
    data = {
        **settings,
        "missing": dict(missing),
        "effects": [effect._asdict() for effect in found],
        "runs": [run._asdict() for run in runs],
    }
    write_atomic(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
    write_atomic(path.with_suffix(".md"), markdown(found, missing))


def _read(path: Path, settings: Mapping[str, Any]) -> list[Run]:
    try:
        data = json.loads(read_text(path, "ablation", DopplerError))
        runs = [Run(**run) for run in data["runs"]]
        for run in runs:
            _check(run)
        same = all(data[name] == value for name, value in settings.items())
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DopplerError(f"{path}: is no report of an ablation ({error})") from None
    if not same:
        raise DopplerError(f"{path}: was made with other settings; leave --resume out")
    return runs


def _check(run: Run) -> None:
    if run.variant not in VARIANTS:
        raise ValueError(f"there is no variant {run.variant!r}")
    hash(run.key)
    for seconds in (run.expected_makespan_s, run.makespan_s, run.seconds):
        if not 0 <= seconds < math.inf:
            raise ValueError(f"{seconds} seconds")


if __name__ == "__main__":
    main()
