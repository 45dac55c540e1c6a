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
    """Plans of one or two techniques that ``pipe`` accepts, simpler ones first."""
    alone = [technique for name in registry.names() for technique in _settings(registry.find(name))]
    pairs = [pair for pair in itertools.combinations(alone, 2) if not pair[0].claims & pair[1].claims]
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


def _settings(kind: type[Technique]) -> list[Technique]:
    names = list(kind.choices)
    if not names:
        return []
    return [kind(**dict(zip(names, values, strict=True))) for values in itertools.product(*kind.choices.values())]
