"""`accel.tune` for the page: what it measures is told as it goes, and it can be stopped in any step of any picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import accel
from accel.app.front import Point
from accel.app.streaming import Tell
from accel.errors import AccelError
from accel.measure.floor import Floor
from accel.measure.tune import FEWEST, Tuned
from accel.tiny.judging import SceneJudge, mixed

if TYPE_CHECKING:
    from accel.measure.events import Event, Measured
    from accel.measure.judging import Judge

MOST_PROMPTS = 200

UNITS = {"psnr": "dB", "facts": "points"}
"""What a floor is in, by its kind."""


@dataclass(frozen=True)
class Progress:
    """An event: what was measured so far."""

    text: str
    points: list[Point]
    share: float
    """Of the budget that is spent, at most 1."""


def prompts_for(
    text: str, bundled: bool, count: int, floor: Floor, checked: Callable[[str], str]
) -> tuple[list[str], Judge | None]:
    """A visitor's prompts, one per line, or the bundled ones where there are none and the model knows them.

    With them comes who judges the pictures, for a floor in points; raises `AccelError` where nobody can.
    """
    lines = [checked(line) for line in text.splitlines() if line.strip()]
    if lines:
        if not FEWEST <= len(lines) <= MOST_PROMPTS:
            raise AccelError(f"{len(lines)} prompts: tuning takes from {FEWEST} to {MOST_PROMPTS}, one per line")
        if floor.kind == "facts":
            raise AccelError("nobody knows what your prompts state: leave them out for a floor in points, or take dB")
        return lines, None
    if not bundled:
        raise AccelError(f"this model is not bundled: give at least {FEWEST} prompts, one per line")
    scenes = mixed(min(max(count, FEWEST), MOST_PROMPTS))
    return [scene.caption for scene in scenes], SceneJudge(scenes) if floor.kind == "facts" else None


def tune(
    pipe: Any,
    prompts: Sequence[str],
    judge: Judge | None,
    floor: Floor,
    steps: int,
    seconds: float,
    guidance: float,
    tell: Tell,
) -> Tuned:
    """Search for the fastest plan that keeps ``floor``; tells `Progress`, raises what ``tell`` raises."""

    def step(_pipe: Any, _index: int, _timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        tell(None)  # raises where the visitor has stopped it
        return tensors

    call = {"guidance_scale": guidance, "callback_on_step_end": step}
    return accel.tune(
        pipe,
        prompts,
        floor,
        steps=steps,
        budget=seconds,
        judge=judge,
        call=call,
        progress=lambda event: tell(progress(event, floor)),
    )


def progress(event: Event, floor: Floor) -> Progress:
    """An event of the search in words and points."""
    text = f"{event.phase}: {event.arm.name} ({event.done} of at most {event.expected}, {event.spent:.0f} s)"
    share = min(1.0, event.spent / event.budget) if event.budget > 0 else 1.0
    return Progress(text, points(event.points, event.front, floor), share)


def above(measured: Measured, floor: Floor) -> float:
    """How far it is above the floor, in the floor's unit."""
    return measured.margin.value * (1 if floor.kind == "psnr" else 100)


def points(measured: Sequence[Measured], front: Sequence[Measured], floor: Floor) -> list[Point]:
    """The plot's points."""
    best = {each.arm.name for each in front}
    return [
        Point(
            name=each.arm.name,
            seconds=each.seconds,
            above=above(each, floor),
            plain=each.arm.plan is None,
            sure=each.fresh,
            best=each.arm.name in best,
        )
        for each in measured
    ]
