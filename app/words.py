"""The numbers of a comparison, and the page's sentences about them. Whatever a visitor typed is escaped."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from accel.pictures import decibels

if TYPE_CHECKING:
    from PIL import Image

    from accel.app.comparing import Pair

_EVEN = 0.05
"""A ratio this close to 1 is called even."""

_CLOSER = 0.5
"""Decibels that one picture must be closer for the note to say so."""


def numbers(pair: Pair, seen: tuple[Any, Any] = (None, None), factor: int = 1) -> dict[str, Any]:
    """A comparison as JSON. A PSNR of ``null`` says that the pictures are identical.

    ``seen`` is what the reader says of the plain and of the accelerated picture, ``factor`` by how much the difference
    picture is amplified.
    """
    asked, fewer = pair.asked, pair.fewer
    told = None
    if fewer:
        told = {
            "steps": fewer.run.steps,
            "seconds": fewer.run.seconds,
            "reference_steps": fewer.long_steps,
            "psnr_to_reference": _finite(fewer.psnr),
            "plan_psnr_to_reference": _finite(fewer.accelerated_psnr),
            "plain_psnr_to_reference": _finite(fewer.plain_psnr),
        }
    return {
        "request": {**vars(asked)},
        "plan": pair.plan.to_dict(),
        "plain": {"seconds": pair.plain.seconds, "reused": pair.reused, "reader": seen[0]},
        "accelerated": {"seconds": pair.fast.seconds, "reader": seen[1]},
        "ratio": pair.ratio,
        "psnr": _finite(pair.psnr),
        "ssim": pair.ssim,
        "difference_amplified": factor,
        "fewer_steps": told,
        "report": pair.fast.report,
        "notes": [*dict.fromkeys([*pair.plain.notes, *pair.fast.notes])],
    }


def hero(told: Mapping[str, Any], plan: str, busy: bool = False) -> str:
    """The large ratio, and what it cost; ``busy`` while the fewer steps are still being drawn."""
    return (
        f'<section class="hero"><p class="ratio"><strong>{_times(told["ratio"])}</strong>'
        f"<span>{_verdict(told)}</span></p>"
        f"<dl><div><dt>Plan</dt><dd>{escape(plan)}</dd></div>"
        f"<div><dt>To the plain picture</dt><dd>{_closeness(told)}</dd></div>"
        f"<div><dt>Predicted</dt><dd>{_predicted(told['report'])}</dd></div></dl>"
        f'<p class="honest">{_honest(told, busy)}</p></section>'
    )


def _times(ratio: float) -> str:
    return f"{ratio:.1f}×" if ratio < 9.95 else f"{ratio:.0f}×"


def _verdict(told: Mapping[str, Any]) -> str:
    ratio = told["ratio"]
    word = "as fast as plain" if abs(ratio - 1) < _EVEN else "faster" if ratio > 1 else "the speed of plain: slower"
    seconds = f"{told['accelerated']['seconds']:.2f} s instead of {told['plain']['seconds']:.2f} s"
    return f"{word}<small>{seconds}, one run each: <em>accel bench</em> measures properly</small>"


def _closeness(told: Mapping[str, Any]) -> str:
    if told["psnr"] is None:
        return "every bit the same"
    likeness = "" if told["ssim"] is None else f", SSIM {told['ssim']:.3f}"
    return f"PSNR {decibels(told['psnr'])}{likeness}"


def _predicted(report: Mapping[str, Any] | None) -> str:
    entries = list(report["techniques"].values()) if report else []
    whole = sum(entry["computed"] + entry["predicted"] for entry in entries)
    return f"{sum(entry['predicted'] for entry in entries)} of {whole} cells" if whole else "nothing"


def _honest(told: Mapping[str, Any], busy: bool) -> str:
    fewer = told["fewer_steps"]
    if fewer is None:
        return (
            "Drawing the plain picture with fewer steps too, to see whether that does as well …"
            if busy
            else "Not held against fewer steps: those save time as well, and may look as good."
        )
    mine, other = _infinite(fewer["plan_psnr_to_reference"]), _infinite(fewer["psnr_to_reference"])
    steps = f"{fewer['steps']} plain {'step' if fewer['steps'] == 1 else 'steps'}"
    text = (
        f"The honest check: {steps} take about as long ({fewer['seconds']:.2f} s). Held against the plain picture of "
        f"{fewer['reference_steps']} steps, they come to {decibels(other)}, the plan to {decibels(mine)}. "
    )
    if mine == other or abs(mine - other) < _CLOSER:
        return f"{text}<strong>Here the plan is worth as much as fewer steps.</strong>"
    fewest = "fewer steps are" if fewer["steps"] < told["request"]["steps"] else "the plain pipeline is"
    better = "the plan is the better use of the time" if mine > other else f"{fewest} the better choice"
    return f"{text}<strong>Here {better}.</strong>"


def caption(told: Mapping[str, Any], which: str, steps: int) -> str:
    """What stands below one of the two pictures: its seconds, and what the reader says is in it."""
    side = told[which]
    kept = " · drawn before and kept" if side.get("reused") else ""
    return (
        f'<div class="caption"><p><strong>{side["seconds"]:.2f} s</strong> {steps} steps{kept}</p>'
        f"{_reader(side['reader'])}</div>"
    )


def _reader(told: Mapping[str, Any] | None) -> str:
    if told is None:
        return ""
    facts = "".join(
        f'<li class="{"yes" if holds else "no"}">{escape(kind)} {"✓" if holds else "✗"}'
        f'<span class="unseen"> {"holds" if holds else "does not hold"}</span></li>'
        for kind, holds in told["facts"].items()
    )
    listed = f'<ul class="facts" aria-label="Facts of the prompt">{facts}</ul>' if facts else ""
    return f'<p class="seen">The reader sees {escape(told["seen"])}</p>{listed}'


def alt(which: str, prompt: str, steps: int) -> str:
    """The text alternative of a picture."""
    return f"{which} picture of “{prompt}”, {steps} steps"


def progress(phase: str, done: int, steps: int, shown: Image.Image | None = None) -> str:
    """What the page shows while it draws."""
    picture = f'<img src="{data_url(shown)}" alt="Preview of the unfinished picture">' if shown else ""
    text = f"Drawing: {phase}, step {done} of {steps}"
    return (
        f'<div class="stage">{picture}<div><p role="status">{escape(text)}</p>'
        f'<progress max="{steps}" value="{done}" aria-label="{escape(text, quote=True)}"></progress></div></div>'
    )


def message(text: str, kind: str = "note") -> str:
    """One line for the visitor."""
    return f'<div class="stage"><p role="status" class="{kind}">{escape(text)}</p></div>'


def notes(lines: Sequence[str]) -> str:
    """What the visitor should know besides: numbers that were changed, warnings."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="notes" aria-label="Notes">{items}</ul>' if items else ""


def data_url(image: Image.Image) -> str:
    """A picture inside of the page: previews leave no files."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value


def _infinite(value: float | None) -> float:
    return math.inf if value is None else value
