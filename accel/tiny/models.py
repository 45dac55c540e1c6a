"""The parts of the bundled pipeline, untrained: all standard diffusers and transformers classes."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from accel.tiny.tokens import MAX_TOKENS

LATENT_LOGVAR = -6.0
"""Log variance of the latent posterior: a fixed, small noise the decoder is trained against."""

TEXT_WIDTH = 128


def make_vae(channels: tuple[int, ...] = (16, 32, 64), latent: int = 4, groups: int = 8) -> AutoencoderKL:
    """An autoencoder of pictures ``(B, 3, 64, 64)`` in [-1, 1], by default f4 with latents ``(B, 4, 16, 16)``.

    The posterior's variance is not learnt: its half of the last layer is set to zero weights and a
    constant bias, so that sampling the posterior adds the noise the decoder knows.
    """
    depth = len(channels)
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * depth,
        up_block_types=("UpDecoderBlock2D",) * depth,
        block_out_channels=channels,
        layers_per_block=1,
        latent_channels=latent,
        norm_num_groups=groups,
        sample_size=64,
        mid_block_add_attention=False,
        force_upcast=False,
        shift_factor=0.0,
    )
    with torch.no_grad():
        vae.quant_conv.weight[latent:] = 0.0
        vae.quant_conv.bias[latent:] = LATENT_LOGVAR
    return vae


def make_unet(channels: tuple[int, ...] = (64, 128, 192), groups: int = 16) -> UNet2DConditionModel:
    """The denoiser: ``(B, 4, 16, 16)`` latents, text attention only at 8 by 8 and in the middle.

    A pooled summary of the text joins the time embedding, as in SDXL and DeepFloyd IF: it reaches
    every block, so colours and backgrounds are followed long before attention has learnt to bind.
    """
    return UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        block_out_channels=channels,
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=TEXT_WIDTH,
        addition_embed_type="text",
        addition_embed_type_num_heads=4,
        attention_head_dim=tuple(range(1, len(channels) + 1)),
        norm_num_groups=groups,
    )


def make_text_encoder(tokenizer: CLIPTokenizer, layers: int = 2) -> CLIPTextModel:
    """A small CLIP text model over the closed vocabulary; ``(B, T)`` ids to ``(B, T, 128)``.

    Word embeddings start with unit variance instead of CLIP's 0.02: every word is then its own
    direction in the output from the first step. With the small start the encoder settled on telling
    backgrounds apart and mapped all objects to nearly one point, which the denoiser learnt to ignore.
    """
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=TEXT_WIDTH,
        intermediate_size=4 * TEXT_WIDTH,
        projection_dim=TEXT_WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=MAX_TOKENS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = CLIPTextModel(config)
    nn.init.normal_(model.get_input_embeddings().weight, std=1.0)
    return model


def make_scheduler(**overrides: Any) -> DDIMScheduler:
    """DDIM with v-prediction; the wide noise range leaves no trace of the background colour."""
    settings: dict[str, Any] = {
        "num_train_timesteps": 1000,
        "beta_start": 0.00085,
        "beta_end": 0.02,
        "beta_schedule": "scaled_linear",
        "prediction_type": "v_prediction",
        "timestep_spacing": "trailing",
        "clip_sample": False,
        "set_alpha_to_one": False,
        "steps_offset": 1,
    }
    return DDIMScheduler(**(settings | overrides))
