"""The honest baseline: what the plain pipeline achieves in the same time, just by taking fewer steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """A measured way to draw: how long it takes and how good it is (more is better)."""

    seconds: float
    quality: float


def seconds_at(curve: Sequence[Point], quality: float) -> float | None:
    """Time the plain pipeline needs for ``quality``, interpolated linearly between its measured step counts.

    ``None`` outside of the measured range: nothing is extrapolated.
    """
    points = sorted(curve, key=lambda p: p.quality)
    for below, above in zip(points, points[1:]):
        if below.quality <= quality <= above.quality:
            share = (quality - below.quality) / ((above.quality - below.quality) or 1.0)
            return below.seconds + share * (above.seconds - below.seconds)
    return None


def gain(curve: Sequence[Point], plan: Point) -> float | None:
    """Frontier gain: time of the plain pipeline at equal quality over the plan's time.

    Above 1 the plan beats taking fewer steps. ``None`` when its quality is outside of the measured curve.
    """
    plain = seconds_at(curve, plan.quality)
    return None if plain is None else plain / plan.seconds
