"""Plain against accelerated, on one seed; and both against what the plain pipeline makes of the plan's time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from accel.app.limits import Asked
from accel.app.running import PlainRuns, Run, run
from accel.app.streaming import Tell
from accel.commands.comparing import fitting
from accel.commands.drawing import longest
from accel.errors import AccelError
from accel.measure.arms import REFERENCE
from accel.measure.quality import psnr, ssim
from accel.pictures import to_image
from accel.plan import Plan

if TYPE_CHECKING:
    from PIL import Image

_FACTORS = (64, 32, 16, 8, 4, 2, 1)
"""By how much a difference may be amplified."""

_SHOWN = 0.995
"""This share of an amplified difference is not cut off."""


@dataclass(frozen=True)
class Fewer:
    """What the plain pipeline makes of the plan's time, and how far all are from the long plain run."""

    run: Run
    long_steps: int
    psnr: float
    accelerated_psnr: float
    plain_psnr: float


@dataclass(frozen=True)
class Pair:
    """An event, and the result: both runs of a seed."""

    asked: Asked
    plan: Plan
    plain: Run
    fast: Run
    reused: bool
    """Whether the plain run had been drawn before."""
    fewer: Fewer | None = None

    @property
    def ratio(self) -> float:
        """How many times as fast the accelerated run was."""
        return self.plain.seconds / self.fast.seconds

    @property
    def psnr(self) -> float:
        """Of the accelerated picture to the plain one, in dB."""
        return distance(self.fast, self.plain)

    @property
    def ssim(self) -> float | None:
        """Of the two; ``None`` where torchmetrics is missing or the picture is smaller than its window."""
        try:
            return ssim(self.fast.picture[None], self.plain.picture[None]).item()
        except (AccelError, RuntimeError, ValueError):
            return None


def compare(pipe: Any, asked: Asked, plan: Plan, kept: PlainRuns, honest: bool, tell: Tell) -> Pair:
    """Draw both, tell the `Pair`, and where ``honest`` go on to the plain pipeline with fewer steps."""
    plain, reused = kept.get(pipe, asked, asked.steps, "plain", tell)
    fast = run(pipe, asked, asked.steps, plan, "accelerated", tell)
    pair = Pair(asked, plan, plain, fast, reused)
    tell(pair)
    return replace(pair, fewer=_fewer(pipe, pair, kept, tell)) if honest else pair


def _fewer(pipe: Any, pair: Pair, kept: PlainRuns, tell: Tell) -> Fewer:
    limit = longest(pipe)
    steps, many = fitting(pair.asked.steps, pair.ratio, limit), min(REFERENCE * pair.asked.steps, limit)
    fewer, _ = kept.get(pipe, pair.asked, steps, "fewer steps", tell)
    reference, _ = kept.get(pipe, pair.asked, many, "reference", tell)
    return Fewer(fewer, many, *(distance(each, reference) for each in (fewer, pair.fast, pair.plain)))


def distance(run: Run, reference: Run) -> float:
    """PSNR in dB; ``inf`` for the same picture."""
    return psnr(run.picture[None], reference.picture[None]).item()


def difference(picture: torch.Tensor, reference: torch.Tensor) -> tuple[Image.Image, int]:
    """|a − b| as a picture, amplified as far as nearly nothing of it is cut off, and by how much."""
    apart = (picture - reference).abs()
    high = apart.flatten().quantile(_SHOWN).item() if apart.numel() < 2**24 else apart.max().item()
    factor = next((each for each in _FACTORS if each * high <= 1), 1)
    return to_image((apart * factor).clamp(0, 1)), factor
