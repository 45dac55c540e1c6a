"""A plan against the plain pipeline, and against the plain pipeline with fewer steps in the same time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from accel.commands.drawing import Drawn, Request, draw, longest
from accel.errors import AccelWarning
from accel.handle import accelerate
from accel.measure.arms import REFERENCE
from accel.measure.intervals import Interval
from accel.measure.quality import psnr
from accel.measure.timing import interleaved, ratio
from accel.plan import Plan
from accel.report import Report

_WARM_UP_STEPS = 2

_SAME = 0.15
"""Times this close, as a share, count as the same."""


@dataclass(frozen=True)
class SameTime:
    """What the plain pipeline makes of the plan's time; the two took turns."""

    steps: int
    seconds: list[float]
    accelerated_seconds: list[float]
    psnr: float
    """Its distance to the reference picture."""


@dataclass(frozen=True)
class Comparison:
    """Both pictures of one seed, and every number about them. Seconds are per round, PSNR the mean over the batch."""

    plain: torch.Tensor
    accelerated: torch.Tensor
    plain_seconds: list[float]
    accelerated_seconds: list[float]
    speed_up: Interval
    psnr: float
    """Between the two."""
    reference_steps: int
    plain_psnr: float
    """Of the plain picture to the reference."""
    accelerated_psnr: float
    same_time: SameTime
    report: Report


class _Side:
    """One way to draw, called again and again by the stopwatch; keeps its last picture."""

    def __init__(self, name: str, once: Callable[[str], Drawn]):
        self.name, self.once, self.turn = name, once, 0
        self.drawn: Drawn

    def __call__(self) -> None:
        self.turn += 1
        self.drawn = self.once(f"{self.name}, run {self.turn}")


def compare(pipe: Any, plan: Plan, request: Request, repeats: int) -> Comparison:
    """Draw and time both ways, taking turns, ``repeats`` times each, after a warm-up that does not count."""
    reports: list[Report] = []

    def once(phase: str) -> Drawn:
        with accelerate(pipe, plan) as handle:
            drawn = draw(pipe, request, phase=phase)
        reports.append(handle.report())
        return drawn

    _warm_up(pipe, plan, request)
    plain = _Side("plain", lambda phase: draw(pipe, request, phase=phase))
    fast = _Side("accelerated", once)
    seconds = interleaved({"plain": plain, "accelerated": fast}, repeats, warm_up=0)
    speed_up = ratio(seconds["plain"], seconds["accelerated"])
    many = min(REFERENCE * request.steps, longest(pipe))
    reference = draw(pipe, request, many, f"plain with {many} steps")
    _warn_of_fresh_noise(plain.drawn, reference)
    return Comparison(
        plain=plain.drawn.pictures,
        accelerated=fast.drawn.pictures,
        plain_seconds=seconds["plain"],
        accelerated_seconds=seconds["accelerated"],
        speed_up=speed_up,
        psnr=_psnr(fast.drawn, plain.drawn),
        reference_steps=many,
        plain_psnr=_psnr(plain.drawn, reference),
        accelerated_psnr=_psnr(fast.drawn, reference),
        same_time=_in_the_same_time(pipe, request, fast, reference, speed_up.value, repeats),
        report=reports[-1],
    )


def _in_the_same_time(
    pipe: Any, request: Request, fast: _Side, reference: Drawn, speed_up: float, repeats: int
) -> SameTime:
    """Time the plain pipeline with as many steps as fit, in turns with ``fast``; a bad guess is mended once."""
    limit = longest(pipe)
    steps = fitting(request.steps, speed_up, limit)
    for attempt in range(2):
        fewer = _Side(f"plain with {steps} steps", lambda phase: draw(pipe, request, steps, phase))
        seconds = interleaved({"plain": fewer, "accelerated": fast}, repeats, warm_up=0)
        result = SameTime(steps, seconds["plain"], seconds["accelerated"], _psnr(fewer.drawn, reference))
        off = ratio(seconds["plain"], seconds["accelerated"]).value
        steps = fitting(steps, off, limit)
        if steps == result.steps or abs(off - 1) < _SAME:
            break
    return result


def fitting(steps: int, ratio: float, limit: int) -> int:
    """Steps that take ``1 / ratio`` of the time of ``steps``, if the steps are all there is.

    What the text and the decoder take besides is not counted, which allows the plain pipeline a little too much.
    """
    return min(max(1, round(steps / ratio)), limit)


def _warm_up(pipe: Any, plan: Plan, request: Request) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccelWarning)  # so few steps leave a plan nothing to save
        draw(pipe, request, _WARM_UP_STEPS, "warm-up")
        with accelerate(pipe, plan):
            draw(pipe, request, _WARM_UP_STEPS, "warm-up")


def _warn_of_fresh_noise(short: Drawn, long: Drawn) -> None:
    """A generator that stands elsewhere after more steps was asked for noise in every step."""
    if not torch.equal(short.noise, long.noise):
        warnings.warn(
            "the solver adds fresh noise in every step, so other step counts draw other pictures: the distances to the "
            "reference picture mean little",
            AccelWarning,
            stacklevel=2,
        )


def _psnr(drawn: Drawn, reference: Drawn) -> float:
    return psnr(drawn.pictures, reference.pictures).mean().item()
