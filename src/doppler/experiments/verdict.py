"""A claim: what is said, what the cells show, and the verdict that follows from both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from doppler.experiments.statistics import Estimate
from doppler.viewer.units import format_percent

Verdict = Literal["surpassed", "reproduced", "not reproduced"]
VERDICTS: tuple[Verdict, ...] = ("surpassed", "reproduced", "not reproduced")
Unit = Literal["share", "number"]

#: What the page prints; :attr:`Claim.verdict` is the same in code.
RULES: dict[Verdict, str] = {
    "surpassed": "there is a figure to hold against, the paper's or a bar of our own, and the "
    "whole 95% interval is at it or beyond it. What nobody puts a figure to cannot be surpassed.",
    "reproduced": "the effect is there: the whole interval lies on the right side of no effect. "
    "Where it is smaller than the paper's, that is said beside it. Where no effect has no meaning "
    "and only a bar is set: the figure itself meets the bar, but not its whole interval.",
    "not reproduced": "everything else: no effect lies within the interval, the effect has the "
    "wrong direction, the bar is missed, a single seed gives no interval, or the experiment was "
    "not run.",
}


@dataclass(frozen=True)
class Claim:
    """A row of the table of verdicts.

    Attributes
    ----------
    topic : str
        What it is a part of.
    claim : str
        What is claimed, understood alone.
    estimate : Estimate or None
        What the cells show; None if there are no such cells.
    paper : float or str or None
        The paper's figure, or what it says without one; None for a claim of our own.
    bar : float or None
        What ours is to reach where the paper has no figure.
    none : float or None
        The figure of no effect; None where that has no meaning.
    higher : bool
        Whether more is better.
    unit : str
        ``share`` of one, or ``number``.
    met : bool
        What else must hold.
    over : str
        What the interval is over: cases, seeds, graphs.
    note : str
        More about it, a sentence.
    """

    topic: str
    claim: str
    estimate: Estimate | None
    paper: float | str | None = None
    bar: float | None = None
    none: float | None = 0.0
    higher: bool = True
    unit: Unit = "share"
    met: bool = True
    over: str = "seeds"
    note: str = ""

    @property
    def target(self) -> float | None:
        """The figure to hold against: the bar of our own, or the paper's."""
        if self.bar is not None:
            return self.bar
        return self.paper if isinstance(self.paper, float) else None

    @property
    def verdict(self) -> Verdict:
        """Follow :data:`RULES`."""
        found = self.estimate
        if found is None or not self.met:
            return "not reproduced"
        worst = found.low if self.higher else found.high
        if worst is not None and self.target is not None and self._reaches(worst, self.target):
            return "surpassed"
        if self.none is None:
            reached = self.target is not None and self._reaches(found.value, self.target)
            return "reproduced" if reached else "not reproduced"
        if worst is None or worst == self.none or not self._reaches(worst, self.none):
            return "not reproduced"
        return "reproduced"

    @property
    def remark(self) -> str:
        """Say in a few words what the verdict alone does not."""
        found = self.estimate
        if found is None:
            return "not run"
        parts = [] if self.met else ["what else it asks for is not met"]
        if found.low is None or found.high is None:
            parts.append("no interval")
        elif isinstance(self.target, float) and self.verdict == "reproduced":
            best = found.high if self.higher else found.low
            if not self._reaches(best, self.target):
                whose = "the bar" if self.bar is not None else "the paper's"
                parts.append(f"smaller than {whose}" if self.higher else f"above {whose}")
        if self.none is not None and found.low is not None and found.high is not None:
            ours = found.high if self.higher else found.low
            if self.none != ours and not self._reaches(ours, self.none):
                parts.append("the opposite is the case")
        return ", ".join(parts)

    def _reaches(self, value: float, target: float) -> bool:
        return value >= target if self.higher else value <= target

    def text(self, value: float | str | None) -> str:
        """Write a figure of the claim for people."""
        if value is None:
            return "-"
        if isinstance(value, str):
            return value
        shown = format_percent(value) if self.unit == "share" else f"{value:.3f}"
        return shown.replace("-", "−")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; shares are of one, not percent."""
        found = self.estimate
        return {
            "topic": self.topic,
            "claim": self.claim,
            "paper": self.paper,
            "ours": None if found is None else _short(found.value),
            "low": None if found is None else _short(found.low),
            "high": None if found is None else _short(found.high),
            "verdict": self.verdict,
            "bar": self.bar,
            "unit": self.unit,
            "better": "higher" if self.higher else "lower",
            "over": self.over,
            "points": 0 if found is None else found.points,
            "remark": self.remark,
            "note": self.note,
        }


def counted(value: float, points: int) -> Estimate:
    """Make an estimate of what was counted in full: it has no interval but itself."""
    return Estimate(value, value, value, points)


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
