"""A denoiser that is exact: for data drawn from a Gaussian, the best prediction has a closed form.

With variance ``v`` of every coordinate of the data, E[x0 | x] = signal · v / (signal² v + noise²) · x, Wiener's filter.
What a schedule does to such data can be computed without a network: schedules are tried out on it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from accel.schedulers.levels import is_variance_exploding, level, output_for


class Gaussian:
    """Data of independent coordinates.

    Args:
        variance: Of every coordinate; broadcasts against samples.
    """

    def __init__(self, variance: torch.Tensor | float = 1.0) -> None:
        self.variance = variance

    def output(self, scheduler: Any, sample: torch.Tensor, time: float) -> torch.Tensor:
        """What a perfectly trained model answers for ``sample``, the one that ``step`` is given."""
        signal, noise = level(scheduler, time)
        x = sample * signal if is_variance_exploding(scheduler) else sample
        x0 = x * (signal * self.variance / (signal**2 * self.variance + noise**2))
        return output_for(scheduler, x0, sample, time)


@torch.no_grad()
def denoise(
    scheduler: Any, data: Gaussian, start: torch.Tensor, before: Callable[[int], None] = lambda step: None
) -> torch.Tensor:
    """Run the scheduler's whole schedule, as a pipeline does, from unit noise ``start``.

    ``before(step)`` is called before every step and may change the schedule from there on.
    """
    sample = start * scheduler.init_noise_sigma if hasattr(scheduler, "init_noise_sigma") else start
    draws = {"generator": torch.Generator().manual_seed(0)} if _is_random(scheduler) else {}
    step = 0
    while step < len(scheduler.timesteps):
        before(step)
        time = scheduler.timesteps[step]
        if hasattr(scheduler, "scale_model_input"):
            scheduler.scale_model_input(sample, time)
        output = data.output(scheduler, sample, float(time))
        sample = scheduler.step(output, time, sample, **draws, return_dict=False)[0]
        step += 1
    return sample


def _is_random(scheduler: Any) -> bool:
    return "generator" in inspect.signature(scheduler.step).parameters
