"""The bricks of a plan: which techniques the page offers, with which few settings, and how they are spelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Control:
    """One setting of a technique, chosen from a few values; the first is the technique's own default."""

    setting: str
    label: str
    choices: tuple[Any, ...]


@dataclass(frozen=True)
class Brick:
    """A technique as the page offers it."""

    technique: str
    title: str
    sentence: str
    controls: tuple[Control, ...] = ()


def _how(*others: str) -> Control:
    return Control("how", "Prediction", ("linear", *others))


BRICKS = (
    Brick(
        "deepcache",
        "Deep features",
        "Predicts everything below the outermost level of the denoiser.",
        (Control("interval", "Compute every … step", (2, 3, 4, 5)), _how("reuse", "quadratic")),
    ),
    Brick(
        "guidance",
        "Guidance",
        "Predicts the unconditional half of the batch, which then need not run.",
        (Control("interval", "Compute every … step", (2, 3, 4, 5)), _how("reuse", "quadratic")),
    ),
    Brick(
        "tgate",
        "Text attention",
        "Freezes the attention to the text from some point on: the content stays, the picture changes.",
        (Control("gate", "From this share of the run on", (0.4, 0.2, 0.6, 0.8)),),
    ),
    Brick(
        "residual",
        "When it changes",
        "Decides in every step, for each picture, whether anything has changed enough to compute.",
        (
            Control("indicator", "Looks at", ("first_block", "tea", "sea")),
            Control("threshold", "Predicts below", (0.1, 0.05, 0.2, 0.4)),
        ),
    ),
    Brick(
        "rehash",
        "Whole steps",
        "Predicts the denoiser's output, so that no call is made at all.",
        (Control("interval", "Compute every … step", (2, 3, 4)),),
    ),
    Brick("lossless", "Lossless", "Computes nothing twice that has the same input: every bit stays the same."),
    Brick(
        "slicer",
        "Less memory",
        "Computes in slices: the same picture in less memory, not in less time.",
        (Control("slices", "Slices", (2, 4, 8)),),
    ),
)


def spell(chosen: Sequence[bool], settings: Sequence[Sequence[Any]]) -> str:
    """The plan's text, ``"deepcache(interval=3)+guidance"``: per brick whether it is on, and its controls' values."""
    parts = []
    for brick, on, values in zip(BRICKS, chosen, settings, strict=True):
        changed = [
            f"{control.setting}={value}"
            for control, value in zip(brick.controls, values, strict=True)
            if value != control.choices[0]
        ]
        if on:
            parts.append(f"{brick.technique}({', '.join(changed)})" if changed else brick.technique)
    return "+".join(parts)
