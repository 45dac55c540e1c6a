"""The three ways to search (Ma et al., arXiv:2501.09732), each over a `Painter` and the same number of candidates.

*random*: independent noises, the best picture wins (best of N, as SANA-1.5 does it).
*zero_order*: neighbours of the best noise so far, round by round; gradients of nothing are needed.
*paths*: half-finished samples are judged by their previews; the best are taken back a few steps with new noise, and go
on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from accel.errors import AccelError
from accel.schedulers.levels import unreadable
from accel.schedulers.search.drawing import Candidate, Glimpse, Painter, Prune, Start, best
from accel.schedulers.search.noise import fresh, neighbour, renoised, together

DISTANCE = 0.5
"""Of a neighbour from the pivot, in standard deviations of the noise."""

WIDTH = 4
"""Candidates of one round of zero-order search."""

LEVELS = (0.3, 0.6)
"""Shares of the steps after which paths are pruned and branch."""

BACK = 0.15
"""Share of the steps that a branching path is taken back."""

Rounds = Iterator[list[Candidate]]


def random(painter: Painter, count: int, seed: int, prune: Prune | None) -> Rounds:
    """Noises of ``seed``, ``seed + 1``, …, all in one round."""
    yield painter.finished([Start(seed + number) for number in range(count)], prune)


def zero_order(painter: Painter, count: int, seed: int, prune: Prune | None) -> Rounds:
    """One round of independent noises, then rounds of neighbours of the best one."""
    found = painter.finished([Start(seed + number) for number in range(min(WIDTH, count))], prune)
    yield found
    pivot = winner(found)
    while (done := len(found)) < count:
        assert pivot.noise is not None
        numbers = range(done, min(done + WIDTH, count))
        noises = [neighbour(pivot.noise, DISTANCE, fresh(pivot.noise, seed, number)) for number in numbers]
        tried = painter.finished([Start(seed + n, noise) for n, noise in zip(numbers, noises, strict=True)], prune)
        yield tried
        found += tried
        pivot = winner([pivot, *tried])


def paths(painter: Painter, count: int, seed: int, prune: Prune | None) -> Rounds:
    """All candidates up to the first level; there half of them go on, each along two paths; and so at each level."""
    if prune is not None:
        raise AccelError("paths are pruned at their own levels: leave prune out")
    steps = painter.steps
    stops = sorted({min(max(round(share * steps), 1), steps - 1) for share in LEVELS})
    now = painter.glimpsed([Start(seed + number) for number in range(count)], stops[0])
    for number, stop in enumerate(stops):
        begin = max(stop - max(round(BACK * steps), 1), 1)
        entries = _branched(painter, now, best(now.scores, max(count // 2, 1)), count, stop, begin, seed, number)
        if number + 1 == len(stops):
            yield painter.resumed(entries, range(count), begin, enter=True)
        else:
            now = painter.glimpsed(entries.starts, stops[number + 1], entries, begin)


def _branched(
    painter: Painter, now: Glimpse, kept: Sequence[int], count: int, stop: int, begin: int, seed: int, number: int
) -> Glimpse:
    """``count`` samples at step ``begin``: the kept ones in turns, each with noise of its own."""
    rows = [kept[place % len(kept)] for place in range(count)]
    samples: list[Tensor] = []
    for place, row in enumerate(rows):
        sample = now.samples[row : row + 1]
        noise = fresh(sample, seed, number * count + place)
        samples.append(renoised(painter.pipe.scheduler, sample, now.times[stop], now.times[begin], noise))
    lanes = [now.lanes[row] for row in rows]
    starts = [now.starts[row] for row in rows]
    return replace(now, starts=starts, samples=together(samples), lanes=lanes)


def winner(candidates: Sequence[Candidate]) -> Candidate:
    """The finished candidate of the highest score, of equal ones the first."""
    return max((each for each in candidates if not each.dropped), key=lambda each: each.score)


def paths_problem(painter: Painter) -> str | None:
    """Why this solver's samples cannot be taken back and entered with; ``None`` when they can."""
    scheduler = painter.pipe.scheduler
    name = type(scheduler).__name__
    if getattr(scheduler, "order", 1) != 1:
        return f"{name} takes two steps for each timestep, so no path can branch between them"
    if hasattr(scheduler, "counter") or hasattr(scheduler, "ets"):
        return f"{name} keeps a history that a path cannot begin without"
    return unreadable(scheduler)


METHODS = {"random": random, "zero_order": zero_order, "paths": paths}
