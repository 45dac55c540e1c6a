"""What a search tells while it goes on, so that it can be shown, and called off."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from accel.measure.arms import Arm
from accel.measure.intervals import Interval

if TYPE_CHECKING:
    from accel.measure.search import Found

Phase = Literal["timing", "long runs", "plain curve", "search", "verdict"]
"""``timing`` for the cost model and ``long runs`` to compare with happen whenever something asks for them; the others
follow each other: the plain pipeline's step counts, plans on more and more prompts, the finalists on fresh prompts."""


@dataclass(frozen=True)
class Measured:
    """What is known of an arm: its distance above the floor, on how many prompts, and its expected seconds."""

    arm: Arm
    margin: Interval
    prompts: int
    seconds: float
    fresh: bool
    """Was it measured on the prompts that were not searched on?"""


def front(points: Iterable[Measured]) -> list[Measured]:
    """Of what was measured on fresh prompts, what nothing else beats in both expected time and quality."""
    found: list[Measured] = []
    fresh = [each for each in points if each.fresh]
    for each in sorted(fresh, key=lambda each: (each.seconds, -each.margin.value)):
        if not found or each.margin.value > found[-1].margin.value:
            found.append(each)
    return found


@dataclass(frozen=True)
class Event:
    """One thing was measured.

    Attributes:
        phase: What it was measured for.
        arm: The way to draw that was measured.
        done: How much of the phase is done.
        expected: How much of it there is at most; a search may need less.
        spent: Seconds so far, those of a run that this one goes on with included.
        budget: Seconds that were given.
        best: The fastest way known to keep the floor; the plain pipeline until one is.
        measured: Quality and expected seconds of ``arm``; ``None`` in ``timing`` and ``long runs``.
        points: The latest measurement of every arm so far, on few prompts of many arms, see `Measured.fresh`.
    """

    phase: Phase
    arm: Arm
    done: int
    expected: int
    spent: float
    budget: float
    best: Arm
    measured: Measured | None = None
    points: Sequence[Measured] = ()

    @property
    def front(self) -> list[Measured]:
        """Of the points on fresh prompts, what nothing else beats."""
        return front(self.points)


Progress = Callable[[Event], object]
"""Told of every event; what it raises ends the search."""


class Stopwatch:
    """Seconds of a search, those of the runs that it goes on with included."""

    def __init__(self) -> None:
        self._before, self._since = 0.0, time.monotonic()

    def __call__(self) -> float:
        """Seconds so far."""
        return self._before + time.monotonic() - self._since

    def catch_up(self, seconds: float) -> None:
        """Something was used that an earlier run had measured after ``seconds``: never goes back."""
        self._before += max(0.0, seconds - self())


class Watch:
    """Turns what a search measures into events.

    Args:
        progress: Is told; with ``None`` nobody is.
        spent: Seconds so far.
        budget: Seconds that were given.
    """

    def __init__(
        self, progress: Progress | None = None, spent: Callable[[], float] = time.monotonic, budget: float = 0.0
    ) -> None:
        self._progress, self._spent, self._budget = progress, spent, budget
        self._found: Found | None = None

    def begin(self, found: Found, phase: Phase, expected: int) -> None:
        """The next phase, in which at most ``expected`` arms will be measured."""
        self._found, self._phase, self._expected = found, phase, expected
        self._seen: set[str] = set()

    def see(self, measured: Measured) -> None:
        """An arm was measured, or chosen."""
        self._seen.add(measured.arm.name)
        self._tell(self._phase, measured.arm, len(self._seen), self._expected, measured)

    def beside(self, phase: Phase, arm: Arm, done: int, expected: int) -> None:
        """Something was measured that others need."""
        self._tell(phase, arm, done, expected)

    def _tell(self, phase: Phase, arm: Arm, done: int, expected: int, measured: Measured | None = None) -> None:
        if self._progress is None or self._found is None:
            return
        best, points = self._found.best, tuple(self._found.measured.values())
        self._progress(Event(phase, arm, done, expected, self._spent(), self._budget, best, measured, points))
