"""Reading a run: its schedule off the scheduler, its sample off a call, its pipeline off the call stack."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from diffusers import DiffusionPipeline
from torch import nn

from accel.tensors import Tree, signature, tensors

FAR = 1e3
"""Noise over signal beyond which a sample is taken to be noise alone."""


@dataclass
class Run:
    """The schedule of one run: ``times[i]`` and ``sigmas[i]`` belong to step ``i``."""

    times: list[float]
    sigmas: list[float]
    flow: bool = False
    """Are the sigmas shares of noise, as in flow matching, where the signal is the rest?"""
    first: int = 0
    """Steps of the scheduler's schedule that the loop leaves out at its beginning."""

    @property
    def steps(self) -> int:
        """Solver steps planned (a second-order solver has two per interval)."""
        return len(self.times)

    def along(self, axis: str) -> list[float]:
        """Where each step is on an axis: its ``time``, its ``sigma`` or its ``logsnr``, -2 ln(noise / signal).

        Where any of them is not finite, the times stand in.
        """
        if axis == "sigma":
            places = self.sigmas
        elif axis == "logsnr":
            places = [-2 * math.log(ratio) if ratio > 0 else math.nan for ratio in self.noise_over_signal]
        else:
            return self.times
        return places if all(map(math.isfinite, places)) else self.times

    @property
    def noise_over_signal(self) -> list[float]:
        """By step, at most `FAR`; ``nan`` where the scheduler tells no noise levels."""
        ratios = [sigma / max(1 - sigma, 1 / FAR) for sigma in self.sigmas] if self.flow else self.sigmas
        return [min(ratio, FAR) if not math.isnan(ratio) else math.nan for ratio in ratios]

    @classmethod
    def of(cls, scheduler: Any, denoiser: nn.Module, planned: Any, args: Any, kwargs: Any) -> Run | None:
        """The run that begins with this denoiser call; ``planned`` is the pipeline's own count of steps, if it has one.

        ``None`` when the scheduler has no timesteps.
        """
        times = _floats(getattr(scheduler, "timesteps", None))
        if not times:
            return None
        first = _first_index(scheduler, times, _argument(type(denoiser).forward, "timestep", args, kwargs))
        times = times[first : first + planned] if isinstance(planned, int) and planned > 0 else times[first:]
        whole = _floats(getattr(scheduler, "sigmas", None))
        sigmas = _sigmas(scheduler, whole[first : first + len(times)], times)
        return cls(times, sigmas, flow=bool(whole) and max(whole) <= 1, first=first)


def calling_pipeline() -> Any:
    """The nearest diffusers pipeline on the call stack, or ``None`` when a hand-written loop is running."""
    frame = sys._getframe(1)
    while frame is not None:
        names = frame.f_code.co_varnames
        if names and names[0] == "self" and isinstance(owner := frame.f_locals.get("self"), DiffusionPipeline):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    return None


def main_input(denoiser: nn.Module, args: Any, kwargs: Any) -> Tree:
    """The sample in a denoiser's arguments: its first parameter, by whatever name and in whatever order it is given.

    A tensor, or a list with one tensor for each row.
    """
    sample = args[0] if args else kwargs.get(_parameters(type(denoiser).forward)[0])
    return sample if isinstance(sample, list) else next(t for t in tensors((sample, args, kwargs)) if t.ndim)


def main_signature(sample: Tree) -> tuple[Any, ...]:
    """Shape without the rows, type and device of the sample (one entry, or one for each tensor of a list)."""
    return signature(sample if isinstance(sample, list) else sample.narrow(0, 0, 0))


def sample_batch(scheduler: Any, args: Any, kwargs: Any) -> int | None:
    """Rows of the sample handed to ``scheduler.step``, wherever that solver takes it."""
    sample = step_sample(scheduler, args, kwargs)
    return sample.shape[0] if isinstance(sample, torch.Tensor) and sample.ndim else None


def step_sample(scheduler: Any, args: Any, kwargs: Any) -> Any:
    """The sample handed to ``scheduler.step``."""
    return _argument(type(scheduler).step, "sample", args, kwargs)


def model_output(scheduler: Any, args: Any, kwargs: Any) -> Any:
    """What was handed to ``scheduler.step`` as the prediction, guidance applied."""
    return _argument(type(scheduler).step, "model_output", args, kwargs)


def step_time(scheduler: Any, args: Any, kwargs: Any) -> float | None:
    """The timestep handed to ``scheduler.step``; reading it may wait for a GPU."""
    return _number(_argument(type(scheduler).step, "timestep", args, kwargs))


def _argument(method: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
    """What a call of ``method`` passed as ``name``, by keyword or by position; ``None`` if nothing."""
    names = _parameters(method)
    index = names.index(name) if name in names else len(args)
    return kwargs[name] if name in kwargs else args[index] if index < len(args) else None


@cache
def _parameters(method: Callable[..., Any]) -> tuple[str, ...]:
    """Names of a method's parameters after ``self``; asked at every step, so read once."""
    return tuple(inspect.signature(method).parameters)[1:]


def _floats(values: Any) -> list[float]:
    if values is None:
        return []
    flat = values.flatten().tolist() if isinstance(values, torch.Tensor) else list(values)
    return [float(v) for v in flat]


def _number(timestep: Any) -> float | None:
    return float(timestep.flatten()[0]) if isinstance(timestep, torch.Tensor) else timestep


def _first_index(scheduler: Any, times: list[float], timestep: Any) -> int:
    """Index into the schedule at which the loop starts: image-to-image skips its head."""
    begin = getattr(scheduler, "begin_index", None)
    if begin is not None:
        return int(begin)
    value = _number(timestep)
    if value is None:
        return 0
    return next((i for i, t in enumerate(times) if math.isclose(t, value, rel_tol=1e-5)), 0)


def _sigmas(scheduler: Any, own: list[float], times: list[float]) -> list[float]:
    """Noise levels of the steps: the solver's own, else sqrt((1 - a) / a) with a = cumulative alpha at the timestep."""
    if len(own) == len(times):
        return own
    alphas = _floats(getattr(scheduler, "alphas_cumprod", None))
    if not all(0 <= round(t) < len(alphas) for t in times):
        return [math.nan] * len(times)
    at = [alphas[round(t)] for t in times]
    return [math.sqrt((1 - a) / a) if a else math.inf for a in at]  # a zero-SNR schedule begins at infinity
