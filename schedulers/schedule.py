"""A schedule: at which timesteps a picture is denoised. How it is put into a scheduler, also in the middle of a run.

Which scheduler takes a schedule of ours is not read off a list of names: `probe` tries it out.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from accel.runs import Run
from accel.schedulers.levels import sigma, unreadable


@dataclass(frozen=True)
class StepPlan:
    """How one picture is to be denoised.

    Attributes:
        count: Number of steps, in the scheduler's own spacing; ``None`` for as many as the call asks for.
        timesteps: Or the steps themselves, falling, in training timesteps.
    """

    count: int | None = None
    timesteps: tuple[float, ...] = ()

    def steps(self, asked: int) -> int:
        """How many steps this is where the call asks for ``asked``."""
        return len(self.timesteps) or (asked if self.count is None else min(self.count, asked))


@dataclass(frozen=True)
class Asked:
    """What a call of ``set_timesteps`` asks for."""

    arguments: dict[str, Any]

    @classmethod
    def of(cls, scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Asked:
        """Read the arguments, by whatever position or keyword they are given."""
        bound = inspect.signature(type(scheduler).set_timesteps).bind_partial(scheduler, *args, **kwargs)
        arguments = dict(list(bound.arguments.items())[1:])
        return cls({**arguments, **arguments.pop("kwargs", {})})

    @property
    def count(self) -> int:
        """Steps that the call asks for, 0 where that cannot be told."""
        for name in ("timesteps", "sigmas"):
            if (values := self.arguments.get(name)) is not None:
                return len(values)
        return int(self.arguments.get("num_inference_steps") or 0)

    @property
    def own(self) -> bool:
        """Does the call bring timesteps of its own?"""
        return self.arguments.get("timesteps") is not None

    def at(self, count: int) -> dict[str, Any]:
        """The arguments for ``count`` steps. Noise levels that a pipeline brings keep their course."""
        changed = dict(self.arguments)
        if (sigmas := changed.get("sigmas")) is not None:
            ends = np.append(np.asarray(sigmas, dtype=np.float64), 0.0)
            places = np.linspace(0, len(ends) - 1, count + 1)
            changed["sigmas"] = np.interp(places, np.arange(len(ends)), ends)[:-1].tolist()
        else:
            changed["num_inference_steps"] = count
        return changed


def out_of_reach(pipe: Any) -> str | None:
    """Why a schedule of ours would not reach all of the pipeline's loop; ``None`` when it would."""
    call = inspect.unwrap(type(pipe).__call__)
    if "deepcopy" in getattr(getattr(call, "__code__", None), "co_names", ()):
        return f"{type(pipe).__name__} also drives copies of its scheduler, which no plan reaches"
    return None


def edits(scheduler: Any) -> str | None:
    """Why the timesteps of ``scheduler`` cannot be rewritten after ``set_timesteps``; ``None`` when they can.

    They can where the solver reads its next noise level off a table that it keeps, with one entry for each step.
    """
    name = type(scheduler).__name__
    times, sigmas = getattr(scheduler, "timesteps", None), getattr(scheduler, "sigmas", None)
    if getattr(scheduler, "order", 1) != 1:
        return f"{name} takes two steps for each timestep, which must not be torn apart"
    if sigmas is None or not hasattr(scheduler, "_step_index"):
        return f"{name} computes its next timestep from the number of steps"
    if times is None or len(sigmas) != len(times) + 1:
        return f"{name} has not one noise level for each of its steps"
    if times[0] < times[-1]:
        return f"{name}'s timesteps rise"
    return unreadable(scheduler)


def ends_early(scheduler: Any, run: Run | None) -> str | None:
    """Whether the loop leaves its schedule before the end, so that a new tail would take it too far."""
    if run is not None and run.first + run.steps == len(scheduler.timesteps):
        return None
    return "the run ends before its schedule does"


def rewrite(scheduler: Any, timesteps: Sequence[float]) -> None:
    """Replace the scheduler's schedule by ``timesteps``; `edits` must allow it. Its last noise level stays."""
    times, sigmas = scheduler.timesteps, scheduler.sigmas
    new = torch.tensor(list(timesteps), dtype=torch.float64)
    levels = torch.tensor([sigma(scheduler, float(t)) for t in _as(new, times).tolist()], dtype=torch.float64)
    scheduler.timesteps = _as(new, times)
    scheduler.sigmas = torch.cat([_as(levels, sigmas), sigmas[-1:]])


def thinned(scheduler: Any, done: int, left: int) -> None:
    """After ``done`` steps go on with ``left`` of those still planned, evenly spread: the tail is finished properly.

    Cutting the tail off instead leaves noise in the sample. Every new step is one of the old ones, so timestep and
    noise level still belong together. A multistep solver lowers its order at the end by the *length* of its schedule,
    so the schedule is cut to its new length.
    """
    times, sigmas = scheduler.timesteps, scheduler.sigmas
    places = np.unique(np.linspace(done, len(times), left + 1).round().astype(int)[:-1])
    keep = torch.as_tensor(places, dtype=torch.long)
    scheduler.timesteps = torch.cat([times[:done], times[keep.to(times.device)]])
    scheduler.sigmas = torch.cat([sigmas[:done], sigmas[keep.to(sigmas.device)], sigmas[-1:]])


def _as(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    rounded = values if like.is_floating_point() else values.round()
    return rounded.to(like.device, like.dtype)
