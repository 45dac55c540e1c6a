"""How to guess a value from the last computed ones.

With y1 the newest value, computed at time t1, and y0 the one before it, at t0:

    zero     y(t) = 0
    reuse    y(t) = y1
    linear   y(t) = y0 + (t - t0) / (t1 - t0) * (y1 - y0)

Time is the solver's timestep. Reusing costs as much quality as taking fewer steps saves time; extrapolating the same
cells does not (see docs/caching.md for the measurement).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from accel.tensors import Tree, map_tensors

ORDER = {"zero": 0, "reuse": 1, "linear": 2}
"""Predictor → how many computed values it looks at."""

Sample = tuple[float, Tree]
"""A computed value and the time it was computed at."""


def predict(how: str, past: Sequence[Sample], time: float) -> Tree:
    """The value at ``time`` from ``past`` (oldest first, at least ``ORDER[how]`` samples).

    The result never shares memory with ``past``: models may write into what they are given.
    """
    if how == "linear":
        (t0, y0), (t1, y1) = past[-2:]
        if t0 != t1:  # second-order solvers visit a time twice
            weight = (time - t0) / (t1 - t0)
            return map_tensors(lambda a, b: torch.lerp(a, b, weight), y0, y1)
    _, newest = past[-1]
    return map_tensors(torch.Tensor.clone, newest)
