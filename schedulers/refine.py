"""A schedule refined by what it is for: the final sample of the short run, held against that of the long one.

A schedule of n steps is its gaps, from its first timestep down to the end. They are bent smoothly, by few numbers a:

    log gap_k  =  log gap⁰_k + Σ_m a_m cos(π m (k + ½) / n),     m = 1 … M, scaled so that they add up to what they did

With r(a) the distance of the final samples over a handful of runs, and J its slopes by the differences of short runs,

    a  ←  a - (JᵀJ + μ diag JᵀJ)⁻¹ Jᵀ r

is Levenberg's and Marquardt's step to the least |r|², taken where it leads down. So few numbers learn nothing by heart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

Missed = Callable[[Sequence[float]], Array]
"""What a run on these timesteps misses: one number for each value of its final samples."""

MODES = 4
"""How many numbers bend a schedule, at most."""

_APART = 0.1
"""Between two bends whose difference is a slope: less drowns where timesteps are rounded."""
_ROUNDS, _TRIES = 3, 3
_DAMPING, _FACTOR = 0.01, 10.0


def refined(missed: Missed, start: Sequence[float], rounds: int = _ROUNDS) -> tuple[float, ...]:
    """Timesteps near ``start`` with which less is missed; ``start`` itself where nothing is gained.

    Takes up to ``rounds · (MODES + 3)`` runs.
    """
    bends, damping = np.zeros(min(MODES, len(start) - 1)), _DAMPING
    now = missed(start)
    for _ in range(rounds if len(bends) else 0):
        moved = bends + _APART * np.eye(len(bends))
        slopes = np.stack([(missed(bent(start, each)) - now) / _APART for each in moved], axis=1)
        gram, pull = slopes.T @ slopes, slopes.T @ now
        for _ in range(_TRIES):
            trial = bends - np.linalg.solve(gram + damping * np.diag(gram.diagonal() + 1e-12), pull)
            found = missed(bent(start, trial))
            if found @ found < now @ now:
                bends, now, damping = trial, found, damping / _FACTOR
                break
            damping *= _FACTOR
        else:
            break
    return bent(start, bends) if bends.any() else tuple(start)


def bent(times: Sequence[float], bends: Array) -> tuple[float, ...]:
    """The schedule bent by these numbers: it begins where it did, and no two timesteps come closer than 1."""
    count, modes = len(times), np.arange(1, len(bends) + 1)
    gaps = -np.diff([*times, -1.0])  # the last step leads below the smallest timestep, which is 0
    wave = np.cos(np.pi * np.outer(np.arange(count) + 0.5, modes) / count)
    gaps *= np.exp(wave @ bends)
    gaps = np.maximum(gaps * (times[0] + 1) / gaps.sum(), 1.0)
    falling = times[0] - np.concatenate([[0.0], gaps[:-1].cumsum()])
    return tuple(np.maximum(falling, np.arange(count)[::-1]).tolist())
