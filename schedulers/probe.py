"""Which ways to change a schedule a scheduler really takes: asked of its structure, then tried on a small sample.

A scheduler is handed a schedule of ours and an exact denoiser (`accel.schedulers.gaussian`). It passes where it visits
those timesteps, falling and without one twice, and leaves data of about the right spread.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from accel.schedulers.gaussian import Gaussian, denoise
from accel.schedulers.schedule import edits, rewrite, thinned

_STEPS, _DONE, _LEFT = 12, 5, 3
_SPREAD = 2.0
"""The spread that comes out may differ from that of the data by this factor: so few steps of a solver that adds noise
halve it nearly, while one that loses its place gives infinities or noise."""
_SHAPE = (2, 4, 16, 16)
_DATA = Gaussian(4.0)
"""Of another spread than the noise, so that noise that is left over shows."""


@dataclass(frozen=True)
class Abilities:
    """What a scheduler takes; each entry is ``None``, or the reason why not.

    Attributes:
        count: Another number of steps.
        timesteps: Timesteps of ours from the start.
        tail: Another tail in the middle of a run.
    """

    count: str | None
    timesteps: str | None
    tail: str | None


def abilities(scheduler: Any) -> Abilities:
    """Try the scheduler out, on a copy of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a trial nobody wants to hear
        fresh = _set(scheduler)
        if isinstance(fresh, str):
            return Abilities(fresh, fresh, fresh)
        structure = edits(fresh)
        return Abilities(
            doubles(fresh),
            structure or _tried(_try_schedule, scheduler),
            structure or _tried(_try_tail, scheduler),
        )


def doubles(scheduler: Any) -> str | None:
    """Which timestep the schedule now in ``scheduler`` has twice in a row, so that a step leads nowhere.

    diffusers rounds some spacings to whole timesteps, and at many steps two fall together. Solvers that visit timesteps
    twice on purpose are of a higher order, or keep no table of noise levels.
    """
    if getattr(scheduler, "order", 1) != 1 or not hasattr(scheduler, "sigmas"):
        return None
    times = scheduler.timesteps.flatten().tolist()
    twice = next((t for t, after in zip(times, times[1:], strict=False) if t == after), None)
    return None if twice is None else f"timestep {twice:g} comes twice in its schedule: take fewer steps"


def equivalent(scheduler: Any) -> str | None:
    """What draws the same pictures and takes any schedule, as a hint; ``None`` where nothing does."""
    name = type(scheduler).__name__
    if name in ("DDIMScheduler", "PNDMScheduler"):
        what = "the same solver" if name == "DDIMScheduler" else "a first-order solver"
        return f"pipe.scheduler = EulerDiscreteScheduler.from_config(pipe.scheduler.config) is {what} and takes it"
    return None


def _set(scheduler: Any) -> Any:
    """A copy with its own schedule of `_STEPS`, or why there is none."""
    fresh = copy.deepcopy(scheduler)
    extra = {"mu": 1.0} if fresh.config.get("use_dynamic_shifting") else {}
    try:
        fresh.set_timesteps(_STEPS, **extra)
    except Exception as error:  # whatever a scheduler raises is its reason
        return f"{type(scheduler).__name__} takes no number of steps: {error}"
    return fresh


def _tried(attempt: Callable[[Any], str | None], scheduler: Any) -> str | None:
    try:
        return attempt(scheduler)
    except Exception as error:  # whatever a scheduler raises is its reason
        return f"{type(scheduler).__name__} cannot follow it: {error}"


def _try_schedule(scheduler: Any) -> str | None:
    """Another schedule: the middle step left out, the others moved a little."""
    fresh = _set(scheduler)
    times = fresh.timesteps.tolist()
    rewrite(fresh, [0.98 * t for t in times[: _STEPS // 2] + times[_STEPS // 2 + 1 :]])
    return doubles(fresh) or _judge(fresh, denoise(fresh, _DATA, _noise()))


def _try_tail(scheduler: Any) -> str | None:
    """Give the tail of a run other steps while it goes on."""
    fresh = _set(scheduler)

    def change(step: int) -> None:
        if step == _DONE:
            thinned(fresh, _DONE, _LEFT)

    return _judge(fresh, denoise(fresh, _DATA, _noise(), change))


def _judge(scheduler: Any, result: torch.Tensor) -> str | None:
    spread = float(result.std()) / 2
    if math.isfinite(spread) and 1 / _SPREAD < spread < _SPREAD:
        return None
    return (
        f"{type(scheduler).__name__} loses its way with it (its result has {spread:.3g} times the spread of the data)"
    )


def _noise() -> torch.Tensor:
    return torch.randn(_SHAPE, generator=torch.Generator().manual_seed(0))
