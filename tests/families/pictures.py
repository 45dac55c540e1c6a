"""Transformer families that make pictures: PixArt, DiT, SD3, Flux and Sana."""

from __future__ import annotations

from functools import partial
from typing import Any

from diffusers import (
    AutoencoderDC,
    DDIMScheduler,
    DiffusionPipeline,
    DiTPipeline,
    DiTTransformer2DModel,
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxImg2ImgPipeline,
    FluxPipeline,
    FluxTransformer2DModel,
    PixArtAlphaPipeline,
    PixArtTransformer2DModel,
    SanaPipeline,
    SanaTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Img2ImgPipeline,
    StableDiffusion3Pipeline,
)

from tests.families.core import Case, images, quiet
from tests.families.seeding import masks, picture, sampling, seed_weights, text
from tests.families.unets import BETAS, vae

TEXT_DIM = 32
POOLED_DIM = 24
SIZES = (32, 48)
HEADS = {"num_attention_heads": 2, "attention_head_dim": 16}


def _pixart() -> DiffusionPipeline:
    model = PixArtTransformer2DModel(
        sample_size=16,
        num_layers=4,
        patch_size=2,
        cross_attention_dim=32,
        caption_channels=TEXT_DIM,
        **HEADS,
    )
    pipe = PixArtAlphaPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=vae(),
        transformer=seed_weights(model, 11),
        scheduler=DPMSolverMultistepScheduler(**BETAS),
    )
    return quiet(pipe)


def _dit() -> DiffusionPipeline:
    model = DiTTransformer2DModel(sample_size=16, num_layers=4, out_channels=8, **HEADS)
    scheduler = DDIMScheduler(**BETAS, clip_sample=False)
    pipe = DiTPipeline(transformer=seed_weights(model, 12), vae=vae(), scheduler=scheduler)
    return quiet(pipe)


def _sd3(cls: type[DiffusionPipeline] = StableDiffusion3Pipeline) -> DiffusionPipeline:
    """Five joint blocks; the first two also have the second self-attention of SD 3.5."""
    model = SD3Transformer2DModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        num_layers=5,
        joint_attention_dim=TEXT_DIM,
        caption_projection_dim=32,
        pooled_projection_dim=POOLED_DIM,
        pos_embed_max_size=32,
        dual_attention_layers=(0, 1),
        qk_norm="rms_norm",
        **HEADS,
    )
    names = ("text_encoder", "text_encoder_2", "text_encoder_3")
    empty = dict.fromkeys(names + ("tokenizer", "tokenizer_2", "tokenizer_3"))
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    coder = vae(shift_factor=0.1)
    pipe = cls(transformer=seed_weights(model, 13), vae=coder, scheduler=scheduler, **empty)
    return quiet(pipe)


def _flux(cls: type[DiffusionPipeline] = FluxPipeline, guidance_embeds: bool = True) -> DiffusionPipeline:
    """Three double-stream and four single-stream blocks."""
    model = FluxTransformer2DModel(
        in_channels=16,
        num_layers=3,
        num_single_layers=4,
        joint_attention_dim=TEXT_DIM,
        pooled_projection_dim=POOLED_DIM,
        guidance_embeds=guidance_embeds,
        axes_dims_rope=(4, 4, 8),
        **HEADS,
    )
    empty = dict.fromkeys(("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2"))
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    coder = vae(shift_factor=0.1)
    pipe = cls(transformer=seed_weights(model, 14), vae=coder, scheduler=scheduler, **empty)
    return quiet(pipe)


def _sana_vae() -> AutoencoderDC:
    levels = (8, 8, 8)
    sides = ("encoder", "decoder")
    config: dict[str, Any] = {f"{side}_block_out_channels": levels for side in sides}
    config |= {f"{side}_layers_per_block": (1, 1, 1) for side in sides}
    config |= {f"{side}_qkv_multiscales": ((), (), ()) for side in sides}
    return seed_weights(AutoencoderDC(latent_channels=4, attention_head_dim=2, **config), 15)


