"""Stage 1: the autoencoder, trained on rendered scenes and on close-ups of their objects."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from numpy.typing import NDArray
from torch import Tensor, nn

from accel.tiny.models import LATENT_LOGVAR
from accel.tiny.render import render
from accel.tiny.scenes import Scene, make_scene
from accel.tiny.training.loop import load_average
from accel.tiny.world import SIZE

CROP = 32
_LATENT_PENALTY = 1e-3
_EDGE_WEIGHT = 0.5


def to_tensor(images: NDArray[np.uint8]) -> Tensor:
    """``(B, H, W, 3)`` uint8 to ``(B, 3, H, W)`` float32 in [-1, 1]."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float().div(127.5).sub(1.0)


def close_up(scene: Scene, image: NDArray[np.uint8], rng: random.Random) -> NDArray[np.uint8]:
    """A 32 by 32 window round a random object, where the detail is."""
    x, y, _ = rng.choice([box for item in scene.objects for box in item.boxes])
    left, top = (min(max(v - CROP // 2 + rng.randint(-6, 6), 0), SIZE - CROP) for v in (x, y))
    return image[top : top + CROP, left : left + CROP]


def reconstruction_loss(output: Tensor, target: Tensor) -> Tensor:
    """Absolute plus squared error, plus the absolute error of the edges."""
    error = output - target
    across, down = error.diff(dim=-1).abs().mean(), error.diff(dim=-2).abs().mean()
    return error.abs().mean() + error.square().mean() + _EDGE_WEIGHT * (across + down)


class VaeTask:
    """Trains a whole autoencoder, or only its decoder on top of a frozen encoder."""

    def __init__(self, vae: AutoencoderKL, *, decoder_only: bool = False) -> None:
        self.vae = vae
        self.decoder_only = decoder_only
        if decoder_only:
            for part in (vae.encoder, vae.quant_conv):
                part.requires_grad_(False)

    def modules(self) -> Iterable[nn.Module]:
        """The autoencoder."""
        return (self.vae,)

    def loss(self, batch: int, seed: int) -> Tensor:
        """Reconstruction loss of ``batch`` whole scenes and four times as many close-ups."""
        rng = random.Random(seed)
        scenes = [make_scene(seed * 4096 + i) for i in range(2 * batch)]
        images = [render(scene) for scene in scenes]
        whole = np.stack(images[:batch])
        close = [close_up(s, im, rng) for _ in range(2) for s, im in zip(scenes, images, strict=True)]
        noise = torch.Generator().manual_seed(seed)
        return 0.4 * self._loss(whole, noise) + 0.6 * self._loss(np.stack(close), noise)

    def _loss(self, images: NDArray[np.uint8], generator: torch.Generator) -> Tensor:
        weight = self.vae.quant_conv.weight
        target = to_tensor(images).to(weight.device, weight.dtype)
        target = target.contiguous(memory_format=torch.channels_last)
        mean = self.vae.encode(target).latent_dist.mean
        noise = torch.randn(mean.shape, generator=generator).to(mean) * np.exp(LATENT_LOGVAR / 2)
        output = self.vae.decode(mean + noise).sample
        return reconstruction_loss(output, target) + _LATENT_PENALTY * mean.square().mean()


def make_task(make: Callable[[], AutoencoderKL], *, init: Path | None = None, decoder_only: bool = False) -> VaeTask:
    """The task of a run: fresh weights, or what fits of those of the pipeline (or run) folder ``init``."""
    vae = make()
    if init is not None:
        start_from(vae, AutoencoderKL.from_pretrained(init, subfolder="vae", torch_dtype=torch.float32))
    return VaeTask(vae, decoder_only=decoder_only)


def start_from(vae: AutoencoderKL, source: AutoencoderKL) -> None:
    """Give ``vae`` the weights of ``source``; where it halves the picture more often, all that still fit.

    Levels are counted from the picture inwards, which the decoder's numbers are not.
    """
    deeper = len(vae.config.block_out_channels) - len(source.config.block_out_channels)
    state = vae.state_dict()
    for name, value in source.state_dict().items():
        name = re.sub(r"up_blocks\.(\d+)", lambda level: f"up_blocks.{int(level[1]) + deeper}", name)
        if name in state and state[name].shape == value.shape:
            state[name] = value
    vae.load_state_dict(state)


def save(task: VaeTask, checkpoint: Path, out: Path) -> Path:
    """Write the moving average of a checkpoint as ``out/vae``, a diffusers model folder."""
    load_average(task.modules(), checkpoint)
    task.vae.save_pretrained(out / "vae")
    return out / "vae"


@torch.inference_mode()
def psnr(vae: AutoencoderKL, count: int = 256) -> float:
    """Reconstruction quality on held-out scenes, in dB over all their pixels."""
    scenes = [make_scene(i, held_out=True) for i in range(count)]
    images = to_tensor(np.stack([render(scene) for scene in scenes]))
    error = 0.0
    for chunk in images.split(32):
        output = vae.decode(vae.encode(chunk).latent_dist.mean).sample.clamp(-1, 1)
        error += float((output - chunk).square().sum())
    return 10 * np.log10(4 / (error / images.numel()))
