"""Fitting and calibrating a predictor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from accel.errors import AccelError
from accel.fingerprint import Fingerprint
from accel.schedulers.difficulty.curves import Curves, Goal, log_counts, log_needed, needed
from accel.schedulers.difficulty.model import DifficultyModel
from accel.schedulers.difficulty.ridge import RIDGES, Array, Index, Linear, Mask, fit, split

CALIBRATION = 3
"""One prompt in this many calibrates."""


def train(curves: Curves, goal: Goal | str = "30 dB") -> DifficultyModel:
    """Fit to two thirds of the prompts, calibrate on the others.

    Raises:
        AccelError: for a goal that every picture or none reaches at every count, or too few prompts.
    """
    goal = goal if isinstance(goal, Goal) else Goal(goal)
    good = curves.success(goal)
    check_goal(good, goal, curves.counts)
    calibration = split(curves.groups, CALIBRATION) == 0
    if calibration.all() or (~calibration).sum() < 2:
        raise AccelError(f"{len(curves.prompts)} prompts are too few to train on some and calibrate on others")
    linear, seen = trained(curves.features.astype(np.float64), good, curves.groups, curves.counts, calibration)
    about = {
        "prompts": len(curves.prompts),
        "calibration": int(calibration.sum()),
        "seeds": int(good.shape[1]),
        "solver": curves.about["solver"],
        "reference": curves.about["reference"],
        "dtype": curves.about["dtype"],
        "machine": curves.about["machine"],
    }
    return DifficultyModel(
        linear,
        seen,
        curves.counts,
        goal,
        Fingerprint.from_dict(curves.about["fingerprint"]),
        curves.about["weights"],
        curves.about["call"],
        about,
    )


def trained(
    features: Array,
    good: Mask,
    groups: Sequence[str],
    counts: Sequence[int],
    calibration: Mask,
    ridges: Sequence[float] = RIDGES,
) -> tuple[Linear, Array]:
    """g(x), fitted to the prompts outside of ``calibration`` (a mask), and the scores of those inside.

    Args:
        features: ``(P, F)``.
        good: ``(P, S, N)``, see `Curves.success`.
        groups: One for each prompt.
        counts: N.
        calibration: ``(P,)``.
        ridges: Candidates, see `accel.schedulers.difficulty.ridge`.
    """
    index = needed(good)
    y = log_needed(index, counts).mean(1)
    fitted_to = [group for group, held in zip(groups, calibration, strict=True) if not held]
    linear = fit(features[~calibration], y[~calibration], fitted_to, ridges)
    return linear, scores(linear(features[calibration]), index[calibration], counts)


def scores(expected: Array, index: Index, counts: Sequence[int]) -> Array:
    """How far beyond the expectation ``(P,)`` each picture goes, by the ``index (P, S)`` of the count that it needs."""
    before = np.array([-math.inf, *log_counts(counts)[:-1], math.inf])
    return np.asarray(before[index] - expected[:, None])


def check_goal(good: Mask, goal: Goal, counts: Sequence[int]) -> None:
    """Raise `AccelError` for a goal that leaves nothing to decide."""
    if good[..., 0].all():
        raise AccelError(f"every picture reaches {goal.text} with {counts[0]} steps: ask for more, or try fewer steps")
    if not good.any():
        raise AccelError(f"no picture reaches {goal.text} with {counts[-1]} steps: ask for less, or try more steps")
