"""Swap the solver of a tiny pipeline for another one that fits its family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diffusers import (
    CogVideoXDDIMScheduler,
    CogVideoXDPMScheduler,
    DDIMScheduler,
    DiffusionPipeline,
    DPMSolverMultistepScheduler,
    EDMDPMSolverMultistepScheduler,
    EDMEulerScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchHeunDiscreteScheduler,
    FlowMatchLCMScheduler,
    HeunDiscreteScheduler,
    LCMScheduler,
    PNDMScheduler,
    UniPCMultistepScheduler,
)

Maker = Callable[[Any], Any]


def _from_config(cls: Any, **extra: Any) -> Maker:
    """Keep what the old scheduler's configuration and the new class have in common."""
    return lambda config: cls.from_config(config, **extra)


_FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
_HEUN = _from_config(FlowMatchHeunDiscreteScheduler)
_DPM = _from_config(DPMSolverMultistepScheduler, **_FLOW)
_UNIPC = _from_config(UniPCMultistepScheduler, **_FLOW)

_NOISE: dict[str, Maker] = {
    "euler": _from_config(EulerDiscreteScheduler),
    "euler-a": _from_config(EulerAncestralDiscreteScheduler),
    "ddim": _from_config(DDIMScheduler, clip_sample=False),
    "dpm++": _from_config(DPMSolverMultistepScheduler, algorithm_type="dpmsolver++"),
    "heun": _from_config(HeunDiscreteScheduler),
    "lcm": _from_config(LCMScheduler, clip_sample=False),
    "pndm": _from_config(PNDMScheduler, skip_prk_steps=True),
    "unipc": _from_config(UniPCMultistepScheduler),
}
_FLOW_SIGMAS: dict[str, Maker] = {
    "euler": _from_config(FlowMatchEulerDiscreteScheduler),
    "lcm": _from_config(FlowMatchLCMScheduler),
}
_FLOW_STEPS: dict[str, Maker] = {
    **_FLOW_SIGMAS,
    "heun": _HEUN,
    "flow-heun": _HEUN,
    "dpm++": _DPM,
    "unipc": _UNIPC,
}
_EDM: dict[str, Maker] = {
    "euler": _from_config(EDMEulerScheduler),
    "dpm++": _from_config(EDMDPMSolverMultistepScheduler),
}
_COGVIDEOX: dict[str, Maker] = {
    "ddim": _from_config(CogVideoXDDIMScheduler),
    "dpm++": _from_config(CogVideoXDPMScheduler),
}


def _makers(pipe: DiffusionPipeline) -> dict[str, Maker]:
    """The solvers that this pipeline class can drive.

    Flux and LTX hand their own sigmas to the scheduler, which not every solver takes.
    """
    name = type(pipe).__name__
    if name.startswith("CogVideoX"):
        return _COGVIDEOX
    if name.startswith("StableAudio"):
        return _EDM
    if name.startswith("LTX"):
        return _FLOW_SIGMAS
    if name.startswith("Flux"):
        return {**_FLOW_SIGMAS, "unipc": _UNIPC}
    if name.startswith(("StableDiffusion3", "Sana", "Wan")):
        return _FLOW_STEPS
    return _NOISE


def scheduler_names(pipe: DiffusionPipeline) -> tuple[str, ...]:
    """Names that ``with_scheduler`` takes for this pipeline."""
    return tuple(_makers(pipe))


def with_scheduler(pipe: DiffusionPipeline, name: str) -> DiffusionPipeline:
    """Replace ``pipe.scheduler`` and return the pipeline.

    Args:
        pipe: Any pipeline of ``CASES``.
        name: A solver by its common name; flow-matching families get its flow version.

    Raises:
        ValueError: The family cannot use that solver; the message lists those it can.
    """
    makers = _makers(pipe)
    if name not in makers:
        known = ", ".join(makers)
        raise ValueError(f"{type(pipe).__name__} has no solver {name!r} here, only {known}")
    pipe.scheduler = makers[name](pipe.scheduler.config)
    return pipe
