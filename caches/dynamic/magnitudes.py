"""MagCache (arXiv:2506.09045): how far a residual drifts, measured once, tells at which steps it can be predicted.

With r_t the residual of a stretch at step t, γ_t = |r_t| / |r_{t-1}| hardly depends on the prompt. A residual that is
reused from step c until t is wrong by about |1 - γ_{c+1} · … · γ_t|. Those errors are summed, and a step is predicted
while the sum is below a threshold; computing it begins a new sum. What is predicted is known before the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Ratios = tuple[float, ...]
"""γ of each step of a run; that of the first is 1."""


def cells(ratios: Ratios, threshold: float, most: int, warm_up: int, end: int) -> str:
    """The steps of a run as ``1`` (compute) and ``0`` (predict); the first ``warm_up`` and last ``end`` compute."""
    found, product, error, streak = "", 1.0, 0.0, 0
    for step, ratio in enumerate(ratios):
        product *= ratio
        error += abs(1 - product)
        free = warm_up <= step < len(ratios) - end
        if free and streak < most and error < threshold:
            found, streak = found + "0", streak + 1
        else:
            found, product, error, streak = found + "1", 1.0, 0.0, 0
    return found


def resampled(ratios: Ratios, steps: int) -> Ratios:
    """The ratios of a run of ``steps`` steps: log |r| of the measured run, read off at as many places.

    Fewer steps are further apart, so that each spans the product of several ratios.
    """
    if steps == len(ratios):
        return ratios
    logs = [0.0]
    for ratio in ratios[1:]:
        logs.append(logs[-1] + math.log(ratio))
    at = [_between(logs, i * (len(logs) - 1) / max(steps - 1, 1)) for i in range(steps)]
    return (1.0, *(math.exp(now - before) for before, now in zip(at, at[1:], strict=False)))


def _between(values: Sequence[float], place: float) -> float:
    """``values`` at a place between two of them, on the straight line."""
    below = min(int(place), len(values) - 2) if len(values) > 1 else 0
    above = min(below + 1, len(values) - 1)
    return values[below] + (place - below) * (values[above] - values[below])
