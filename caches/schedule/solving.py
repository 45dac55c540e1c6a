"""From error curves to a schedule: the scan of SmoothCache (arXiv:2411.10510), for a threshold or for a target."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from accel.caches.schedule.curves import Curve, ErrorCurves
from accel.errors import AccelError

By = Literal["kind", "site"]
"""One row for all sites of a kind, as in the paper, or one for each site."""

Bounds = list[list[float]]
"""``[step][ahead - 1]``: the largest error at ``step`` of predictions from values at most ``ahead`` steps old."""


@dataclass(frozen=True)
class Schedule:
    """Which steps are computed, and what that was bought with."""

    rows: Mapping[str, str]
    """Site or kind → one character per step, ``1`` computes and ``0`` predicts."""
    how: str
    """The predictor it was solved for."""
    alpha: float
    """No predicted cell was measured to be further off than this (relative L1)."""
    share: float
    """Share of computed cells."""


def solve(
    curves: ErrorCurves,
    *,
    alpha: float | None = None,
    target_share: float | None = None,
    how: str | None = None,
    by: By = "kind",
) -> Schedule:
    """The schedule of a threshold ``alpha``, or of the smallest threshold that computes at most ``target_share``.

    ``how`` is the predictor; by default the one that gets away with fewer computed cells, or the smaller threshold.

    Raises:
        AccelError: unless exactly one goal is given, and for a share that the curves' lookahead does not allow.
    """
    if by not in ("kind", "site"):
        raise AccelError(f"a schedule has rows by kind or by site, not by {by!r}")
    problems = [_Problem(curves, each, by) for each in (curves.predictors if how is None else [how])]
    if alpha is not None and target_share is None:
        found = [problem.at(_checked(alpha)) for problem in problems]
    elif target_share is not None and alpha is None:
        found = _reached(problems, target_share)
    else:
        raise AccelError("a schedule needs one goal: alpha (largest error) or target_share (of computed cells)")
    return min(found, key=lambda schedule: (schedule.alpha, schedule.share))


def _checked(alpha: float) -> float:
    if not 0 <= alpha < math.inf:
        raise AccelError(f"alpha is a relative error of at least 0, not {alpha!r}")
    return alpha


def _reached(problems: list[_Problem], share: float) -> list[Schedule]:
    if not 0 < share <= 1:
        raise AccelError(f"target_share is a share of computed cells above 0 and up to 1, not {share!r}")
    if found := [schedule for problem in problems if (schedule := problem.reach(share))]:
        return found
    least = min(problem.at(problem.alphas[-1]).share for problem in problems)
    raise AccelError(
        f"target_share {share:g} cannot be reached: what was measured allows {least:.3g} at least; calibrate with a "
        "longer lookahead"
    )


def bounds(curve: Curve, steps: int, lookahead: int) -> Bounds:
    """How far off a prediction may be, whichever of the measured pasts it has; infinite where none was measured.

    Errors that shrink again with a longer lag are noise of the measurement. Counting the worst so far makes the scan
    below find the fewest computed steps, and a larger threshold never compute more.
    """
    table: Bounds = []
    for step in range(steps):
        at_step: list[float] = []
        for ahead in range(1, lookahead + 1):
            found = [errors[step] for lags, errors in curve.items() if lags[0] == ahead]
            worst = max((error for error in found if error is not None), default=math.inf)
            at_step.append(max([worst, *at_step[-1:]]))
        table.append(at_step)
    return table


def scan(limits: Bounds, alpha: float) -> str:
    """Cells of the longest skips whose every step is within ``alpha``; the first and the last step are computed."""
    cells, ahead = "1", 0
    for limit in limits[1:-1]:
        ahead += 1
        if ahead <= len(limit) and limit[ahead - 1] <= alpha:
            cells += "0"
        else:
            cells, ahead = cells + "1", 0
    return (cells + "1")[: len(limits)]


class _Problem:
    """The curves under one predictor, ready to be scanned at any threshold."""

    def __init__(self, curves: ErrorCurves, how: str, by: By):
        names = dict.fromkeys(curves.kinds.values()) if by == "kind" else curves.kinds
        self.how = how
        self.limits = {name: bounds(curves.of(name, how), curves.steps, curves.lookahead) for name in names}
        self.sites = {name: len(curves.members(name)) for name in names}
        self.cells = curves.steps * sum(self.sites.values())
        measured = {error for limits in self.limits.values() for at_step in limits for error in at_step}
        self.alphas = sorted({0.0, *filter(math.isfinite, measured)})
        """The thresholds at which anything changes."""

    def at(self, alpha: float) -> Schedule:
        rows = {name: scan(limits, alpha) for name, limits in self.limits.items()}
        computed = sum(self.sites[name] * row.count("1") for name, row in rows.items())
        return Schedule(rows, self.how, alpha, computed / self.cells)

    def reach(self, share: float) -> Schedule | None:
        """Of the smallest threshold that computes at most this share of all cells, by bisection."""
        index = bisect_left(self.alphas, True, key=lambda alpha: self.at(alpha).share <= share)
        return self.at(self.alphas[index]) if index < len(self.alphas) else None
