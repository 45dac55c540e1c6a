"""What a predictor sees of a prompt: its text embedding, which the pipeline computes anyway, pooled over the tokens."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from accel.errors import AccelError

_OFF = {"do_classifier_free_guidance": False, "num_images_per_prompt": 1, "num_videos_per_prompt": 1}


def pooled(prompt_embeds: Tensor) -> Tensor:
    """Mean and spread over the tokens of each prompt.

    Args:
        prompt_embeds: ``(batch, tokens, channels)``, what a pipeline's ``encode_prompt`` returns first.

    Returns:
        ``(batch, 2 · channels)`` float32; a row depends on its prompt only.

    Raises:
        AccelError: for another shape.
    """
    if prompt_embeds.ndim != 3 or not prompt_embeds.is_floating_point():
        raise AccelError(
            f"a text embedding is (batch, tokens, channels) in floating point, not {tuple(prompt_embeds.shape)} "
            f"{prompt_embeds.dtype}"
        )
    embeds = prompt_embeds.detach().float()
    return torch.cat([embeds.mean(1), embeds.std(1, correction=0)], dim=1)


@torch.no_grad()
def features(pipe: Any, prompts: Sequence[str]) -> Tensor:
    """`pooled` of each prompt through the pipeline's own ``encode_prompt``, ``(prompts, features)`` on the CPU.

    Prompts are encoded one at a time: some pipelines pad to the longest of a batch, and what a prompt needs must not
    depend on its neighbours.

    Raises:
        AccelError: for a pipeline without a text encoder of that kind.
    """
    if isinstance(prompts, str) or not prompts:
        raise AccelError("there is no prompt to read: give a list of at least one")
    return torch.cat([pooled(embedded(pipe, prompt)) for prompt in prompts]).cpu()


def embedded(pipe: Any, prompt: str) -> Tensor:
    """The positive embedding ``(1, tokens, channels)`` of one prompt."""
    encode = getattr(pipe, "encode_prompt", None)
    name = type(pipe).__name__
    if encode is None:
        raise AccelError(f"{name} has no encode_prompt, so there is no text embedding to predict from")
    try:
        first = encode(**_arguments(pipe, encode, prompt))
    except (TypeError, ValueError, AttributeError) as error:  # the last where it was loaded without a text encoder
        raise AccelError(f"{name} does not encode a prompt by itself ({error}): nothing can be predicted") from error
    while isinstance(first, (tuple, list)):  # a list holds one ragged embedding for each prompt
        first = first[0]
    if not isinstance(first, Tensor):
        raise AccelError(f"{name}.encode_prompt returns no tensor first: nothing can be predicted from its prompts")
    return first if first.ndim == 3 else first[None]


def _arguments(pipe: Any, encode: Any, prompt: str) -> dict[str, Any]:
    """The prompt alone, whatever else this pipeline's encoder insists on being told."""
    takes = inspect.signature(encode).parameters
    usual = {**_OFF, "device": getattr(pipe, "_execution_device", pipe.device)}
    asked = {key: value for key, value in usual.items() if key in takes}
    further = {key: None for key in takes if key in ("prompt_2", "prompt_3", "prompt_4")}
    return {"prompt": prompt, **further, **asked}
