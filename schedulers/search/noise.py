"""Starting noises: drawn, moved a little, and noise added to what is half finished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from accel.schedulers.levels import is_variance_exploding, level

_STRIDE = 1_000_003
"""Keeps the random numbers of a search's own moves apart from those of starting noises."""


def fresh(like: Tensor, seed: int, move: int) -> Tensor:
    """Normal noise for move number ``move`` of a search, the same on every device."""
    generator = torch.Generator().manual_seed(seed + _STRIDE * (move + 1))
    return torch.randn(like.shape, generator=generator).to(like.device, like.dtype)


def neighbour(pivot: Tensor, distance: float, noise: Tensor) -> Tensor:
    """``(pivot + distance · noise) / sqrt(1 + distance²)``: near the pivot, and still of unit variance."""
    return (pivot + distance * noise) / (1 + distance**2) ** 0.5


def renoised(scheduler: Any, samples: Tensor, time: float, earlier: float, noise: Tensor) -> Tensor:
    """Samples of timestep ``time`` taken back to the ``earlier`` one, as the forward process would.

    With ``x = s · x0 + n · ε`` at both: ``x' = (s' / s) · x + sqrt(n'² - (s' / s)² n²) · noise``.
    """
    signal, spread = level(scheduler, time)
    before, wider = level(scheduler, earlier)
    exploding = is_variance_exploding(scheduler)  # such a solver's samples are x / s
    ratio = before / signal
    added = max(wider**2 - (ratio * spread) ** 2, 0.0) ** 0.5
    if exploding:
        return samples + added / before * noise
    return ratio * samples + added * noise


def together(noises: Sequence[Tensor]) -> Tensor:
    """Rows ``(1, …)`` as one batch."""
    return torch.cat(list(noises))
