"""The honest baseline: what the plain pipeline achieves just by taking fewer steps, with the best solver for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """A measured way to draw: how long it takes and how good it is (more is better)."""

    seconds: float
    quality: float


def seconds_at(curve: Sequence[Point], quality: float) -> float | None:
    """Time the plain pipeline needs for ``quality``, interpolated linearly between its measured step counts.

    Points that are slower and no better than another do not count. A quality below the fastest point needs at most that
    point's time, which is what is returned. ``None`` above the best point: nothing is extrapolated.
    """
    front: list[Point] = []
    for point in sorted(curve, key=lambda p: p.seconds):
        if not front or point.quality > front[-1].quality:
            front.append(point)
    if front and quality <= front[0].quality:
        return front[0].seconds
    for below, above in zip(front, front[1:]):
        if quality <= above.quality:
            share = (quality - below.quality) / (above.quality - below.quality)
            return below.seconds + share * (above.seconds - below.seconds)
    return None


def gain(curves: Iterable[Sequence[Point]], plan: Point) -> float | None:
    """Frontier gain: time of the plain pipeline at equal quality over the plan's time.

    Above 1 the plan beats taking fewer steps. ``curves`` are the plain pipeline's, one per solver; the
    fastest counts. ``None`` when the plan is better than all that was measured of them.
    """
    times = [seconds for curve in curves if (seconds := seconds_at(curve, plan.quality)) is not None]
    return min(times) / plan.seconds if times else None


def content_gain(points: Iterable[Point], plan: Point, target: float) -> float | None:
    """The same for a quality that saturates, as a share of right pictures does.

    Time of the fastest plain way to reach ``target`` over the plan's time. ``None`` when the plan, or every
    plain way, stays below it.
    """
    reached = [point.seconds for point in points if point.quality >= target]
    return min(reached) / plan.seconds if reached and plan.quality >= target else None
