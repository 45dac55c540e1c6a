"""Which half of a guided batch is the conditional one?

Pipelines disagree: most put it last, Lumina, DiT and Stable Cascade put it first. What a pipeline makes of both halves
shows it, whatever its names: guidance is ``w * cond + (1 - w) * uncond`` with ``w`` of 1 and more, so that the
conditional half has the larger part in what the solver is given, also where that is rescaled or negated.
"""

from __future__ import annotations

from typing import Any

import torch

_EXPLAINED = 0.5
"""Smallest share of the solver's input that a mixture of the halves must account for."""
_FELT = 1e-6
"""Smallest share that their difference must have in it: guidance by twice the same half tells nothing."""


def conditional_first(output: torch.Tensor, guided: Any) -> bool | None:
    """Does the first half of ``output`` (2n rows) weigh more in ``guided`` (n rows), the solver's model output?

    Looks at the first picture only. Channels that the solver is not given (a learned variance) are left out. ``None``
    where it cannot be told: other shapes, halves that are alike, or something that is no mixture of them.
    """
    if not isinstance(guided, torch.Tensor) or guided.ndim < 2 or output.ndim != guided.ndim:
        return None
    if len(output) != 2 * len(guided) or output.shape[2:] != guided.shape[2:] or output.shape[1] < guided.shape[1]:
        return None
    first, second, target = (_flat(t, guided.shape[1]) for t in (output[0], output[len(guided)], guided[0]))
    middle, difference = (first + second) / 2, second - first
    if not (size := middle.dot(middle)):
        return None
    turned = difference - middle * (difference.dot(middle) / size)  # the part of it that the middle has not
    weight = target.dot(turned) / turned.dot(turned)
    level = (target - weight * difference).dot(middle) / size
    rest = target - level * middle - weight * difference
    shares = [float(t.dot(t) / target.dot(target)) for t in (rest, weight * turned)]
    if not (shares[0] < 1 - _EXPLAINED and shares[1] > _FELT):  # also when one of them is not a number
        return None
    return bool(level * weight < 0)


def _flat(row: torch.Tensor, channels: int) -> torch.Tensor:
    return row[:channels].detach().to("cpu", torch.float64).flatten()  # once a run: exact matters more than quick
