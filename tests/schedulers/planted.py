"""Curves of a planted world: each prompt has a difficulty, which its features tell or do not."""

from __future__ import annotations

from typing import Any

import numpy as np

from accel.schedulers.difficulty.curves import Curves

COUNTS = (4, 6, 8, 10, 12, 16, 20)


def planted(
    prompts: int = 96, seeds: int = 8, spread: float = 0.35, noise: float = 0.12, tells: bool = True, seed: int = 0
) -> Curves:
    """``log N* = log 9 + spread · difficulty + noise``, and 20 dB are won for each e-fold of steps beyond 30 dB.

    Args:
        prompts: How many, in groups of two.
        seeds: Pictures of each.
        spread: Of needs between prompts.
        noise: Of needs within a prompt.
        tells: Are the features those that difficulty is made of?
        seed: Of this world.
    """
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(prompts, 12))
    known = features @ np.full(12, 12**-0.5)
    difficulty = known if tells else draw.normal(size=prompts)
    need = np.log(9) + spread * difficulty[:, None] + noise * draw.normal(size=(prompts, seeds))
    psnr = 30 + 20 * (np.log(COUNTS) - need[..., None])
    return Curves(
        counts=COUNTS,
        prompts=tuple(f"prompt {'very ' * int(draw.integers(4))}{number}" for number in range(prompts)),
        groups=tuple(f"group {number // 2}" for number in range(prompts)),
        psnr=psnr.astype(np.float32),
        right=np.zeros(0, bool),
        long_right=np.zeros(0, bool),
        features=features.astype(np.float32),
        about=ABOUT,
    )


ABOUT: dict[str, Any] = {
    "solver": "own",
    "reference": 64,
    "dtype": "float32",
    "machine": {},
    "weights": "00000000",
    "call": {"guidance_scale": 4.0, "height": None},
    "fingerprint": {
        "denoiser": "UNet2DConditionModel",
        "config": "0" * 16,
        "scheduler": "DDIMScheduler",
        "steps": 64,
        "libraries": {"torch": "0", "diffusers": "0"},
        "quality": {},
    },
}
