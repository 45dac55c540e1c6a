"""Damage that a denoiser and an autoencoder do to a picture without changing what it shows.

Every function takes and returns ``(B, 3, H, W)`` float pictures in about [0, 1]; each picture of
the batch draws its own strength. All randomness comes from the generator.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_CLEAN = 0.15
"""Share of the pictures that stay as drawn."""


def weather(pictures: Tensor, generator: torch.Generator) -> Tensor:
    """All kinds of damage together, in the order in which a pipeline does it."""
    damaged = pictures
    for kind in (warp, stain, soften, shift_colours, add_noise):
        damaged = kind(damaged, generator)
    clean = _uniform(pictures, generator, 0, 1) < _CLEAN
    return torch.where(clean, pictures, damaged).clamp(0, 1)


def _uniform(pictures: Tensor, generator: torch.Generator, low: float, high: float, channels: int = 1) -> Tensor:
    """One number per picture (and channel), ``(B, channels, 1, 1)``."""
    return torch.rand(len(pictures), channels, 1, 1, generator=generator) * (high - low) + low


def _smooth_field(pictures: Tensor, generator: torch.Generator, cells: int, channels: int) -> Tensor:
    """Smooth normal noise, ``(B, channels, H, W)``: a coarse grid of ``cells`` squared, enlarged."""
    coarse = torch.randn(len(pictures), channels, cells, cells, generator=generator)
    return F.interpolate(coarse, size=pictures.shape[-2:], mode="bicubic", align_corners=True)


def warp(pictures: Tensor, generator: torch.Generator) -> Tensor:
    """Bend outlines by up to about 1.5 pixels."""
    size = pictures.shape[-1]
    strength = _uniform(pictures, generator, 0, 0.9)
    bend = (_smooth_field(pictures, generator, 8, 2) * strength).clamp(-2, 2) * 2 / size
    steps = (torch.arange(size) + 0.5) * 2 / size - 1
    grid = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), dim=-1) + bend.permute(0, 2, 3, 1)
    return F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)


def stain(pictures: Tensor, generator: torch.Generator) -> Tensor:
    """Up to three soft spots of any colour, too small to be objects."""
    steps = torch.arange(pictures.shape[-1])
    for _ in range(3):
        x, y = (_uniform(pictures, generator, 0, pictures.shape[-1]) for _ in range(2))
        radius, strength = _uniform(pictures, generator, 1.0, 3.0), _uniform(pictures, generator, -0.7, 0.7)
        distance = (steps - x).square() + (steps[:, None] - y).square()
        cover = strength.clamp(min=0) * torch.exp(-distance / (2 * radius.square()))
        pictures = torch.lerp(pictures, _uniform(pictures, generator, 0, 1, 3).expand_as(pictures), cover)
    return pictures


def soften(pictures: Tensor, generator: torch.Generator) -> Tensor:
    """Low-pass of up to 1.6 pixels, brightness less than colour, then some 2 by 2 blockiness or sharpening."""
    light = pictures.mean(1, keepdim=True)
    sigma = _uniform(pictures, generator, 0.05, 1.6)
    light, colour = blur(light, 0.75 * sigma), blur(pictures - light, sigma)
    soft = light + colour
    blocks = F.interpolate(F.avg_pool2d(soft, 2), scale_factor=2.0, mode="nearest")
    return torch.lerp(soft, blocks, _uniform(pictures, generator, -0.7, 0.7))


def blur(pictures: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian low-pass, ``sigma`` ``(B, 1, 1, 1)`` in pixels."""
    batch, channels = pictures.shape[:2]
    steps = torch.arange(-4, 5, dtype=pictures.dtype)
    kernel = torch.exp(-steps.square() / (2 * sigma.reshape(-1, 1).square()))
    kernel = (kernel / kernel.sum(1, keepdim=True)).repeat_interleave(channels, 0)[:, None]
    padded = F.pad(pictures, (4, 4, 4, 4), mode="replicate").reshape(
        1, batch * channels, *(s + 8 for s in pictures.shape[-2:])
    )
    across = F.conv2d(padded, kernel[:, :, None], groups=batch * channels)
    return F.conv2d(across, kernel[..., None], groups=batch * channels).reshape(pictures.shape)


def shift_colours(pictures: Tensor, generator: torch.Generator) -> Tensor:
    """Paler or stronger colours, contrast and small casts, far less than the step between two colours."""
    gray = pictures.mean(1, keepdim=True)
    pictures = gray + (pictures - gray) * _uniform(pictures, generator, 0.75, 1.15)
    pictures = 0.5 + (pictures - 0.5) * _uniform(pictures, generator, 0.85, 1.15)
    return pictures + _uniform(pictures, generator, -0.04, 0.04, 3)


def add_noise(pictures: Tensor, generator: torch.Generator) -> Tensor:
    """Grain and slow unevenness."""
    grain = torch.randn(pictures.shape, generator=generator) * _uniform(pictures, generator, 0, 0.05)
    uneven = _smooth_field(pictures, generator, 10, 3) * _uniform(pictures, generator, 0, 0.04)
    return pictures + grain + uneven
