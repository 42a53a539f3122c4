"""Search long for the best placement of every case of the evaluation: benchmarks/best_known.json.

``python benchmarks/best_known.py --seconds 600`` goes on where the table stands: the better of old
and new is kept, and the seconds add up. An entry whose graph or cluster has changed starts afresh.
A case ends early at its lower bound. Interrupting it loses only the round that is running.

``--seconds 0 --from reports/placements`` only takes over what the evaluation found and is better.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from doppler import Placement, Problem, simulate
from doppler.cases import Case
from doppler.errors import DopplerError
from doppler.evaluation.reference import (
    Reference,
    References,
    cluster_fingerprint,
    load_references,
    save_references,
)
from doppler.graph.fingerprint import fingerprint
from doppler.heuristics import Deadline
from doppler.methods import LEARNED, solve
from doppler.params import Params, load_params
from doppler.policy.checkpoint import load_policy
from doppler.policy.network import DualPolicy
from doppler.search.anneal import Annealer, moves_for
from doppler.viewer.units import format_percent, format_seconds

TABLE = Path(__file__).with_name("best_known.json")
# Searches that the time of a case is divided into.
SLICES = 80
# Temperatures of the annealing from the best so far: the first as usual, then cooler, so that what
# is good already is refined rather than left.
WARMTH = (1.0, 0.2, 0.05)


@dataclass
class Best:
    """The best placement of a case so far."""

    problem: Problem
    placement: Placement | None = None
    makespan: float = float("inf")
    how: str = ""

    def offer(self, placement: Placement, how: str) -> None:
        """Keep a placement if it fits in memory and is better."""
        result = simulate(self.problem, placement)
        fits = not (result.peak_memory > self.problem.arrays.capacity).any()
        if fits and result.makespan < self.makespan * (1 - 1e-12):
            self.placement, self.makespan, self.how = placement, result.makespan, how

    @property
    def done(self) -> bool:
        """Whether nothing can be better."""
        return self.makespan <= self.problem.lower_bound * (1 + 1e-9)


def search(best: Best, policy: DualPolicy | None, seconds: float, seed: int) -> float:
    """Search until the time is up or the lower bound is reached; return the seconds spent."""
    deadline = Deadline(seconds)
    step = max(seconds / SLICES, 0.1)
    for number, kind in enumerate(_kinds(policy)):
        left = min(step, deadline.left)
        if best.done or left <= 0:
            break
        try:
            if kind == "annealing":
                _anneal(best, left, seed + number)
            else:
                found = solve(
                    best.problem,
                    kind,
                    policy=policy or "",
                    budget=left,
                    seed=seed + number,
                    jitter=0.0,
                )
                best.offer(found.placement, f"{kind}: {found.origin}")
        except DopplerError as error:
            print(f"  {kind}: {error}", file=sys.stderr)
            # Without a placement that fits, the same would fail at once again and again.
            time.sleep(min(0.1, max(0.0, deadline.left)))
    return deadline.elapsed


def _kinds(policy: DualPolicy | None) -> Iterator[str]:
    methods = [*([LEARNED] if policy is not None else []), "sibling_affinity", "local_search"]
    while True:
        for method in methods:
            yield method
            yield "annealing"


def _anneal(best: Best, seconds: float, seed: int) -> None:
    if best.placement is None:
        return
    warmth = WARMTH[seed % len(WARMTH)]
    moves, hot = moves_for(best.problem)
    annealer = Annealer(best.problem, shares=moves)
    start = [(best.placement, "the best known")]
    found = annealer.refine(start, Deadline(seconds), seed, hot=hot * warmth)
    best.offer(found[0].placement, "annealing from the best known")


def placement_found(case: Case, folder: Path | None) -> Placement | None:
    """Load what an evaluation found to be best of a case, if it left anything."""
    path = None if folder is None else folder / f"{case.file_name}.json"
    return Placement.load(path) if path is not None and path.exists() else None


def improve(
    case: Case,
    params: Params,
    table: References,
    policy: DualPolicy | None,
    seconds: float,
    found: Placement | None = None,
) -> Reference:
    """Search one case, from what the table holds of it and what was found elsewhere."""
    problem = params.problem(case)
    best, spent = Best(problem), 0.0
    old = table.get((case.graph, case.cluster))
    if old is not None and old.suits(problem):
        best.offer(old.placement, old.how)
        spent = old.seconds
    if found is not None:
        found.validate(problem)
        best.offer(found, f"{found.info.get('method')}: {found.info.get('origin')}")
    # Another seed for every second spent, so that a search that goes on does not repeat itself.
    spent += search(best, policy, seconds, seed=round(spent * 1000))
    if best.placement is None:
        raise DopplerError(f"{case}: found no placement that fits in memory; search longer")
    return Reference(
        graph=case.graph,
        cluster=case.cluster,
        graph_fingerprint=fingerprint(problem.graph),
        cluster_fingerprint=cluster_fingerprint(problem),
        best_known_s=best.makespan,
        lower_bound_s=problem.lower_bound,
        seconds=round(spent, 1),
        how=best.how,
        placement=best.placement,
    )


def main() -> None:
    """Improve the table, one line a case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="of each case (600)")
    parser.add_argument("--cases", default="*", help="pattern of GRAPH@CLUSTER, such as 'ffnn*'")
    parser.add_argument(
        "--from",
        dest="folder",
        type=Path,
        metavar="FOLDER",
        help="placements to begin with, as reports/placements",
    )
    parser.add_argument("--table", type=Path, default=TABLE, help="the table to improve")
    parser.add_argument("--policy", default="pretrained", help="policy file, or 'none'")
    arguments = parser.parse_args()
    try:
        params = load_params()
        policy = None if arguments.policy == "none" else load_policy(arguments.policy)
        table = load_references(arguments.table) if arguments.table.exists() else References()
        chosen = params.evaluated
        # What is no longer part of the evaluation is dropped.
        table = References(table[case] for case in chosen if case in table)
        for case in (case for case in chosen if fnmatch(str(case), arguments.cases)):
            began = time.perf_counter()
            found = placement_found(case, arguments.folder)
            if case not in table and found is None and arguments.seconds <= 0:
                continue
            before = table.best_known(*case, params.problem(case))
            entry = improve(case, params, table, policy, arguments.seconds, found)
            table = References([*table.values(), entry])
            save_references(table, arguments.table)
            print(_line(case, entry, before, time.perf_counter() - began), flush=True)
    except DopplerError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _line(case: Case, entry: Reference, before: float | None, took: float) -> str:
    gained = "new" if before is None else f"-{format_percent(1 - entry.best_known_s / before, 3)}"
    over = format_percent(entry.best_known_s / entry.lower_bound_s - 1)
    return (
        f"{case!s:42} {format_seconds(entry.best_known_s, 5):>10}  +{over} over the bound  "
        f"{gained:>8}  {took:.0f} s, {entry.seconds:.0f} s in all  {entry.how}"
    )


if __name__ == "__main__":
    main()
