"""The bundled pipeline as a case. What its pictures look like is tested elsewhere; here only the sizes matter."""

from __future__ import annotations

from typing import Any

from diffusers import DiffusionPipeline

import accel
from tests.families.core import Case, images, quiet
from tests.families.seeding import sampling


def _build() -> DiffusionPipeline:
    return quiet(accel.load("tiny", accel.Plan()))


def _inputs(
    steps: int = 4,
    batch: int = 1,
    size: int | None = None,
    guidance: bool = True,
    seed: int = 0,
) -> dict[str, Any]:
    out = sampling(steps, seed, batch, guidance_scale=4.0 if guidance else 1.0, prompt=["a red star"] * batch)
    return {**out, "height": size or 32, "width": size or 32}


BUNDLED_CASE = Case("tiny", "unet", _build, _inputs, "batched", images)
