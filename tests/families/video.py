"""Families that make video: Wan, LTX and CogVideoX."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from diffusers import (
    AutoencoderKLCogVideoX,
    AutoencoderKLLTXVideo,
    AutoencoderKLWan,
    CogVideoXDDIMScheduler,
    CogVideoXPipeline,
    CogVideoXTransformer3DModel,
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    LTXPipeline,
    LTXVideoTransformer3DModel,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)

from tests.families.core import Case, frames, quiet
from tests.families.seeding import TOKENS, masks, sampling, seed_weights, text

TEXT_DIM = 32


def _wan_transformer(seed: int) -> WanTransformer3DModel:
    model = WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=TEXT_DIM,
        freq_dim=32,
        ffn_dim=48,
        num_layers=4,
        rope_max_seq_len=32,
    )
    return seed_weights(model, seed)


def _wan(experts: int = 1) -> DiffusionPipeline:
    """Wan 2.1 with one denoiser, Wan 2.2 with one for high and one for low noise."""
    latents = {"z_dim": 4, "latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}
    coder = AutoencoderKLWan(base_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, **latents)
    second = experts == 2
    pipe = WanPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=seed_weights(coder, 21),
        scheduler=UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0),
        transformer=_wan_transformer(22),
        transformer_2=_wan_transformer(23) if second else None,
        boundary_ratio=0.8 if second else None,
    )
    return quiet(pipe)


def _ltx_vae() -> AutoencoderKLLTXVideo:
    """Compresses space by 4 and time by 4."""
    scaling = (True, True, False, False)
    config: dict[str, Any] = {"latent_channels": 8, "patch_size": 1}
    for side in ("", "decoder_"):
        config[f"{side}block_out_channels"] = (8, 8, 8, 8)
        config[f"{side}layers_per_block"] = (1, 1, 1, 1, 1)
        config[f"{side}spatio_temporal_scaling"] = scaling
    return seed_weights(AutoencoderKLLTXVideo(**config), 24)


def _ltx() -> DiffusionPipeline:
    model = LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=16,
        cross_attention_dim=32,
        num_layers=4,
        caption_channels=TEXT_DIM,
    )
    pipe = LTXPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=_ltx_vae(),
        transformer=seed_weights(model, 25),
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
    )
    return quiet(pipe)


def _cogvideox() -> DiffusionPipeline:
    model = CogVideoXTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        time_embed_dim=16,
        text_embed_dim=TEXT_DIM,
        num_layers=4,
        sample_width=8,
        sample_height=8,
        sample_frames=9,
        max_text_seq_length=TOKENS,
        use_rotary_positional_embeddings=True,
    )
    coder = AutoencoderKLCogVideoX(
        block_out_channels=(8, 8, 8, 8), latent_channels=4, layers_per_block=1, norm_num_groups=2
    )
    pipe = CogVideoXPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=seed_weights(coder, 26),
        transformer=seed_weights(model, 27),
        scheduler=CogVideoXDDIMScheduler(
            prediction_type="v_prediction",
            rescale_betas_zero_snr=True,
            snr_shift_scale=3.0,
            timestep_spacing="trailing",
        ),
    )
    return quiet(pipe)


def _video_inputs(
    steps: int = 6,
    batch: int = 1,
    size: int | None = None,
    guidance: bool = True,
    seed: int = 0,
    default_size: int = 64,
    masked: bool = False,
) -> dict[str, Any]:
    """Nine frames, which all three families compress to three."""
    size = size or default_size
    out = sampling(steps, seed, batch, guidance_scale=4.0 if guidance else 1.0)
    out |= text(seed, batch, TEXT_DIM, guidance=guidance)
    out |= masks(batch, guidance) if masked else {}
    return {**out, "height": size, "width": size, "num_frames": 9}


def _case(
    name: str,
    build: Callable[[], DiffusionPipeline],
    inputs: Callable[..., dict[str, Any]],
    guidance: str,
    sizes: tuple[int, ...] = (64, 96),
    denoisers: tuple[str, ...] = ("transformer",),
) -> Case:
    return Case(name, "dit", build, inputs, guidance, frames, sizes, denoisers)


_two_experts = partial(_wan, experts=2)
_experts = ("transformer", "transformer_2")
_ltx_inputs = partial(_video_inputs, default_size=32, masked=True)

VIDEO_CASES = [
    _case("wan", _wan, _video_inputs, "sequential"),
    _case("wan-two-experts", _two_experts, _video_inputs, "sequential", denoisers=_experts),
    _case("ltx", _ltx, _ltx_inputs, "batched", sizes=(32, 64)),
    _case("cogvideox", _cogvideox, _video_inputs, "batched"),
]
