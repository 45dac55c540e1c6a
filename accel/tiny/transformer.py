"""The parts of `tiny-dit`, untrained: a small Stable Diffusion 3, all standard diffusers and transformers classes."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel
from diffusers.models.normalization import AdaLayerNormContinuous, AdaLayerNormZero
from torch import nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    T5Config,
    T5EncoderModel,
    T5TokenizerFast,
)

from accel.tiny.models import TEXT_WIDTH, make_vae

SILENT_WIDTH = 8
"""Width of the second text encoder, which says nothing, and inside of the third one, which says nothing either."""

_HEADS, _HEAD_WIDTH = 3, 64
_LAYERS = 7
_LARGEST = 32


def make_dit_vae() -> AutoencoderKL:
    """An f8 autoencoder, ``(B, 3, 64, 64)`` to latents ``(B, 16, 8, 8)``: as many numbers as the UNet's f4.

    Stable Diffusion 3's inpainting pipeline takes nothing but 16 channels, Stable Diffusion's nothing but 4.
    """
    return make_vae((16, 32, 64, 64), latent=16)


def make_dit(layers: int = _LAYERS) -> SD3Transformer2DModel:
    """The denoiser: ``(B, 16, 8, 8)`` latents, every one of their 64 places a token (MMDiT, Esser et al. 2024).

    Gates and output start at zero, so that every block starts as the identity (adaLN-Zero, Peebles & Xie 2023).
    """
    width = _HEADS * _HEAD_WIDTH
    dit = SD3Transformer2DModel(
        sample_size=8,
        patch_size=1,
        in_channels=16,
        out_channels=16,
        num_layers=layers,
        attention_head_dim=_HEAD_WIDTH,
        num_attention_heads=_HEADS,
        joint_attention_dim=TEXT_WIDTH + SILENT_WIDTH,
        caption_projection_dim=width,
        pooled_projection_dim=TEXT_WIDTH + SILENT_WIDTH,
        pos_embed_max_size=_LARGEST,
        qk_norm="rms_norm",
    )
    gates = [m.linear for m in dit.modules() if isinstance(m, AdaLayerNormZero | AdaLayerNormContinuous)]
    for layer in (*gates, dit.proj_out):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    return dit


def make_flow_scheduler(shift: float = 3.0) -> FlowMatchEulerDiscreteScheduler:
    """Euler steps along straight paths, ``x_sigma = (1 - sigma) x_0 + sigma noise``."""
    return FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=shift)


def with_projection(text_encoder: CLIPTextModel) -> CLIPTextModelWithProjection:
    """The bundled text encoder as Stable Diffusion 3 reads one, which skips the last layer.

    So one more layer is put on top that passes its input on unchanged, and the pooled token is projected by the
    identity: both readings are the encoder's own.
    """
    own = text_encoder.config.to_dict()
    config = CLIPTextConfig(**{**own, "num_hidden_layers": own["num_hidden_layers"] + 1})
    model = CLIPTextModelWithProjection(config)
    model.text_model.load_state_dict(text_encoder.state_dict(), strict=False)
    _silenced(model.text_model.encoder.layers[-1])  # what is left of a layer without weights is its residual path
    with torch.no_grad():
        model.text_projection.weight.copy_(torch.eye(config.projection_dim))
    return model.eval()


def make_silent_text_encoder(like: CLIPTextModel) -> CLIPTextModelWithProjection:
    """The second text encoder, which the pipeline insists on: as small as can be, and all zeros."""
    small = {"hidden_size": SILENT_WIDTH, "intermediate_size": SILENT_WIDTH, "projection_dim": SILENT_WIDTH}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 1}
    return _silenced(CLIPTextModelWithProjection(CLIPTextConfig(**{**like.config.to_dict(), **small, **layers})))


def make_silent_t5(tokenizer: T5TokenizerFast) -> T5EncoderModel:
    """The third text encoder: zeros, as the pipeline itself puts in its place where it is left out.

    It could be left out of the object, but a folder without it does not load.
    """
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=TEXT_WIDTH + SILENT_WIDTH,
        d_kv=SILENT_WIDTH,
        d_ff=SILENT_WIDTH,
        num_layers=1,
        num_heads=1,
    )
    return _silenced(T5EncoderModel(config))


def make_silent_t5_tokenizer() -> T5TokenizerFast:
    """A tokenizer that knows no word."""
    return T5TokenizerFast(vocab=[(piece, 0.0) for piece in ("<pad>", "</s>", "<unk>", "▁")], extra_ids=0)


def _silenced(model: nn.Module) -> Any:
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model.eval()
