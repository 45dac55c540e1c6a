"""Stage 3 of `tiny-dit`: its denoiser, trained by flow matching on the encoded scenes and the frozen text encoder."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import SD3Transformer2DModel
from diffusers.models.attention_processor import Attention
from torch import Tensor, nn
from transformers import CLIPTextModelWithProjection

import accel.tiny
from accel.tiny.tokens import make_tokenizer
from accel.tiny.training.latents import load_latents, sample, tokenize
from accel.tiny.training.text import load as load_text_encoder
from accel.tiny.transformer import SILENT_WIDTH, make_dit, with_projection

SILENT_TOKENS = 256
"""Tokens of the third text encoder, by default; here they are all zero."""

_FOCUS_SHARE = 0.5
_FOCUS_MEAN, _FOCUS_SPREAD = 1.2, 0.9


class MergedZeros:
    """Joint attention in which the last text token stands for `SILENT_TOKENS` equal ones.

    Equal tokens without a position stay equal in every layer. A key that is there n times has n times its weight:
    softmax over n copies is softmax over one with ``log n`` added to its logit. Written with plain products because
    the fused attention's backward pass is slow on CPUs at these sizes.
    """

    def __init__(self, count: int = SILENT_TOKENS) -> None:
        self.weight = math.log(count)

    def __call__(
        self, attn: Attention, hidden_states: Tensor, encoder_hidden_states: Tensor, **_: object
    ) -> tuple[Tensor, Tensor]:
        """Picture tokens ``(B, N, C)`` and text tokens ``(B, T, C)``, both attended to by both."""
        picture, text = hidden_states, encoder_hidden_states
        query, key, value = (
            torch.cat([_heads(attn, own(picture), norm), _heads(attn, added(text), added_norm)], dim=2)
            for own, added, norm, added_norm in (
                (attn.to_q, attn.add_q_proj, attn.norm_q, attn.norm_added_q),
                (attn.to_k, attn.add_k_proj, attn.norm_k, attn.norm_added_k),
                (attn.to_v, attn.add_v_proj, None, None),
            )
        )
        logits = (query * attn.scale) @ key.transpose(-1, -2)
        last = torch.arange(logits.shape[-1], device=logits.device) == logits.shape[-1] - 1
        mixed = ((logits + self.weight * last).softmax(-1) @ value).transpose(1, 2).flatten(2)
        picture, text = mixed.split([picture.shape[1], text.shape[1]], dim=1)
        return attn.to_out[0](picture), text if attn.context_pre_only else attn.to_add_out(text)


def _heads(attn: Attention, tokens: Tensor, norm: nn.Module | None) -> Tensor:
    """``(B, N, C)`` to normed ``(B, heads, N, C / heads)``."""
    parts = tokens.unflatten(-1, (attn.heads, -1)).transpose(1, 2)
    return norm(parts) if norm is not None else parts


class DitTask:
    """Learns the velocity ``noise - x_0`` from noisy latents and token ids.

    Args:
        dit: The denoiser.
        text_encoder: Read, not trained.
        data: What `accel.tiny.training.latents.encode` wrote.
        empty: Token ids of the empty prompt, ``(40,)``.
    """

    def __init__(
        self,
        dit: SD3Transformer2DModel,
        text_encoder: CLIPTextModelWithProjection,
        data: dict[str, Tensor],
        empty: Tensor,
    ) -> None:
        dit.set_attn_processor(MergedZeros())
        self.dit, self.text_encoder = dit, text_encoder.eval()
        self.data, self.empty = data, empty

    def modules(self) -> Iterable[nn.Module]:
        """The denoiser."""
        return (self.dit,)

    def loss(self, batch: int, seed: int) -> Tensor:
        """Mean squared error of the predicted velocity over ``batch`` samples drawn by ``seed``."""
        generator = torch.Generator().manual_seed(seed)
        clean, tokens = sample(self.data, self.empty, batch, generator)
        sigma = draw_sigmas(batch, generator)
        noise = torch.randn(clean.shape, generator=generator)
        mix = sigma.view(-1, 1, 1, 1)
        prediction = self._predict((1 - mix) * clean + mix * noise, sigma, tokens)
        return F.mse_loss(prediction.float(), (noise - clean).to(prediction.device))

    def _predict(self, noisy: Tensor, sigma: Tensor, tokens: Tensor) -> Tensor:
        device, dtype = self.dit.device, self.dit.dtype
        with torch.no_grad():
            read = self.text_encoder.to(device)(tokens.to(device), output_hidden_states=True)
        # The silent encoder's channels, and the one token that stands for the missing ones.
        text = F.pad(read.hidden_states[-2], (0, SILENT_WIDTH, 0, 1))
        pooled = F.pad(read.text_embeds, (0, SILENT_WIDTH))
        return self.dit(noisy.to(device, dtype), text.to(dtype), pooled.to(dtype), 1000 * sigma.to(device)).sample


def draw_sigmas(batch: int, generator: torch.Generator) -> Tensor:
    """Noise levels ``(batch,)``: half uniform, half logit-normal where only the caption tells what to draw."""
    uniform = torch.rand(batch, generator=generator)
    focus = torch.sigmoid(_FOCUS_MEAN + _FOCUS_SPREAD * torch.randn(batch, generator=generator))
    return torch.where(torch.rand(batch, generator=generator) < _FOCUS_SHARE, focus, uniform)


def make_task(out: Path, *, init: Path | None = None) -> DitTask:
    """The task of a run: a fresh denoiser, or that of the pipeline ``init``; the text encoder is that of `tiny`."""
    text_encoder = load_text_encoder(accel.tiny.path("tiny"))
    text_encoder.set_attn_implementation("eager")
    if init is None:
        dit = make_dit()
    else:
        dit = SD3Transformer2DModel.from_pretrained(init, subfolder="transformer", torch_dtype=torch.float32)
    (empty,) = tokenize(make_tokenizer(), [""])
    return DitTask(dit, with_projection(text_encoder), load_latents(out), empty)
