"""Ridge regression of what prompts need on what they look like; how much to shrink is decided by unseen groups.

With features z, standardised on the prompts at hand, and centred needs y:

    w = argmin |Z w - y|² + λ n |w|²  =  V (S² + λ n)^-1 S U' y          Z = U S V'

λ = ∞ (w = 0, every prompt is expected to need the same) is one of the candidates, so that features which tell nothing
are not used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
Index = NDArray[np.integer]
Mask = NDArray[np.bool_]

RIDGES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, math.inf)
"""Candidates for λ in units of one standardised feature's mean square."""

_PARTS = 5


@dataclass(frozen=True)
class Linear:
    """``bias + weights · (x - mean) / scale``."""

    mean: Array
    scale: Array
    weights: Array
    bias: float
    ridge: float

    def __call__(self, features: Array) -> Array:
        """``(rows, features)`` to ``(rows,)``."""
        return np.asarray(self.bias + (features - self.mean) / self.scale @ self.weights)


def fit(features: Array, needs: Array, groups: Sequence[str], ridges: Sequence[float] = RIDGES) -> Linear:
    """Fit ``needs (rows,)`` with the λ that does best on groups that are left out."""
    folds = split(groups, min(_PARTS, len(set(groups))))
    errors = np.zeros(len(ridges))
    for fold in np.unique(folds) if len(ridges) > 1 and len(set(groups)) > 1 else ():
        out = folds == fold
        for index, solved in enumerate(_path(features[~out], needs[~out], ridges)):
            errors[index] += np.square(solved(features[out]) - needs[out]).sum()
    return _path(features, needs, ridges)[int(errors.argmin())]


def split(groups: Sequence[str], parts: int, seed: int = 0) -> Index:
    """The part, 0 to ``parts`` - 1, of each row; groups stay whole, and are dealt out the same each time."""
    names = sorted(set(groups))
    order = np.random.default_rng(seed).permutation(len(names))
    part = {names[position]: number % parts for number, position in enumerate(order)}
    return np.array([part[group] for group in groups])


def _path(features: Array, needs: Array, ridges: Sequence[float]) -> list[Linear]:
    """The solutions for all candidates from one decomposition."""
    x = np.asarray(features, dtype=np.float64)
    mean, scale = x.mean(0), x.std(0)
    scale = np.where(scale > 1e-6 * (np.abs(mean) + 1e-12), scale, np.inf)  # a feature that never changes says nothing
    u, s, vt = np.linalg.svd((x - mean) / scale, full_matrices=False)
    bias = float(needs.mean())
    along = u.T @ (needs - bias)
    return [Linear(mean, scale, vt.T @ (s / (s**2 + ridge * len(x)) * along), bias, ridge) for ridge in ridges]
