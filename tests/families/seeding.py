"""Seeded weights and seeded inputs: everything random in the tiny pipelines comes from here."""

from __future__ import annotations

import zlib
from typing import Any, TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)

TOKENS = 8
"""Length of every prompt embedding."""


def _std(owner: nn.Module, name: str, value: torch.Tensor) -> float:
    """Standard deviation of a parameter, chosen so that signals keep their size through a block."""
    if name == "bias":
        return 0.05
    if isinstance(owner, nn.Embedding) or (value.ndim == 1 and "Norm" not in type(owner).__name__):
        return 1.0
    if value.ndim == 1:
        return 0.1
    if isinstance(owner, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return float(value[0].numel()) ** -0.5
    return 0.3


@torch.no_grad()
def seed_weights(module: Module, seed: int, damped: str = "") -> Module:
    """Fill every parameter of ``module`` with seeded normal numbers, in place.

    Layers that diffusers starts at zero (ControlNet's output convolutions, gates, output
    projections) get ordinary weights too: otherwise the network ignores what it is told.

    Args:
        module: The module to fill.
        seed: Seed of the numbers; they depend on each parameter's name, not on the order.
        damped: Name of a submodule that gets a quarter of the usual weights, for the output layer
            of a network whose residual stream grows freely.
    """
    for path, owner in module.named_modules():
        for name, value in owner.named_parameters(recurse=False):
            full = f"{path}.{name}"
            gain = 0.25 if path == damped and damped else 1.0
            source = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{full}".encode()))
            noise = torch.randn(value.shape, generator=source)
            is_norm_scale = name == "weight" and "Norm" in type(owner).__name__
            value.copy_(noise * gain * _std(owner, name, value) + float(is_norm_scale))
    return module


def normal(tag: str, seed: int, *shape: int) -> torch.Tensor:
    """Seeded normal numbers; other tags and seeds give other numbers."""
    source = torch.Generator().manual_seed(zlib.crc32(f"{tag}/{seed}".encode()))
    return torch.randn(shape, generator=source)


def batched(tag: str, seed: int, batch: int, *shape: int) -> torch.Tensor:
    """``normal`` for each sample of a batch; sample ``i`` is that of ``seed + i``."""
    return torch.stack([normal(tag, seed + i, *shape) for i in range(batch)])


def text(seed: int, batch: int, dim: int, pooled: int = 0, guidance: bool = True) -> dict[str, Any]:
    """Prompt embeddings, and those of the negative prompt when guidance is on."""
    signs = ("", "negative_") if guidance else ("",)
    out: dict[str, Any] = {}
    for sign in signs:
        out[f"{sign}prompt_embeds"] = batched(f"{sign}text", seed, batch, TOKENS, dim)
        if pooled:
            out[f"{sign}pooled_prompt_embeds"] = batched(f"{sign}pooled", seed, batch, pooled)
    return out


def masks(batch: int, guidance: bool = True) -> dict[str, torch.Tensor]:
    """Attention masks: the prompt fills all its places but one, the negative prompt half of them."""
    out = {"prompt_attention_mask": _mask(batch, TOKENS - 1)}
    if guidance:
        out["negative_prompt_attention_mask"] = _mask(batch, TOKENS // 2)
    return out


def _mask(batch: int, length: int) -> torch.Tensor:
    return (torch.arange(TOKENS) < length).long().expand(batch, TOKENS)


def picture(tag: str, seed: int, batch: int, size: int) -> torch.Tensor:
    """Seeded RGB pictures in [0, 1], smooth over four pixels."""
    coarse = batched(tag, seed, batch, 3, size // 4, size // 4).sigmoid()
    return nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")


def sampling(steps: int, seed: int, batch: int, **more: Any) -> dict[str, Any]:
    """The arguments all pipelines share: steps, one generator per sample, latent output."""
    generators = [torch.Generator().manual_seed(seed + i) for i in range(batch)]
    generator = generators if batch > 1 else generators[0]
    shared = {"num_inference_steps": steps, "generator": generator, "output_type": "latent"}
    return {**shared, **more}
