"""How far one picture is from another. Pictures are ``(batch, channels, height, width)`` in 0 … 1."""

from __future__ import annotations

import torch

from accel.errors import AccelError


def psnr(pictures: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Peak signal-to-noise ratio in dB of each picture, shape ``(batch,)``; ``inf`` for equal ones.

    ``10 · log10(1 / mean((a − b)²))``. Raises `AccelError` when the shapes differ.
    """
    if pictures.shape != reference.shape:
        raise AccelError(f"PSNR compares pictures of one shape, not {_shape(pictures)} and {_shape(reference)}")
    error = (pictures.double() - reference.double()).square().flatten(1).mean(1)
    return -10 * torch.log10(error)


def _shape(pictures: torch.Tensor) -> str:
    return "x".join(map(str, pictures.shape))
