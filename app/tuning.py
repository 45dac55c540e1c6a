"""`accel.tune` for the page: what it measures is told as it goes, and it can be stopped in any step of any picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import accel
from accel.app import reading
from accel.app.front import Point
from accel.app.streaming import Tell
from accel.errors import AccelError
from accel.measure.floor import Floor
from accel.measure.tune import FEWEST, Tuned

if TYPE_CHECKING:
    from accel.measure.events import Event, Measured

MOST_PROMPTS = 64


@dataclass(frozen=True)
class Progress:
    """An event: what was measured so far."""

    text: str
    points: list[Point]
    share: float
    """Of the budget that is spent, at most 1."""


def prompts_for(text: str, bundled: bool, count: int, checked: Callable[[str], str]) -> list[str]:
    """A visitor's prompts, one per line, or the bundled ones where there are none and the model knows them."""
    lines = [checked(line) for line in text.splitlines() if line.strip()]
    if lines:
        if not FEWEST <= len(lines) <= MOST_PROMPTS:
            raise AccelError(f"{len(lines)} prompts: tuning takes from {FEWEST} to {MOST_PROMPTS}, one per line")
        return lines
    if not bundled:
        raise AccelError(f"this model is not bundled: give at least {FEWEST} prompts, one per line")
    return list(reading.known())[: min(max(count, FEWEST), MOST_PROMPTS)]


def tune(
    pipe: Any, prompts: Sequence[str], floor: str, steps: int, seconds: float, guidance: float, tell: Tell
) -> Tuned:
    """Search for the fastest plan that keeps ``floor`` (in dB); tells `Progress`, raises what ``tell`` raises."""
    goal = Floor.of(floor)
    if goal.kind != "psnr":
        raise AccelError("on this page a floor is in dB, such as '40 dB': accel tune on the command line knows points")

    def step(_pipe: Any, _index: int, _timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        tell(None)  # raises where the visitor has stopped it
        return tensors

    call = {"guidance_scale": guidance, "callback_on_step_end": step}
    return accel.tune(
        pipe, prompts, goal, steps=steps, budget=seconds, call=call, progress=lambda event: tell(progress(event))
    )


def progress(event: Event) -> Progress:
    """An event of the search in words and points."""
    text = f"{event.phase}: {event.arm.name} ({event.done} of at most {event.expected}, {event.spent:.0f} s)"
    share = min(1.0, event.spent / event.budget) if event.budget > 0 else 1.0
    return Progress(text, points(event.points, event.front), share)


def points(measured: Sequence[Measured], front: Sequence[Measured]) -> list[Point]:
    """The plot's points."""
    best = {each.arm.name for each in front}
    return [
        Point(
            name=each.arm.name,
            seconds=each.seconds,
            above=each.margin.value,
            plain=each.arm.plan is None,
            sure=each.fresh,
            best=each.arm.name in best,
        )
        for each in measured
    ]
