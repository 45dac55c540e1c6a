"""Inpainting on the parts of a text-to-image pipeline: the masked part of a picture is drawn anew."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from accel.app.limits import Asked
from accel.app.running import Watched
from accel.app.streaming import Tell
from accel.commands.drawing import size_factor
from accel.errors import AccelError


@dataclass(frozen=True)
class Edited:
    """The result of an edit."""

    picture: Image.Image
    seconds: float
    masked: float
    """Share of the picture that was drawn anew."""


def mask_of(drawn: dict[str, Any]) -> tuple[Image.Image, Image.Image]:
    """The picture and the mask of an image editor's value: white where anything was painted on the layers.

    Raises `AccelError` where one of the two is missing.
    """
    background = drawn.get("background") if drawn else None
    if background is None:
        raise AccelError("there is no picture to edit: upload one, or take the one from Compare")
    picture = _opaque(background)
    painted = Image.new("L", picture.size, 0)
    for layer in drawn.get("layers") or ():
        alpha = layer.convert("RGBA").getchannel("A").point(lambda value: 255 if value else 0)
        painted.paste(255, mask=alpha.resize(picture.size, Image.Resampling.NEAREST))
    if painted.getbbox() is None:
        raise AccelError("nothing is painted: paint over what is to be drawn anew")
    return picture, painted


def _opaque(image: Image.Image) -> Image.Image:
    """RGB, on white where the picture is transparent."""
    if image.mode != "RGBA":
        return image.convert("RGB")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image.getchannel("A"))
    return white


def share(mask: Image.Image) -> float:
    """Share of the mask that is white."""
    return mask.histogram()[255] / (mask.width * mask.height)


def edge(pipe: Any, asked: Asked, most: int) -> int:
    """The edge in pixels at which is edited: as asked, else the model's own."""
    factor = size_factor(pipe)
    own = getattr(getattr(pipe, "unet", None) or getattr(pipe, "transformer", None), "config", {}).get(
        "sample_size", 64
    )
    size = asked.size or int(own) * int(getattr(pipe, "vae_scale_factor", 8))
    return max(factor, min(size, most) // factor * factor)


def edit(
    pipe: Any, asked: Asked, picture: Image.Image, mask: Image.Image, strength: float, most: int, tell: Tell
) -> Edited:
    """Draw the white part of ``mask`` anew; everything outside of it is put back to the bit.

    Raises `AccelError` where diffusers has no inpainting for the pipeline.
    """
    from diffusers import AutoPipelineForInpainting

    size = edge(pipe, asked, most)
    picture = picture.resize((size, size), Image.Resampling.LANCZOS)
    mask = mask.resize((size, size), Image.Resampling.NEAREST)
    try:
        inpaint = AutoPipelineForInpainting.from_pipe(pipe)
    except ValueError as error:
        raise AccelError(f"diffusers has no inpainting for {type(pipe).__name__}: {error}") from None
    inpaint.set_progress_bar_config(disable=True)
    steps = max(1, min(int(asked.steps * strength), asked.steps))
    watched = Watched(inpaint, "edit", steps, tell)
    began = time.perf_counter()
    try:
        output = watched(
            prompt=asked.prompt,
            image=picture,
            mask_image=mask,
            strength=strength,
            height=size,
            width=size,
            num_inference_steps=asked.steps,
            guidance_scale=asked.guidance,
            generator=torch.Generator().manual_seed(asked.seed),
        )
    except (TypeError, ValueError) as error:
        raise AccelError(f"{type(inpaint).__name__} cannot draw this: {error}") from error
    seconds = time.perf_counter() - began - watched.watching
    return Edited(kept_outside(picture, mask, output.images[0]), seconds, share(mask))


def kept_outside(before: Image.Image, mask: Image.Image, after: Image.Image) -> Image.Image:
    """``after`` where the mask is white, ``before`` elsewhere."""
    result = before.copy()
    result.paste(after.convert("RGB"), mask=mask)
    return result
