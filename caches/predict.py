"""How to guess a value from the last computed ones: always a weighted sum of them.

    y(t) = w1 y1 + w2 y2 + …        y1 the newest, computed at time t1

    zero       no terms
    reuse      1
    linear     the straight line through y2 and y1, at t
    quadratic  the parabola through y3, y2 and y1, at t
    fitted     weights that were fitted for this step, see `accel.caches.fitting`

Polynomials run along an *axis*: the solver's timestep (``time``), its noise level (``sigma``) or ``logsnr``, which is
-2 ln sigma where sigma is noise over signal. Reusing costs as much quality as taking fewer steps saves
time; extrapolating the same cells does not (see docs/caching.md for the measurement).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Literal, get_args

import torch

from accel.errors import AccelError
from accel.tensors import Tree, map_tensors

ORDER = {"zero": 0, "reuse": 1, "linear": 2, "quadratic": 3}
"""Predictor → how many computed values it looks at; ``fitted`` looks at as many as it has weights."""

Axis = Literal["time", "sigma", "logsnr"]

Sample = tuple[int, Tree]
"""A computed value and the step it was computed at."""

Weights = tuple[float, ...]
"""Of the computed values, the newest first."""


def check_how(how: str, axis: str = "time", without: Sequence[str] = ()) -> None:
    """Raise `AccelError` for a predictor that does not exist or is one of ``without``, and for an unknown axis."""
    offered = [name for name in (*ORDER, "fitted") if name not in without]
    if how not in offered:
        raise AccelError(f"no predictor here is called {how!r}: there are {', '.join(offered)}")
    if axis not in get_args(Axis):
        raise AccelError(f"predictors run along {', '.join(get_args(Axis))}, not {axis!r}")


def predict(weights: Weights, past: Sequence[Sample]) -> Tree:
    """The weighted sum of the last values in ``past`` (oldest first, at least as many as there are weights).

    The result never shares memory with ``past``: models may write into what they are given.
    """
    _, newest = past[-1]
    total = map_tensors(_scaled(weights[0] if weights else 0.0), newest)
    for weight, (_, value) in zip(weights[1:], reversed(past[:-1]), strict=False):
        total = map_tensors(lambda y, v, w=weight: y.add_(v, alpha=w) if _counts(y) else y, total, value)
    return total


def lagrange(times: Sequence[float], time: float) -> Weights:
    """Weights of the polynomial through the values at ``times`` (oldest first), at ``time``; newest first.

    w_i = prod over j ≠ i of (t - t_j) / (t_i - t_j). A time that occurs twice (second-order solvers visit one again)
    counts once, with its newest value.
    """
    newest_first = list(reversed(times))
    distinct = list(dict.fromkeys(newest_first))
    weight = {a: prod((time - b) / (a - b) for b in distinct if b != a) for a in distinct}
    return tuple(weight.pop(t, 0.0) for t in newest_first)


def _scaled(weight: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda y: y.clone() if weight == 1.0 or not _counts(y) else y * weight


def _counts(tensor: torch.Tensor) -> bool:
    """Masks and indices are handed on as they are."""
    return tensor.dtype.is_floating_point
