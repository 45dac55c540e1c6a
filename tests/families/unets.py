"""Stable Diffusion and Stable Diffusion XL: the UNet families."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DiffusionPipeline,
    EulerDiscreteScheduler,
    LCMScheduler,
    StableDiffusionPipeline,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)

from tests.families.core import Case, images, quiet
from tests.families.seeding import picture, sampling, seed_weights, text

TEXT_DIM = 32
POOLED_DIM = 32
CHANNELS = (16, 32, 32)
SIZES = (16, 24)
BETAS = {"beta_start": 0.00085, "beta_end": 0.006, "beta_schedule": "scaled_linear"}
"""Half the usual noise: a random network does not denoise, and every error it makes at the
noisiest step is divided by the signal that is left there."""


def vae(channels: int = 4, **config: Any) -> AutoencoderKL:
    """A two-level image autoencoder: one latent cell for 2 x 2 pixels."""
    shape: dict[str, Any] = {
        "block_out_channels": (8, 8),
        "norm_num_groups": 4,
        "latent_channels": channels,
        "force_upcast": False,
    }
    down, up = ("DownEncoderBlock2D",) * 2, ("UpDecoderBlock2D",) * 2
    model = AutoencoderKL(**{**shape, "down_block_types": down, "up_block_types": up, **config})
    return seed_weights(model, 1)


def sd_unet(layers: int = 1, **config: Any) -> UNet2DConditionModel:
    """Three levels, two of them with cross-attention."""
    model = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=CHANNELS,
        layers_per_block=layers,
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=TEXT_DIM,
        attention_head_dim=4,
        **config,
    )
    return seed_weights(model, 2)


def _sdxl_unet() -> UNet2DConditionModel:
    model = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=CHANNELS,
        layers_per_block=2,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 1, 2),
        cross_attention_dim=TEXT_DIM,
        attention_head_dim=(2, 4, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=6 * 8 + POOLED_DIM,
    )
    return seed_weights(model, 3)


def _ddim() -> DDIMScheduler:
    return DDIMScheduler(**BETAS, clip_sample=False, set_alpha_to_one=False, steps_offset=1)


def sd(
    cls: type[DiffusionPipeline] = StableDiffusionPipeline,
    unet: Callable[[], UNet2DConditionModel] = sd_unet,
    scheduler: Callable[[], Any] = _ddim,
    **parts: Callable[[], Any],
) -> DiffusionPipeline:
    """A Stable Diffusion pipeline that takes prompt embeddings only."""
    empty = dict.fromkeys(("text_encoder", "tokenizer", "safety_checker", "feature_extractor"))
    made = {name: make() for name, make in parts.items()}
    return quiet(
        cls(
            vae=vae(),
            unet=unet(),
            scheduler=scheduler(),
            requires_safety_checker=False,
            **empty,
            **made,
        )
    )


def _sdxl(cls: type[DiffusionPipeline] = StableDiffusionXLPipeline) -> DiffusionPipeline:
    """A Stable Diffusion XL pipeline that takes prompt embeddings only."""
    names = ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")
    euler = EulerDiscreteScheduler(**BETAS, steps_offset=1, timestep_spacing="leading")
    empty = dict.fromkeys(names)
    return quiet(cls(vae=vae(), unet=_sdxl_unet(), scheduler=euler, add_watermarker=False, **empty))


def sd_inputs(
    steps: int = 6,
    batch: int = 1,
    size: int | None = None,
    guidance: bool = True,
    seed: int = 0,
    sized: bool = True,
    scale: float = 5.0,
) -> dict[str, Any]:
    out = sampling(steps, seed, batch, guidance_scale=scale if guidance else 1.0)
    out |= text(seed, batch, TEXT_DIM, guidance=guidance)
    size = size or SIZES[0]
    return {**out, "height": size, "width": size} if sized else out


def _sd_plain_inputs(**kw: Any) -> dict[str, Any]:
    return sd_inputs(**{**kw, "guidance": False})


def _lcm_inputs(guidance: bool = True, **kw: Any) -> dict[str, Any]:
    """The scale goes into the denoiser's time embedding; a negative prompt is never used."""
    return {**sd_inputs(guidance=False, **kw), "guidance_scale": 4.0 if guidance else 1.0}


def _sdxl_inputs(
    steps: int = 6,
    batch: int = 1,
    size: int | None = None,
    guidance: bool = True,
    seed: int = 0,
    image: bool = False,
) -> dict[str, Any]:
    size = size or SIZES[0]
    out = sampling(steps, seed, batch, guidance_scale=5.0 if guidance else 1.0)
    out |= text(seed, batch, TEXT_DIM, POOLED_DIM, guidance)
    if image:
        return {**out, "image": picture("start", seed, batch, size), "strength": 0.7}
    return {**out, "height": size, "width": size}


def unet_case(
    name: str,
    build: Callable[[], DiffusionPipeline],
    inputs: Callable[..., dict[str, Any]] = sd_inputs,
    guidance: str = "batched",
) -> Case:
    return Case(name, "unet", build, inputs, guidance, images, SIZES)


_sd_deep = partial(sd, unet=partial(sd_unet, layers=2))
_lcm_unet = partial(sd_unet, time_cond_proj_dim=16)
_lcm_scheduler = partial(LCMScheduler, **BETAS, clip_sample=False, steps_offset=1)
_sd_lcm = partial(sd, unet=_lcm_unet, scheduler=_lcm_scheduler)
_sdxl_img2img = partial(_sdxl, StableDiffusionXLImg2ImgPipeline)

UNET_CASES = [
    unet_case("sd", _sd_deep),
    unet_case("sd-plain", sd, _sd_plain_inputs, "none"),
    unet_case("sd-lcm", _sd_lcm, _lcm_inputs, "embedded"),
    unet_case("sdxl", _sdxl, _sdxl_inputs),
    unet_case("sdxl-img2img", _sdxl_img2img, partial(_sdxl_inputs, image=True)),
]
