"""The search of `accel.tune`: every technique alone, then successive halving on quality, first the cheapest of what its
parts let hope for; then the finalists' steps, one coordinate after the other (where they lie, how many); then a verdict
on prompts not searched on.

Nothing here draws: an `Evaluator` does, or in a test some formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from accel.measure.arms import Arm
from accel.measure.events import Measured, Watch, front
from accel.measure.intervals import Interval, mean
from accel.measure.prospects import Prospects, alone

_RUNGS = (4, 8, 16, 32)
"""Prompts per candidate, from rung to rung; about half of the candidates reach the next."""

_SURE = 8
"""On fewer prompts than this candidates are ranked, but none is called below the floor."""

_SLACK = 1.1
"""The cost model may be wrong by so much before a candidate is left out for being slow."""

_FINALISTS = 4
_SPARED = 0.35
"""Share of the budget that is kept for the finalists: one half to refine them, one half for the verdict."""

_FIRST_LOOK, _FIRST_RUNG = 0.4, 0.7
"""Shares of the time from the plain curve to the finalists, by which techniques alone and the first rung are done."""


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
        candidates: How many plans there were.
        tried: How many of them were drawn; the others were expected to be too slow or too far off, or time ran out.
        rejected: Arm to the reason why it is not the best.
        measured: Arm to its latest measurement.
        watch: Is told of every measurement.
    """

    best: Arm
    baseline: Arm | None = None
    gain: Interval | None = None
    candidates: int = 0
    tried: int = 0
    rejected: dict[str, str] = field(default_factory=dict)
    measured: dict[str, Measured] = field(default_factory=dict)
    watch: Watch = field(default_factory=Watch, repr=False)

    @property
    def front(self) -> list[Measured]:
        """Of what was measured on fresh prompts, what nothing else beats in both expected time and quality."""
        return front(self.measured.values())

    def measure(self, arm: Arm, evaluator: Evaluator, rows: Sequence[int], fresh: bool = False) -> Interval:
        """The mean margin on these prompts, noted."""
        margin = mean(evaluator.margins(arm, rows))
        self.measured[arm.name] = Measured(arm, margin, len(rows), evaluator.expected(arm), fresh)
        self.watch.see(self.measured[arm.name])
        return margin

    def keep(self, arm: Arm, gain: Interval | None = None) -> None:
        """It is the best so far."""
        self.best, self.gain = arm, gain
        self.rejected.pop(arm.name, None)  # on fewer prompts, perhaps
        self.watch.see(self.measured[arm.name])

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
    watch: Watch | None = None,
    respaced: Callable[[Arm], Sequence[Arm]] | None = None,
) -> Found:
    """Find the fastest arm above the floor.

    Args:
        plain: The plain pipeline's curves; the first is what is returned where nothing keeps the floor.
        candidates: Plans.
        measure: Measures them.
        searched: Prompts to search on.
        fresh: Prompts to judge the finalists on.
        left: Share of the time budget that is left, 1 to 0.
        watch: Is told of every measurement; what it raises ends the search.
        respaced: The ways to place an arm's steps elsewhere, tried for finalists before fewer steps; ``None`` leaves
            finalists as they are.
    """
    found = Found(plain[0], candidates=len(candidates), watch=watch or Watch())
    found.baseline = _fastest(plain, measure, fresh, found)
    alive = _worth_trying(candidates, measure, found)
    room = max(left() - _SPARED, 0.0)

    def late(share: float) -> Callable[[], bool]:
        """Whether that share of the time for the search is spent."""
        return lambda: left() < _SPARED + (1 - share) * room

    if len(alive) > _FINALISTS:
        alive = _promising(alive, measure, searched[:_SURE], found, late(_FIRST_LOOK))
    for size in _RUNGS:
        if (left() < _SPARED and size != _RUNGS[0]) or len(alive) <= _FINALISTS or size > len(searched):
            break
        alive = _halve(alive, measure, searched[:size], found, late(_FIRST_RUNG if size == _RUNGS[0] else 1.0))
    for arm in alive[_FINALISTS:]:
        found.reject(arm, "others stood before it when time or prompts ran out")
    finalists = alive[:_FINALISTS]
    if respaced is not None:
        finalists = _refine(finalists, respaced, measure, searched[:_SURE], found, left)
    _decide(finalists, measure, fresh, found)
    found.tried = sum(arm.name in found.measured for arm in candidates)
    return found


