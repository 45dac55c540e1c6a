"""Bootstrap intervals: how much would the number move with other prompts, or in other rounds?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000

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
    known = np.asarray(values, dtype=float)
    return resampled(lambda rows: float(known[rows].mean()), len(known), seed=seed)


def median(values: Sequence[float], seed: int = 0) -> Interval:
    """Median of ``values``."""
    known = np.asarray(values, dtype=float)
    return resampled(lambda rows: float(np.median(known[rows])), len(known), seed=seed)


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
    values = np.sort([statistic(*(draw.integers(0, n, n) for n in counts)) for _ in range(resamples)])
    known = values[~np.isnan(values)]
    if not len(known):
        return Interval(math.nan, math.nan, math.nan)
    low, high = known[int(0.025 * len(known))], known[int(0.975 * len(known))]
    return Interval(statistic(*map(np.arange, counts)), float(low), float(high))
