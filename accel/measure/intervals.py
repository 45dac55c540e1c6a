"""Bootstrap intervals: how much would the number move with other prompts, or in other rounds?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000

_BLOCK = 1_000_000
"""Values that are drawn at once, at most."""

Rows = NDArray[np.integer]


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def mean(values: Sequence[float], seed: int = 0) -> Interval:
    """Mean of ``values``."""
    return _at_once(np.mean, values, seed)


def median(values: Sequence[float], seed: int = 0) -> Interval:
    """Median of ``values``."""
    return _at_once(np.median, values, seed)


def _at_once(statistic: Callable[..., Any], values: Sequence[float], seed: int) -> Interval:
    """`resampled` for a statistic of numpy, with the same draws, many resamples in one call."""
    known, draw = np.asarray(values, dtype=float), np.random.default_rng(seed)
    block = max(1, _BLOCK // len(known))
    sizes = [min(block, RESAMPLES - start) for start in range(0, RESAMPLES, block)]
    rows = (draw.integers(0, len(known), (size, len(known))) for size in sizes)
    found = np.concatenate([statistic(known[each], axis=1) for each in rows])
    return _interval(float(statistic(known)), found)


def resampled(statistic: Callable[..., float], *counts: int, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """A statistic of rows, with its interval over resampled rows.

    Args:
        statistic: Takes one array of row numbers per entry of ``counts``; values that are paired (one
            prompt's picture under two plans) are picked by the same rows.
        counts: How many rows there are, for instance of prompts and of rounds.
        seed: Of the resampling.
        resamples: How often. Resamples for which the statistic is not a number are left out.
    """
    draw = np.random.default_rng(seed)
    found = np.array([statistic(*(draw.integers(0, n, n) for n in counts)) for _ in range(resamples)])
    return _interval(statistic(*map(np.arange, counts)), found)


def _interval(value: float, found: NDArray[np.floating]) -> Interval:
    known = np.sort(found[~np.isnan(found)])
    if not len(known):
        return Interval(math.nan, math.nan, math.nan)
    low, high = known[int(0.025 * len(known))], known[int(0.975 * len(known))]
    return Interval(value, float(low), float(high))
