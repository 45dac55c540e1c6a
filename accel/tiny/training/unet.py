"""Stage 3: the denoiser, trained on the encoded scenes and the frozen text encoder's reading of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor
from torch import Tensor, nn
from transformers import CLIPTextModel

from accel.tiny.models import make_scheduler, make_unet
from accel.tiny.tokens import make_tokenizer
from accel.tiny.training.latents import load_latents, sample, tokenize
from accel.tiny.training.text import load as load_text_encoder

_FOCUS_SHARE = 0.5
_FOCUS_MEAN, _FOCUS_SPREAD = 0.62, 0.17


class UnetTask:
    """Learns v from noisy latents and token ids.

    Args:
        unet: The denoiser.
        text_encoder: Read, not trained.
        data: What `accel.tiny.training.latents.encode` wrote.
        empty: Token ids of the empty prompt, ``(40,)``.
    """

    def __init__(
        self, unet: UNet2DConditionModel, text_encoder: CLIPTextModel, data: dict[str, Tensor], empty: Tensor
    ) -> None:
        # Fused attention's backward pass is slow on CPUs at these sizes; the plain one is not.
        unet.set_attn_processor(AttnProcessor())
        self.unet, self.text_encoder = unet, text_encoder.eval()
        self.data, self.empty = data, empty
        self.alphas = make_scheduler().alphas_cumprod

    def modules(self) -> Iterable[nn.Module]:
        """The denoiser."""
        return (self.unet,)

    def loss(self, batch: int, seed: int) -> Tensor:
        """Mean squared error of the predicted v over ``batch`` samples drawn by ``seed``."""
        generator = torch.Generator().manual_seed(seed)
        clean, tokens = sample(self.data, self.empty, batch, generator)
        times = draw_timesteps(batch, generator)
        noise = torch.randn(clean.shape, generator=generator)
        signal = self.alphas[times].sqrt().view(-1, 1, 1, 1)
        sigma = (1 - self.alphas[times]).sqrt().view(-1, 1, 1, 1)
        noisy, target = signal * clean + sigma * noise, signal * noise - sigma * clean
        prediction = self._predict(noisy, times, tokens)
        return F.mse_loss(prediction.float(), target.to(prediction.device))

    def _predict(self, noisy: Tensor, times: Tensor, tokens: Tensor) -> Tensor:
        device, dtype = self.unet.device, self.unet.dtype
        noisy = noisy.to(device, dtype).contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            text = self.text_encoder.to(device)(tokens.to(device)).last_hidden_state
        return self.unet(noisy, times.to(device), encoder_hidden_states=text.to(dtype)).sample


def draw_timesteps(batch: int, generator: torch.Generator, train_steps: int = 1000) -> Tensor:
    """Timesteps ``(batch,)``: half uniform, half where only the caption tells what to draw.

    An object covers 100 to 200 latent values, so it shows through the noise up to about 0.75 of
    the schedule; below that the noisy latents give its colour away and the text is not needed.
    """
    uniform = torch.rand(batch, generator=generator)
    focus = _FOCUS_MEAN + _FOCUS_SPREAD * torch.randn(batch, generator=generator)
    pick = torch.rand(batch, generator=generator) < _FOCUS_SHARE
    chosen = torch.where(pick & (focus > 0) & (focus < 1), focus, uniform)
    return (chosen * train_steps).long()


def make_task(out: Path, *, init: Path | None = None) -> UnetTask:
    """The task of a run: a fresh denoiser, or that of the pipeline ``init``."""
    data, text_encoder = load_latents(out), load_text_encoder(out)
    text_encoder.set_attn_implementation("eager")
    if init is None:
        unet = make_unet()
    else:
        unet = UNet2DConditionModel.from_pretrained(init, subfolder="unet", torch_dtype=torch.float32)
    (empty,) = tokenize(make_tokenizer(), [""])
    return UnetTask(unet, text_encoder, data, empty)
