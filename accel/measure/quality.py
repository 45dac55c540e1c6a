"""How far one picture is from another. Pictures are ``(batch, channels, height, width)`` in 0 … 1."""

from __future__ import annotations

import torch

from accel.errors import AccelError
from accel.measure.extras import torchmetrics

CAP = 100.0
"""Distances in dB are cut off here where they are averaged: two equal pictures are infinitely close."""


def psnr(pictures: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Peak signal-to-noise ratio in dB of each picture, shape ``(batch,)``; ``inf`` for equal ones.

    ``10 · log10(1 / mean((a − b)²))``. Raises `AccelError` when the shapes differ or a picture is not finite.
    """
    check_pair(pictures, reference)
    error = (pictures.double() - reference.double()).square().flatten(1).mean(1)
    return -10 * torch.log10(error)


def ssim(pictures: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Structural similarity of each picture, shape ``(batch,)``, at most 1 (Wang et al., 2004).

    Raises `AccelError` as `psnr`, and where torchmetrics is missing.
    """
    check_pair(pictures, reference)
    measure = torchmetrics("torchmetrics.functional.image").structural_similarity_index_measure
    # Without a data range torchmetrics takes that of the pictures at hand, which makes results incomparable.
    values: torch.Tensor = measure(pictures.double(), reference.double(), data_range=1.0, reduction="none")
    return values.reshape(len(pictures))


SMALLEST = 176
"""Pixels a side that MS-SSIM takes: at the coarsest of its five scales there must be room for its window of 11."""


def ms_ssim(pictures: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Structural similarity over five scales of each picture, shape ``(batch,)``, at most 1 (Wang et al., 2003).

    Raises `AccelError` as `ssim`, and for pictures of fewer than `SMALLEST` pixels a side.
    """
    check_pair(pictures, reference)
    if min(pictures.shape[-2:]) < SMALLEST:
        raise AccelError(f"MS-SSIM takes pictures of {SMALLEST} pixels a side and more, not {_shape(pictures)}")
    measure = torchmetrics("torchmetrics.functional.image").multiscale_structural_similarity_index_measure
    values: torch.Tensor = measure(pictures.double(), reference.double(), data_range=1.0, reduction="none")
    return values.reshape(len(pictures))


def check_pair(pictures: torch.Tensor, reference: torch.Tensor) -> None:
    """Raise `AccelError` where two batches cannot be compared."""
    if pictures.shape != reference.shape:
        raise AccelError(
            f"only pictures of one shape can be compared, not {_shape(pictures)} and {_shape(reference)}: "
            "draw both at the same size and with the same prompts"
        )
    for name, batch in (("picture", pictures), ("reference picture", reference)):
        broken = [i for i, picture in enumerate(batch) if not torch.isfinite(picture).all()]
        if broken:
            raise AccelError(
                f"{name} {broken[0]} holds NaN or infinity, so nothing can be said about its quality: "
                "look for the step that produced it, often half precision in the decoder"
            )


def _shape(pictures: torch.Tensor) -> str:
    return "x".join(map(str, pictures.shape))
