"""One line on, one line off: the same prompt and seed, plain, accelerated, and plain again."""

from __future__ import annotations

import torch

import accel

pipe = accel.load("tiny")


def draw() -> torch.Tensor:
    """One picture, ``(1, 3, 64, 64)`` in 0 … 1."""
    seed = torch.Generator().manual_seed(7)
    return pipe("two green squares and a red star", generator=seed, guidance_scale=4.0, output_type="pt").images


plain = draw()

handle = accel.accelerate(pipe, "balanced")
fast = draw()
print(handle.report())
handle.remove()

print("largest difference of a pixel:", float((plain - fast).abs().max()))
print("bit-identical after removal:", torch.equal(plain, draw()))
