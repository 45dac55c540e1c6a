"""Signs, read off a pipeline's configuration, that its model was distilled: then there is less left to save."""

from __future__ import annotations

import inspect
from typing import Any

from accel.target import Target

_SCALE_IS_AN_INPUT = ("guidance_embeds", "time_cond_proj_dim")
"""Settings of denoisers that are told the guidance scale (Flux; latent consistency models) and called once a step."""


def signs(target: Target) -> list[str]:
    """What tells that the model of ``target`` does in one call, or in a few steps, what others take more for."""
    found = [
        f"{denoiser.name} is told the guidance scale (distilled guidance), so no second half of guidance can be saved"
        for denoiser in target.denoisers
        if any(_setting(denoiser.module, name) for name in _SCALE_IS_AN_INPUT)
    ]
    kind = type(target.scheduler)
    if "original_inference_steps" in inspect.signature(kind.__init__).parameters:  # as LCM and TCD have
        found.append(f"{kind.__name__} is for models distilled to a few steps, which are far apart")
    return found


def _setting(part: Any, name: str) -> Any:
    config: Any = getattr(part, "config", None)
    return config.get(name) if hasattr(config, "get") else getattr(config, name, None)
