"""What one tiny pipeline of the contract suite is, and how it is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import DiffusionPipeline

GUIDANCE_MODES = ("batched", "sequential", "embedded", "none")
"""``batched``: one denoiser call on the doubled batch. ``sequential``: one call per branch.
``embedded``: the scale is an input of the denoiser. ``none``: no guidance at all."""


@dataclass(frozen=True)
class Case:
    """One pipeline class of one family, with seeded weights and seeded inputs.

    Attributes:
        name: The key in ``CASES``.
        family: ``"unet"`` or ``"dit"``.
        build: Makes a fresh pipeline; every call gives the same weights.
        inputs: Makes fresh call arguments. Parameters: ``steps``, ``batch``, ``size`` (one of
            ``sizes``), ``guidance`` and ``seed``. Sample ``i`` of a batch has the prompt, the
            starting picture and the generator of ``seed + i``.
        guidance: How the two guidance branches reach the denoiser, see ``GUIDANCE_MODES``.
        output: Takes the tensor out of the pipeline's output.
        sizes: Valid values of ``size``, the default first.
        denoisers: Names of the pipeline's denoisers.
    """

    name: str
    family: str
    build: Callable[[], DiffusionPipeline]
    inputs: Callable[..., dict[str, Any]]
    guidance: str
    output: Callable[[Any], torch.Tensor]
    sizes: tuple[int, ...] = (32,)
    denoisers: tuple[str, ...] = ("unet",)


INPUT_NAMES = ("steps", "batch", "size", "guidance", "seed")


def run(case: Case, pipe: DiffusionPipeline, **kw: Any) -> torch.Tensor:
    """Run ``pipe`` on the case's inputs and return the output tensor.

    Keywords that ``Case.inputs`` knows go there; all others are passed to the pipeline itself.
    Some pipelines keep their generators from the scheduler, so stochastic solvers draw from the
    global random state there; it is seeded for the run and restored after it.
    """
    ours = {name: kw.pop(name) for name in INPUT_NAMES if name in kw}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(ours.get("seed", 0))
        return case.output(pipe(**{**case.inputs(**ours), **kw}))


def quiet(pipe: DiffusionPipeline) -> DiffusionPipeline:
    """Switch the progress bar off and every module to evaluation."""
    pipe.set_progress_bar_config(disable=True)
    for component in pipe.components.values():
        if isinstance(component, torch.nn.Module):
            component.eval()
    return pipe


def images(out: Any) -> torch.Tensor:
    """The ``images`` of a pipeline output."""
    return out.images


def frames(out: Any) -> torch.Tensor:
    """The ``frames`` of a pipeline output."""
    return out.frames


def audios(out: Any) -> torch.Tensor:
    """The ``audios`` of a pipeline output."""
    return out.audios