def _fastest(plain: Sequence[Arm], measure: Evaluator, rows: Sequence[int], found: Found) -> Arm | None:
    """The fastest plain way that keeps the floor with confidence on ``rows``, to the step."""

    def keeps(arm: Arm) -> bool:
        margin = found.measure(arm, measure, rows, fresh=True)
        if margin.low < 0:
            found.reject(arm, f"below the floor: {margin.value:+.2f} ({margin.low:+.2f} to {margin.high:+.2f})")
        return margin.low >= 0

    halvings = max(arm.steps for arm in plain).bit_length()
    found.watch.begin(found, "plain curve", len(plain) + halvings)
    best = next((arm for arm in sorted(plain, key=measure.expected) if keeps(arm)), None)
    if best is None:
        return None
    low = max((arm.steps for arm in plain if arm.solver == best.solver and arm.steps < best.steps), default=0)
    while best.steps - low > 1:  # between two step counts of the curve
        middle = Arm((best.steps + low) // 2, best.solver)
        if keeps(middle):
            best = middle
        else:
            low = middle.steps
    found.keep(best)
    return best


def _worth_trying(candidates: Sequence[Arm], measure: Evaluator, found: Found) -> list[Arm]:
    """What the cost model expects to be faster than the plain way, fastest first."""
    limit = _SLACK * measure.expected(found.best)
    alive = []
    for arm in sorted(candidates, key=measure.expected):
        if measure.expected(arm) < limit:
            alive.append(arm)
        else:
            found.reject(arm, f"not expected to be faster than {found.best.name}")
    return alive


def _promising(
    alive: Sequence[Arm], measure: Evaluator, rows: Sequence[int], found: Found, late: Callable[[], bool]
) -> list[Arm]:
    """Draw every technique alone, and order the rest by what that lets hope for.

    First the fastest of those whose parts all keep the floor, then the others, the least doubtful first; what has a
    part that is surely below the floor is left out.
    """
    singles = alone(alive)
    found.watch.begin(found, "search", len(singles))
    known = {each.arm: each.margin for each in found.measured.values() if each.fresh}
    for number, arm in enumerate(singles):
        if number and late():
            break
        known[arm] = found.measure(arm, measure, rows)
    prospects = Prospects(known)
    most = {arm: prospects.most(arm) for arm in alive}
    for arm in alive:
        if most[arm].high < 0:
            found.reject(arm, f"a part of it alone is below the floor: {most[arm].value:+.2f}")
    possible = [arm for arm in alive if most[arm].high >= 0]
    return sorted(possible, key=lambda arm: -min(most[arm].value, 0.0))  # stable: fastest first


def _halve(
    alive: Sequence[Arm], measure: Evaluator, rows: Sequence[int], found: Found, late: Callable[[], bool]
) -> list[Arm]:
    """Drop what is surely below the floor, then the slower half of the rest; doubtful ones go last."""
    margins: dict[Arm, Interval] = {}
    found.watch.begin(found, "search", len(alive))
    for arm in alive:
        if margins and late():
            found.reject(arm, "time ran out before it was drawn")
        else:
            margins[arm] = found.measure(arm, measure, rows)
    below = {arm for arm, margin in margins.items() if len(rows) >= _SURE and margin.high < 0}
    for arm in below:
        found.reject(arm, f"below the floor on {len(rows)} prompts: {margins[arm].value:+.2f}")
    possible = [arm for arm in margins if arm not in below]
    ranked = sorted(possible, key=lambda arm: (margins[arm].value < 0, measure.expected(arm)))
    keep = max(_FINALISTS, len(ranked) // 2)
    for arm in ranked[keep:]:
        found.reject(arm, f"others were faster, or clearer above the floor, on {len(rows)} prompts")
    return ranked[:keep]


def _refine(
    finalists: Sequence[Arm],
    respaced: Callable[[Arm], Sequence[Arm]],
    measure: Evaluator,
    rows: Sequence[int],
    found: Found,
    left: Callable[[], float],
) -> list[Arm]:
    """The finalists, and each with the spacing that suits it best and the fewest steps that surely keep the floor."""
    better: list[Arm] = []
    for arm in sorted(finalists, key=measure.expected):
        if left() < _SPARED / 2:
            break
        spacings = [arm, *respaced(arm)]
        found.watch.begin(found, "search", len(spacings) + arm.steps.bit_length())
        margins = {each: found.measure(each, measure, rows) for each in spacings}
        best = max(spacings, key=lambda each: margins[each].value)
        better.append(_fewest(best, margins[best], measure, rows, found))
    tried = list(dict.fromkeys([*better, *finalists]))
    for name, each in found.measured.items():
        if not each.fresh and each.arm not in tried:
            found.rejected.setdefault(name, f"other steps were better on {len(rows)} prompts")
    return tried


def _fewest(arm: Arm, margin: Interval, measure: Evaluator, rows: Sequence[int], found: Found) -> Arm:
    """``arm`` with the fewest steps that keep the floor with confidence on ``rows``; itself where not even it does."""
    low = 1
    while margin.low >= 0 and arm.steps - low > 1:
        fewer = replace(arm, steps=(arm.steps + low) // 2)
        if found.measure(fewer, measure, rows).low >= 0:
            arm = fewer
        else:
            low = fewer.steps
    return arm


def _decide(finalists: Sequence[Arm], measure: Evaluator, fresh: Sequence[int], found: Found) -> None:
    """The fastest finalist that keeps the floor on fresh prompts and is measurably faster than the plain way."""
    found.watch.begin(found, "verdict", len(finalists))
    for arm in sorted(finalists, key=measure.expected):
        if found.gain is not None:
            found.reject(arm, f"expected to be slower than {found.best.name}")
            continue
        margin = found.measure(arm, measure, fresh, fresh=True)
        if margin.low < 0:
            found.reject(arm, f"below the floor on fresh prompts: {margin.value:+.2f} (from {margin.low:+.2f})")
            continue
        gain = measure.ratio(arm, found.best)
        if gain.low > 1 or found.baseline is None:
            found.keep(arm, gain)
        else:
            found.reject(arm, f"not measurably faster than {found.best.name}: {gain}")