def _sana() -> DiffusionPipeline:
    model = SanaTransformer2DModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        num_layers=4,
        num_cross_attention_heads=2,
        cross_attention_head_dim=16,
        cross_attention_dim=32,
        caption_channels=TEXT_DIM,
        **HEADS,
    )
    scheduler = DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)
    pipe = SanaPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=_sana_vae(),
        transformer=seed_weights(model, 16),
        scheduler=scheduler,
    )
    return quiet(pipe)


def _masked_inputs(
    steps: int = 6,
    batch: int = 1,
    size: int | None = None,
    guidance: bool = True,
    seed: int = 0,
) -> dict[str, Any]:
    """PixArt and Sana: embeddings with masks, exact resolution."""
    size = size or SIZES[0]
    out = sampling(steps, seed, batch, guidance_scale=4.0 if guidance else 1.0)
    out |= text(seed, batch, TEXT_DIM, guidance=guidance) | masks(batch, guidance)
    out |= {"negative_prompt": None, "use_resolution_binning": False}
    return {**out, "height": size, "width": size}


def _dit_inputs(
    steps: int = 6,
    batch: int = 1,
    size: int | None = None,
    guidance: bool = True,
    seed: int = 0,
) -> dict[str, Any]:
    """Class labels instead of prompts; the resolution is the model's own."""
    if size not in (None, SIZES[0]):
        raise ValueError(f"DiT makes {SIZES[0]} x {SIZES[0]} pictures only, not {size}")
    labels = [(37 * (seed + i) + 5) % 1000 for i in range(batch)]
    scale = 3.0 if guidance else 1.0
    return sampling(steps, seed, batch, class_labels=labels, guidance_scale=scale, output_type="pt")


def _sd3_inputs(
    steps: int = 6,
    batch: int = 1,
    size: int | None = None,
    guidance: bool = True,
    seed: int = 0,
    image: bool = False,
) -> dict[str, Any]:
    size = size or SIZES[0]
    out = sampling(steps, seed, batch, guidance_scale=4.0 if guidance else 1.0)
    out |= text(seed, batch, TEXT_DIM, POOLED_DIM, guidance) | {"height": size, "width": size}
    if image:
        out |= {"image": picture("start", seed, batch, size), "strength": 0.7}
    return out


def _flux_inputs(
    steps: int = 6,
    batch: int = 1,
    size: int | None = None,
    guidance: bool = True,
    seed: int = 0,
    image: bool = False,
    true_cfg: bool = False,
) -> dict[str, Any]:
    """``true_cfg``: guidance by a second denoiser call; otherwise the scale is an input."""
    size = size or SIZES[0]
    out = sampling(steps, seed, batch, guidance_scale=3.5 if guidance else 1.0)
    out |= text(seed, batch, TEXT_DIM, POOLED_DIM, guidance and true_cfg)
    out |= {"height": size, "width": size, "true_cfg_scale": 3.0 if guidance and true_cfg else 1.0}
    if image:
        out |= {"image": picture("start", seed, batch, size), "strength": 0.7}
    return out


def _case(name: str, build: Any, inputs: Any, guidance: str = "batched", **kw: Any) -> Case:
    kw = {"sizes": SIZES, "denoisers": ("transformer",), **kw}
    return Case(name, "dit", build, inputs, guidance, images, **kw)


_flux_true_cfg = partial(_flux, guidance_embeds=False)
_flux_cfg_inputs = partial(_flux_inputs, true_cfg=True)
_flux_img2img = partial(_flux, FluxImg2ImgPipeline, guidance_embeds=False)
_flux_image_inputs = partial(_flux_inputs, true_cfg=True, image=True)
_sd3_img2img = partial(_sd3, StableDiffusion3Img2ImgPipeline)

PICTURE_CASES = [
    _case("pixart", _pixart, _masked_inputs),
    _case("dit", _dit, _dit_inputs, sizes=SIZES[:1]),
    _case("sd3", _sd3, _sd3_inputs),
    _case("sd3-img2img", _sd3_img2img, partial(_sd3_inputs, image=True)),
    _case("flux", _flux, _flux_inputs, "embedded"),
    _case("flux-cfg", _flux_true_cfg, _flux_cfg_inputs, "sequential"),
    _case("flux-img2img", _flux_img2img, _flux_image_inputs, "sequential"),
    _case("sana", _sana, _masked_inputs, sizes=(32, 64)),
]
