"""The part of a noisy latent that is picture: a Wiener filter for a signal with a power-law spectrum.

A latent x = a·signal + b·noise, of which the signal's power falls with the frequency f as |f|^-β, is nearest to the
signal, in the mean square, after each frequency was multiplied by

    H(f) ∝ S(f) / (S(f) + ρ²)        S(f) = |f|^-β, scaled to mean 1        ρ = b / a

Early in a run (large ρ) it passes only coarse structure, late in a run everything. H is scaled to mean 1, so that
changes are comparable along a run. SeaCache (arXiv:2602.18993) tells from it how much of a change is not just noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def space(shape: Sequence[int], channels: int | None) -> tuple[int, ...]:
    """The dimensions of one latent that are space or time: all but the one with the ``channels``.

    Where none has that many, it is the first of three and more (pictures), and the last of two (tokens). Of two that
    have, likewise.
    """
    last = len(shape) - 1
    fitting = [i for i, size in enumerate(shape) if size == channels] or [0, last]
    chosen = fitting[0] if last > 1 else fitting[-1]
    return tuple(i for i in range(len(shape)) if i != chosen)


def gain(shape: Sequence[int], ratio: float, power: float, device: torch.device | None = None) -> torch.Tensor:
    """H for frequencies as `torch.fft.fftn` orders them, of this shape; the constant counts as the lowest of them."""
    axes = [torch.fft.fftfreq(size, device=device) for size in shape]
    frequency = torch.stack([f.square() for f in torch.meshgrid(*axes, indexing="ij")]).sum(0).sqrt()
    signal = frequency.clamp_min(1 / max(*shape, 2)) ** -power
    signal = signal / signal.mean()
    passed = signal / (signal + ratio**2)
    return passed / passed.mean()


def filtered(latent: torch.Tensor, dims: Sequence[int], ratio: float, power: float) -> torch.Tensor:
    """``latent`` in float32, filtered along ``dims``."""
    passed = gain([latent.shape[i] for i in dims], ratio, power, latent.device)
    shape = [latent.shape[i] if i in dims else 1 for i in range(latent.ndim)]
    spectrum = torch.fft.fftn(latent.float(), dim=tuple(dims)) * passed.reshape(shape)
    return torch.fft.ifftn(spectrum, dim=tuple(dims)).real
