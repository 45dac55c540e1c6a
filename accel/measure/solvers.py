"""Solvers to draw with instead of a pipeline's own: fewer steps are only an honest baseline with the best of them."""

from __future__ import annotations

from typing import Any

from diffusers import DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler, StableDiffusion3Pipeline

OWN = "own"
"""The solver that the pipeline comes with."""

SOLVERS = {"dpm++": DPMSolverMultistepScheduler}
"""Solvers to compare with, by name."""


def solvers(pipe: Any) -> list[str]:
    """The solvers that fit ``pipe``, its own first.

    Of the flow-matching pipelines only Stable Diffusion 3 is known to leave the noise levels to its scheduler; the
    others hand over levels of their own, which these solvers do not take.
    """
    own = pipe.scheduler
    if isinstance(own, FlowMatchEulerDiscreteScheduler):
        plain = isinstance(pipe, StableDiffusion3Pipeline) and not own.config.use_dynamic_shifting
        return [OWN, *(SOLVERS if plain else ())]
    compatible = getattr(own, "compatibles", ())
    fitting = [name for name, kind in SOLVERS.items() if kind in compatible]
    return [OWN, *(name for name in fitting if not isinstance(own, SOLVERS[name]))]


def set_up(name: str, own: Any) -> Any:
    """Solver ``name`` for the model that scheduler ``own`` is set up for."""
    if isinstance(own, FlowMatchEulerDiscreteScheduler):
        return SOLVERS[name](
            num_train_timesteps=own.config.num_train_timesteps,
            prediction_type="flow_prediction",
            use_flow_sigmas=True,
            flow_shift=own.config.shift,
        )
    return SOLVERS[name].from_config(own.config)
