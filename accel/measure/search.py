"""The search of `accel.tune`: successive halving on quality, cheapest first, then a verdict on prompts not searched on.

Nothing here draws: an `Evaluator` does, or in a test some formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from accel.measure.arms import Arm
from accel.measure.intervals import Interval, mean

_RUNGS = (2, 4, 8, 16, 32)
"""Prompts per candidate, from rung to rung; about half of the candidates reach the next."""

_FINALISTS = 4
_SPARED = 0.35
"""Share of the budget that is kept for the finalists."""


class Evaluator(Protocol):
    """Measures arms."""

    def margins(self, arm: Arm, rows: Sequence[int]) -> list[float]:
        """Per prompt how far the arm is above the floor (below it where negative)."""

    def expected(self, arm: Arm) -> float:
        """Seconds that the cost model expects of the arm."""

    def ratio(self, arm: Arm, other: Arm) -> Interval:
        """Measured time of ``other`` over that of ``arm``: above 1 ``arm`` is faster."""


@dataclass
class Found:
    """The outcome of a search.

    Attributes:
        best: The fastest way to draw that keeps the floor.
        baseline: The fastest plain way that keeps it, ``None`` where no plain way does.
        gain: Time of the baseline over that of the best, measured; ``None`` where there is none to compare.
        margin: Of the best, on prompts not searched on.
        rejected: Arm to the reason why it is not the best.
    """

    best: Arm
    baseline: Arm | None = None
    gain: Interval | None = None
    margin: Interval | None = None
    rejected: dict[str, str] = field(default_factory=dict)

    def reject(self, arm: Arm, reason: str) -> None:
        """Keep the first reason."""
        self.rejected.setdefault(arm.name, reason)


def search(
    plain: Sequence[Arm],
    candidates: Sequence[Arm],
    measure: Evaluator,
    searched: Sequence[int],
    fresh: Sequence[int],
    left: Callable[[], float],
) -> Found:
    """Find the fastest arm above the floor.

    Args:
        plain: The plain pipeline's curves; the first is what is returned where nothing keeps the floor.
        candidates: Plans.
        measure: Measures them.
        searched: Prompts to search on.
        fresh: Prompts to judge the finalists on.
        left: Share of the time budget that is left, 1 to 0.
    """
    found = Found(plain[0])
    found.baseline = _fastest(sorted(plain, key=measure.expected), measure, fresh, found)
    if found.baseline is not None:
        found.best = found.baseline
    alive = _worth_trying(candidates, measure, found)
    for size in _RUNGS:
        if left() < _SPARED or len(alive) <= _FINALISTS or size > len(searched):
            break
        alive = _halve(alive, measure, searched[:size], found)
    for arm in alive[_FINALISTS:]:
        found.reject(arm, "others stood before it when time or prompts ran out")
    _decide(alive[:_FINALISTS], measure, fresh, found)
    return found


def _fastest(arms: Sequence[Arm], measure: Evaluator, rows: Sequence[int], found: Found) -> Arm | None:
    """The first of ``arms`` that keeps the floor with confidence on ``rows``."""
    for arm in arms:
        margin = mean(measure.margins(arm, rows))
        if margin.low >= 0:
            found.margin = margin
            return arm
        found.reject(arm, f"below the floor: {margin.value:+.2f} ({margin.low:+.2f} to {margin.high:+.2f})")
    return None


def _worth_trying(candidates: Sequence[Arm], measure: Evaluator, found: Found) -> list[Arm]:
    """What the cost model expects to be faster than the plain way, fastest first."""
    limit = measure.expected(found.best)
    alive = []
    for arm in sorted(candidates, key=measure.expected):
        if measure.expected(arm) < limit:
            alive.append(arm)
        else:
            found.reject(arm, f"not expected to be faster than {found.best.name}")
    return alive


def _halve(alive: Sequence[Arm], measure: Evaluator, rows: Sequence[int], found: Found) -> list[Arm]:
    """Drop what is surely below the floor, then the slower half of the rest; doubtful ones go last."""
    margins = {arm: mean(measure.margins(arm, rows)) for arm in alive}
    for arm in alive:
        if margins[arm].high < 0:
            found.reject(arm, f"below the floor on {len(rows)} prompts: {margins[arm].value:+.2f}")
    possible = [arm for arm in alive if margins[arm].high >= 0]
    ranked = sorted(possible, key=lambda arm: (margins[arm].value < 0, measure.expected(arm)))
    keep = max(_FINALISTS, len(ranked) // 2)
    for arm in ranked[keep:]:
        found.reject(arm, f"others were faster, or clearer above the floor, on {len(rows)} prompts")
    return ranked[:keep]


def _decide(finalists: Sequence[Arm], measure: Evaluator, fresh: Sequence[int], found: Found) -> None:
    """The fastest finalist that keeps the floor on fresh prompts and is measurably faster than the plain way."""
    for arm in sorted(finalists, key=measure.expected):
        if found.gain is not None:
            found.reject(arm, f"slower than {found.best.name}")
            continue
        margin = mean(measure.margins(arm, fresh))
        if margin.low < 0:
            found.reject(arm, f"below the floor on fresh prompts: {margin.value:+.2f} (from {margin.low:+.2f})")
            continue
        gain = measure.ratio(arm, found.best)
        if gain.low > 1:
            found.best, found.gain, found.margin = arm, gain, margin
        else:
            found.reject(arm, f"not measurably faster than {found.best.name}: {gain}")
