"""What a visitor may ask for. Everything that comes from outside goes through here, whatever the page would allow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from accel.errors import AccelError

SEEDS = 2**31
_FEWEST_STEPS, _SMALLEST_SIZE = 1, 8


@dataclass(frozen=True)
class Limits:
    """The server's limits; numbers beyond them are brought back to them, and the visitor is told."""

    steps: int = 50
    size: int = 512
    """Edge of a picture in pixels."""
    guidance: float = 20.0
    prompt: int = 500
    """Characters of a prompt."""
    plan: int = 65_536
    """Characters of a plan in JSON."""
    minutes: float = 10.0
    """Of tuning."""


@dataclass(frozen=True)
class Asked:
    """A picture to draw, within the limits."""

    model: str
    prompt: str
    seed: int = 0
    steps: int = 25
    guidance: float = 4.0
    size: int | None = None
    """``None`` is the model's own."""
    solver: str = "own"


def asked(
    limits: Limits, model: str, prompt: Any, seed: Any, steps: Any, guidance: Any, size: Any, solver: Any
) -> tuple[Asked, list[str]]:
    """What is drawn of what a visitor asked for, and a note for each number that was changed.

    Raises `AccelError` for an empty or overlong prompt and for what is no number. A size of 0 is the model's own.
    """
    notes: list[str] = []
    edge = clamped(notes, "size", size or 0, 0, limits.size)
    if 0 < edge < _SMALLEST_SIZE:
        edge = _SMALLEST_SIZE
    request = Asked(
        model=model,
        prompt=checked_prompt(prompt, limits),
        seed=int(clamped(notes, "seed", seed, 0, SEEDS - 1)),
        steps=int(clamped(notes, "steps", steps, _FEWEST_STEPS, limits.steps)),
        guidance=clamped(notes, "guidance", guidance, 0.0, limits.guidance),
        size=int(edge) or None,
        solver=str(solver or "own"),
    )
    return request, notes


def checked_prompt(prompt: Any, limits: Limits) -> str:
    """The prompt without blanks around it; raises `AccelError` for none, and for one that is too long."""
    text = prompt.strip() if isinstance(prompt, str) else ""
    if not text:
        raise AccelError("the prompt is empty: say what to draw, for example 'two green squares and a red star'")
    if len(text) > limits.prompt:
        raise AccelError(f"the prompt has {len(text)} characters: use at most {limits.prompt}")
    return text


def clamped(notes: list[str], name: str, value: Any, least: float, most: float) -> float:
    """``value`` brought between ``least`` and ``most``, noted where that changes it."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise AccelError(f"{name} must be a number")
    within = min(max(number, least), most)
    if within != number:
        notes.append(f"{name} {number:g} is outside of this server's limits: {within:g} was used")
    return within
