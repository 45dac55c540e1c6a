"""Spacings: where between the largest and the smallest noise level the steps of a schedule lie.

With σ = noise / signal, of n steps the i-th, counted from 0, begins at

    karras       σ_i = (σ_max^(1/7) + i / (n - 1) · (σ_min^(1/7) - σ_max^(1/7)))^7     (arXiv:2206.00364)
    exponential  log σ_i = log σ_max + i / (n - 1) · (log σ_min - log σ_max)           (arXiv:2206.00927)
    ays_…        log σ_i read off a table at i / n of its length                       (arXiv:2404.14507)

The tables of "Align Your Steps" were optimised for one model each. diffusers ships them without their last entry, which
is the smallest noise level of that model.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from diffusers.schedulers import AysSchedules
from numpy.typing import NDArray

from accel.schedulers.levels import is_flow, noise_range, time_of, unreadable

Array = NDArray[np.float64]

_TABLES = {
    "ays_sd15": "StableDiffusionSigmas",
    "ays_sdxl": "StableDiffusionXLSigmas",
    "ays_svd": "StableDiffusionVideoSigmas",
}
_RHO = 7.0
_ALIKE = 0.05
"""How far a model's largest noise level may be from that of a table, relatively."""

SPACINGS = ("karras", "exponential", *_TABLES)


def unfit(scheduler: Any, spacing: str) -> str | None:
    """Why ``spacing`` is not for the model of ``scheduler``; ``None`` when it is."""
    if is_flow(scheduler):
        return f"{spacing} is for models with a table of noise levels; flow matching has a shift of its own"
    if reason := unreadable(scheduler):
        return reason
    largest, _ = noise_range(scheduler)
    if not math.isfinite(largest):
        return f"{spacing} needs a largest noise level, and this model begins without any signal"
    if spacing in _TABLES and not abs(largest / (first := _table(spacing)[0]) - 1) <= _ALIKE:
        return f"the table {spacing} begins at noise level {first:g}, this model at {largest:.4g}: it is another's"
    return None


def spaced(scheduler: Any, spacing: str, steps: int) -> tuple[float, ...]:
    """The timesteps of ``steps`` steps, falling; `unfit` must allow it."""
    largest, smallest = noise_range(scheduler)
    inner = np.arange(steps) / max(steps - 1, 1)
    if spacing == "karras":
        high, low = largest ** (1 / _RHO), smallest ** (1 / _RHO)
        sigmas = (high + inner * (low - high)) ** _RHO
    elif spacing == "exponential":
        sigmas = _along([largest, smallest], inner)
    else:
        sigmas = _along([*_table(spacing), smallest], np.arange(steps) / steps)
    return tuple(time_of(scheduler, float(sigma)) for sigma in sigmas)


def _along(table: list[float], places: Array) -> Array:
    """Noise levels at these shares of a table's length, between its entries by their logarithms."""
    return np.exp(np.interp(places, np.linspace(0, 1, len(table)), np.log(table)))


def _table(spacing: str) -> list[float]:
    return list(AysSchedules[_TABLES[spacing]][:-1])  # the last is 0, which every schedule ends with
