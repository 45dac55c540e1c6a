"""Noise levels by timestep, and what a model's output says of the clean sample at one.

A noisy sample is ``x = signal · x0 + noise · ε``. Schedulers with a variance-preserving table have
``signal² = alphas_cumprod[t]`` and ``noise² = 1 - signal²``; flow matching has ``noise = t / T`` and
``signal = 1 - noise``. Stable Video Diffusion counts time by its noise level, ``t = log(noise / signal) / 4``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

Level = tuple[float, float]
"""``(signal, noise)``."""


def is_flow(scheduler: Any) -> bool:
    """Is the noise level a share of noise, and the rest signal?"""
    config = scheduler.config
    if config.get("prediction_type") == "flow_prediction" or config.get("use_flow_sigmas"):
        return True
    sigmas = getattr(scheduler, "sigmas", None)
    return not hasattr(scheduler, "alphas_cumprod") and sigmas is not None and float(sigmas.max()) <= 1.0


def is_continuous(scheduler: Any) -> bool:
    """Are timesteps a quarter of the logarithm of noise over signal?"""
    config = scheduler.config
    return config.get("timestep_type") == "continuous" and config.get("prediction_type") == "v_prediction"


def unreadable(scheduler: Any) -> str | None:
    """Why noise levels cannot be told for this scheduler; ``None`` when they can."""
    if is_flow(scheduler) or hasattr(scheduler, "alphas_cumprod"):
        return None
    return f"{type(scheduler).__name__} tells no noise level for a timestep"


def level(scheduler: Any, time: float) -> Level:
    """Signal and noise at ``time`` (in training timesteps, between two of them too)."""
    if is_flow(scheduler):
        noise = time / scheduler.config.num_train_timesteps
        return 1 - noise, noise
    if is_continuous(scheduler):
        ratio = math.exp(4 * time)
        return 1 / math.hypot(1, ratio), ratio / math.hypot(1, ratio)
    table = scheduler.alphas_cumprod
    kept = float(np.interp(time, np.arange(len(table)), table.double().cpu().numpy()))
    return kept**0.5, (1 - kept) ** 0.5


def sigma(scheduler: Any, time: float) -> float:
    """The entry of ``scheduler.sigmas`` for ``time``: noise over signal, or with flow matching the share of noise."""
    if is_flow(scheduler):
        return level(scheduler, time)[1]
    if is_continuous(scheduler):
        return math.exp(4 * time)
    table = _table(scheduler)
    return float(np.interp(time, np.arange(len(table)), table))  # as the schedulers themselves interpolate


def time_of(scheduler: Any, ratio: float) -> float:
    """The timestep at which noise over signal is ``ratio``, not with flow matching: the inverse of `sigma`."""
    if is_continuous(scheduler):
        return math.log(ratio) / 4
    table = np.log(_table(scheduler))
    return float(np.interp(math.log(ratio), table, np.arange(len(table))))  # again as they do


def noise_range(scheduler: Any) -> tuple[float, float]:
    """Largest and smallest noise over signal that the model was trained with, not with flow matching."""
    config = scheduler.config
    if is_continuous(scheduler) and config.get("sigma_max") and config.get("sigma_min"):
        return float(config["sigma_max"]), float(config["sigma_min"])
    table = _table(scheduler)
    return float(table[-1]), float(table[0])


def _table(scheduler: Any) -> Any:
    """Noise over signal of every training timestep."""
    kept = scheduler.alphas_cumprod
    return ((1 - kept) / kept).double().sqrt().cpu().numpy()


def is_variance_exploding(scheduler: Any) -> bool:
    """Does ``step`` take ``x / signal``, which ``scale_model_input`` turns into ``x``?"""
    return hasattr(scheduler, "is_scale_input_called")


def clean(scheduler: Any, output: torch.Tensor, sample: torch.Tensor, time: float) -> torch.Tensor:
    """The clean sample x0 that ``output`` predicts from ``sample``, the one that ``step`` is given; at least float32.

    Channels that the sample has not (a learned variance) come last and are left out.

    Raises:
        ValueError: for a prediction type that is not known.
    """
    signal, noise = level(scheduler, time)
    precise = torch.promote_types(sample.dtype, torch.float32)
    output, sample = output.to(precise), sample.to(precise)
    output = output[:, : sample.shape[1]] if output.ndim > 2 else output
    x = sample * signal if is_variance_exploding(scheduler) else sample
    kind = "flow_prediction" if is_flow(scheduler) else scheduler.config.get("prediction_type", "epsilon")
    if kind == "epsilon":
        return (x - noise * output) / max(signal, 1e-4)
    if kind == "v_prediction":
        return signal * x - noise * output
    if kind == "sample":
        return output
    if kind == "flow_prediction":
        return x - noise * output
    raise ValueError(f"prediction type {kind!r} of {type(scheduler).__name__} is not known")


def output_for(scheduler: Any, x0: torch.Tensor, sample: torch.Tensor, time: float) -> torch.Tensor:
    """The inverse of `clean`: the model output that predicts ``x0``."""
    signal, noise = level(scheduler, time)
    x = sample * signal if is_variance_exploding(scheduler) else sample
    noise_part = (x - signal * x0) / max(noise, 1e-4)
    kind = "flow_prediction" if is_flow(scheduler) else scheduler.config.get("prediction_type", "epsilon")
    by_kind = {
        "epsilon": noise_part,
        "v_prediction": signal * noise_part - noise * x0,
        "sample": x0,
        "flow_prediction": noise_part - x0,
    }
    return by_kind[kind]
