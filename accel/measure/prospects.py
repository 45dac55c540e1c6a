"""What a combination can keep at most: no more than the least of its parts, each measured alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accel.measure.arms import Arm
from accel.measure.intervals import Interval
from accel.technique import Technique

_UNBOUNDED = Interval(float("inf"), float("inf"), float("inf"))


class Prospects:
    """Margins of parts, and the bound on arms that they give.

    An arm is its step count and its techniques. Fewer steps, or one more technique, take away from a picture's
    quality what they do alone or more. A schedule of its own may be better than as many plain steps, so these bound no
    arm that has one; where another technique makes pictures better its bound is too low.

    Args:
        measured: Arm to its mean margin: plain ones, and ones of a single technique.
    """

    def __init__(self, measured: Mapping[Arm, Interval]) -> None:
        self._plain: dict[str, dict[int, Interval]] = {}
        self._alone: dict[tuple[str, Technique], Interval] = {}
        for arm, margin in measured.items():
            techniques = arm.plan.techniques if arm.plan else ()
            if not techniques:
                self._plain.setdefault(arm.solver, {})[arm.steps] = margin
            elif len(techniques) == 1:
                self._alone[arm.solver, techniques[0]] = margin

    def most(self, arm: Arm) -> Interval:
        """The margin that ``arm`` can have at most, that of its worst part; unbounded where none is known."""
        techniques = arm.plan.techniques if arm.plan else ()
        enough = [steps for steps in self._plain.get(arm.solver, ()) if steps >= arm.steps]
        respaced = any("schedule" in each.claims for each in techniques)
        parts = [self._plain[arm.solver][min(enough)]] if enough and not respaced else []
        parts += [self._alone[arm.solver, each] for each in techniques if (arm.solver, each) in self._alone]
        return min(parts, default=_UNBOUNDED, key=lambda margin: margin.value)


def alone(candidates: Sequence[Arm]) -> list[Arm]:
    """Those of a single technique, each with its most steps and with every solver."""
    most: dict[tuple[str, Technique], Arm] = {}
    for arm in candidates:
        if arm.plan and len(arm.plan.techniques) == 1:
            key = arm.solver, arm.plan.techniques[0]
            most[key] = max(most.get(key, arm), arm, key=lambda each: each.steps)
    return list(most.values())
