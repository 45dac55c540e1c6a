"""Families that call their denoiser in their own way: Lumina with the conditional half first, Z-Image with lists."""

from __future__ import annotations

from functools import partial
from typing import Any

from diffusers import (
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    LuminaNextDiT2DModel,
    LuminaPipeline,
    ZImagePipeline,
    ZImageTransformer2DModel,
)

from tests.families.core import Case, images, quiet
from tests.families.seeding import masks, sampling, seed_weights, text
from tests.families.unets import vae

TEXT_DIM = 32
SIZES = (32, 48)


def _lumina() -> DiffusionPipeline:
    model = LuminaNextDiT2DModel(
        sample_size=16,
        hidden_size=32,
        num_layers=4,
        num_attention_heads=2,
        num_kv_heads=2,
        multiple_of=16,
        cross_attention_dim=TEXT_DIM,
    )
    pipe = LuminaPipeline(
        transformer=seed_weights(model, 41),
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=vae(),
        text_encoder=None,
        tokenizer=None,
    )
    return quiet(pipe)


def _z_image() -> DiffusionPipeline:
    model = ZImageTransformer2DModel(
        in_channels=4,
        dim=32,
        n_layers=4,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=TEXT_DIM,
        axes_dims=[4, 6, 6],
        axes_lens=[64, 64, 64],
    )
    pipe = ZImagePipeline(
        transformer=seed_weights(model, 42),
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=vae(),
        text_encoder=None,
        tokenizer=None,
    )
    return quiet(pipe)


def _inputs(
    steps: int = 6,
    batch: int = 1,
    size: int | None = None,
    guidance: bool = True,
    seed: int = 0,
    lists: bool = False,
) -> dict[str, Any]:
    """``lists``: every prompt is a tensor of its own."""
    size = size or SIZES[0]
    out = sampling(steps, seed, batch, guidance_scale=3.0 if guidance else 0.0)
    embeds = text(seed, batch, TEXT_DIM, guidance=guidance)
    if lists:
        return {**out, **{k: list(v) for k, v in embeds.items()}, "height": size, "width": size}
    return {**out, **embeds, **masks(batch, guidance), "height": size, "width": size}


def _case(name: str, build: Any, inputs: Any) -> Case:
    return Case(name, "dit", build, inputs, "batched", images, SIZES, ("transformer",))


UNUSUAL_CASES = [
    _case("lumina", _lumina, _inputs),
    _case("z-image", _z_image, partial(_inputs, lists=True)),
]
