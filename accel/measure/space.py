"""What `accel.tune` may try: every technique that fits a pipeline, with its choices, alone and in pairs."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from typing import Any

from accel import registry
from accel.errors import AccelWarning
from accel.handle import check
from accel.measure.arms import Arm
from accel.plan import Plan
from accel.technique import Technique

_SHARES = (1.0, 0.8, 0.6)
"""A plan is also tried with fewer steps: the two ways to save combine."""


def plans(pipe: Any) -> list[Plan]:
    """Plans of one or two techniques that ``pipe`` accepts, simpler first; schedules stand alone, see `respaced`."""
    alone = [technique for name in registry.names() for technique in _settings(registry.find(name))]
    inside = [technique for technique in alone if "schedule" not in technique.claims]
    pairs = [pair for pair in itertools.combinations(inside, 2) if not pair[0].claims & pair[1].claims]
    both = [Plan((first, second)) for first, second in pairs if first.name != second.name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccelWarning)
        fitting = {technique for technique in alone if not check(pipe, technique)}
        return [
            *(Plan((technique,)) for technique in alone if technique in fitting),
            *(plan for plan in both if fitting.issuperset(plan.techniques) and not check(pipe, plan)),
        ]


def candidates(found: Sequence[Plan], steps: int, solvers: Sequence[str]) -> list[Arm]:
    """The plans at several step counts, with every solver."""
    counts = sorted({max(2, round(share * steps)) for share in _SHARES}, reverse=True)
    return [Arm(count, solver, plan) for solver in solvers for plan in found for count in counts]


def respaced(pipe: Any, arm: Arm) -> list[Arm]:
    """``arm`` with every spacing of its steps that its solver takes, where its plan leaves the schedule alone."""
    if arm.plan is None or any("schedule" in technique.claims for technique in arm.plan.techniques):
        return []
    wider = [Plan((*arm.plan.techniques, spacing)) for spacing in _settings(registry.find("steps"))]
    with Arm(arm.steps, arm.solver).ready(pipe), warnings.catch_warnings():
        warnings.simplefilter("ignore", AccelWarning)
        return [Arm(arm.steps, arm.solver, plan) for plan in wider if not check(pipe, plan)]


def _settings(kind: type[Technique]) -> list[Technique]:
    names = list(kind.choices)
    if not names:
        return []
    return [kind(**dict(zip(names, values, strict=True))) for values in itertools.product(*kind.choices.values())]
