"""Is the predictor worth having? Judged on prompts it has not seen, at equal shares of good pictures.

Prompts are dealt to six parts by what they are made of. Each part in turn is the test, the next two calibrate, the
other three are fitted to; no two parts share a prompt, a composition or a starting noise. A way to choose step counts
is a curve of mean steps against good pictures, and all are read at the same share: 80, 90 and 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from accel.errors import AccelError
from accel.fingerprint import Fingerprint
from accel.measure.intervals import Interval, Rows, mean, resampled
from accel.schedulers.difficulty import frontier
from accel.schedulers.difficulty.curves import Curves, Goal, log_needed, needed
from accel.schedulers.difficulty.evaluation import HEADLINE, TARGETS, Evaluation, Verdict, percent
from accel.schedulers.difficulty.frontier import Way
from accel.schedulers.difficulty.model import DifficultyModel, choose
from accel.schedulers.difficulty.ridge import RIDGES, Array, Index, Mask, split
from accel.schedulers.difficulty.training import check_goal, trained

PARTS, _CALIBRATING = 6, 2
WORTH_TRYING = 0.3
"""Intraclass correlation below which a prompt says too little about its pictures."""

_OUTSIDE = 0.05
"""A gain is given where it is known in all but this share of the resamples."""

_CONSTANT, _MIXTURE, _PREDICTOR = "constant", "two constants mixed", "predictor"
_NOBODY = Fingerprint("", "", "", 0, {}, {})


def evaluate(curves: Curves, goal: Goal | str = "30 dB", resamples: int = 1000) -> Evaluation:
    """Hold the predictor against constants, on prompts that it was not trained on.

    Args:
        curves: What was collected.
        goal: When a picture counts as good.
        resamples: Of the prompts, for the intervals.

    Raises:
        AccelError: for fewer groups of prompts than there are parts, or a goal that leaves nothing to decide.
    """
    goal = goal if isinstance(goal, Goal) else Goal(goal)
    good = curves.success(goal)
    check_goal(good, goal, curves.counts)
    if len(set(curves.groups)) < 2 * PARTS:
        raise AccelError(f"{len(set(curves.groups))} kinds of prompts are too few to judge by: give {2 * PARTS}")
    parts = split(curves.groups, PARTS)
    models = [_model(curves, goal, good, parts, part) for part in range(PARTS)]
    difficulty = np.empty(len(good))
    for part, model in enumerate(models):
        difficulty[parts == part] = model.difficulty(curves.features[parts == part])
    ways = _ways(curves, good, difficulty, _by_length(curves, good, parts))
    found = {name: _needs(way, name, resamples) for name, way in ways.items()}
    gains = {target: _gain(ways[_PREDICTOR], ways[_MIXTURE], target, resamples) for target in TARGETS}
    index = needed(good)
    correlation = intraclass(log_needed(index, curves.counts), resamples)
    return Evaluation(
        goal=goal.text,
        correlation=correlation,
        needs=found,
        gains=gains,
        deployed={target: _deployed(curves, good, parts, models, target) for target in TARGETS},
        rank=_rank(difficulty, log_needed(index, curves.counts).mean(1)),
        by_count=dict(zip(curves.counts, good.mean((0, 1)).tolist(), strict=True)),
        prompts=len(good),
        seeds=good.shape[1],
        verdict=_verdict(correlation, gains[HEADLINE]),
    )


def intraclass(values: Array, resamples: int = 1000) -> Interval:
    """Share of the variance of ``values (P, S)`` that lies between rows, with its interval over rows.

    ``(B - W) / (B + (S - 1) W)`` with the mean squares between (B) and within (W) rows: about 0 where rows are alike.
    """

    def statistic(rows: Rows) -> float:
        x = values[rows]
        seeds, means = x.shape[1], x.mean(1)
        between = seeds * np.square(means - means.mean()).sum() / (len(x) - 1)
        within = np.square(x - means[:, None]).sum() / (len(x) * (seeds - 1))
        total = between + (seeds - 1) * within
        return float((between - within) / total) if total > 0 else 0.0

    return resampled(statistic, len(values), resamples=resamples)


def _model(curves: Curves, goal: Goal, good: Mask, parts: Index, part: int) -> DifficultyModel:
    """Trained without the prompts of ``part``."""
    calibrating = np.isin(parts, [(part + 1 + number) % PARTS for number in range(_CALIBRATING)])
    kept = parts != part
    linear, scores = trained(
        curves.features[kept].astype(np.float64),
        good[kept],
        [group for group, keep in zip(curves.groups, kept, strict=True) if keep],
        curves.counts,
        calibrating[kept],
    )
    return DifficultyModel(linear, scores, curves.counts, goal, _NOBODY)


def _by_length(curves: Curves, good: Mask, parts: Index) -> Array:
    """The heuristic: a straight line through the number of words, fitted to the same prompts as the predictor."""
    words = np.array([[len(prompt.split())] for prompt in curves.prompts], dtype=np.float64)
    found = np.empty(len(good))
    for part in range(PARTS):
        kept = parts != part
        groups = [group for group, keep in zip(curves.groups, kept, strict=True) if keep]
        linear, _ = trained(words[kept], good[kept], groups, curves.counts, np.zeros(kept.sum(), bool), RIDGES[:1])
        found[~kept] = linear(words[~kept])
    return found


def _ways(curves: Curves, good: Mask, difficulty: Array, by_length: Array) -> dict[str, Way]:
    counts = curves.counts
    first, second = frontier.halves(good)
    name = "oracle of prompts, by other pictures"
    ways = [
        frontier.constant(good, counts, _CONSTANT),
        frontier.constant(good, counts, _MIXTURE),
        frontier.expected(by_length, good, counts, "prompt length"),
        frontier.shuffled(difficulty, good, counts),
        frontier.expected(difficulty, good, counts, _PREDICTOR),
        frontier.joined(frontier.oracle(first, counts, name, second), frontier.oracle(second, counts, name, first)),
        frontier.oracle(good, counts, "oracle of prompts"),
        frontier.oracle_of_pictures(good, counts, "oracle of pictures"),
    ]
    return {way.name: way for way in ways}


def _needs(way: Way, name: str, resamples: int) -> dict[float, Interval]:
    mixed = name != _CONSTANT
    return {
        target: resampled(lambda rows, t=target: way.needs(t, rows, mixed), len(way.steps), resamples=resamples)
        for target in TARGETS
    }


def _gain(way: Way, other: Way, target: float, resamples: int) -> Interval:
    """``nan`` where too many resamples have no answer: an interval over the others would be that of lucky prompts."""
    unknown: list[float] = []

    def statistic(rows: Rows) -> float:
        found = 1 - way.needs(target, rows) / other.needs(target, rows)
        if math.isnan(found):
            unknown.append(found)
        return found

    interval = resampled(statistic, len(way.steps), resamples=resamples)
    return interval if len(unknown) <= _OUTSIDE * resamples else Interval(math.nan, math.nan, math.nan)


def _deployed(
    curves: Curves, good: Mask, parts: Index, models: Sequence[DifficultyModel], target: float
) -> dict[str, Interval]:
    """What users get who only know the calibration prompts, on the test prompts of every part."""
    index = {name: np.empty(len(good), dtype=int) for name in ("predictor", "constant")}
    for part, model in enumerate(models):
        test, others = parts == part, parts != part
        reach = model.difficulty(curves.features[test]) + model.offset(target)
        index["predictor"][test] = choose(reach, curves.counts)
        enough = good[others].mean((0, 1)) >= target
        index["constant"][test] = int(enough.argmax()) if enough.any() else len(enough) - 1
    found = {}
    for name, chosen in index.items():
        right = np.take_along_axis(good.mean(1), chosen[:, None], axis=1)[:, 0]
        found[f"{name}, good"] = mean(right.tolist())
        found[f"{name}, steps"] = mean(np.asarray(curves.counts, float)[chosen].tolist())
    return found


def _rank(a: Array, b: Array) -> float:
    """Spearman's correlation; 0 where one of them does not vary."""
    ranks = [np.argsort(np.argsort(values)).astype(float) for values in (a, b)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1]) if np.ptp(a) > 0 and np.ptp(b) > 0 else 0.0


def _verdict(correlation: Interval, gain: Interval) -> Verdict:
    if math.isnan(gain.value):
        return Verdict(False, f"no constant surely makes {HEADLINE:.0%} of the pictures good: nothing to compare with")
    told = f"{percent(gain)} fewer steps at {HEADLINE:.0%}"
    if gain.low > 0:
        return Verdict(True, told)
    if correlation.value < WORTH_TRYING:
        return Verdict(False, f"needs are the noise's more than the prompt's (correlation {correlation}); {told}")
    return Verdict(False, f"{told}, which may be nothing")
