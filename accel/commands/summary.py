"""A run as a versioned JSON document, and that document in words: what is printed is what is stored."""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import Any

from accel import __version__
from accel.commands.comparing import Comparison
from accel.commands.drawing import Request
from accel.measure.timing import machine
from accel.pictures import decibels
from accel.plan import Plan
from accel.report import Report

FORMAT = 1
"""Version of the document. A PSNR of ``null`` says that the pictures are identical."""

_EVEN = 0.05
"""A speed-up this close to 1 is called none."""


def document(model: str, pipe: Any, request: Request, plan: Plan, report: Report) -> dict[str, Any]:
    """What there is to say about any run; `compared` and the accelerated picture's seconds come on top."""
    return {
        "format": FORMAT,
        "accel": __version__,
        "model": model,
        "pipeline": type(pipe).__name__,
        "scheduler": type(pipe.scheduler).__name__,
        "dtype": str(pipe.dtype).removeprefix("torch."),
        "machine": machine(pipe.device),
        "request": dataclasses.asdict(request),
        "plan": plan.to_dict(),
        "report": report.to_dict(),
    }


def compared(comparison: Comparison) -> dict[str, Any]:
    """The numbers of a comparison. ``seconds`` are medians of ``runs``; *reference* is the plain run of many steps."""
    same = comparison.same_time
    return {
        "accelerated": {
            **_seconds(comparison.accelerated_seconds),
            "psnr_to_plain": _finite(comparison.psnr),
            "psnr_to_reference": _finite(comparison.accelerated_psnr),
        },
        "plain": {**_seconds(comparison.plain_seconds), "psnr_to_reference": _finite(comparison.plain_psnr)},
        "speed_up": dataclasses.asdict(comparison.speed_up),
        "reference": {"steps": comparison.reference_steps},
        "plain_in_the_same_time": {
            "steps": same.steps,
            **_seconds(same.seconds),
            "accelerated": _seconds(same.accelerated_seconds),
            "psnr_to_reference": _finite(same.psnr),
        },
    }


def lines(document: dict[str, Any]) -> list[str]:
    """The document's verdict: one line about the plan, and after a comparison one about fewer steps."""
    name, fast = label(document), document["accelerated"]
    steps = document["request"]["steps"]
    if "plain" not in document:
        return [f"{name}: {steps} steps in {fast['seconds']:.2f} s; --compare says what that saved"]
    plain, same, many = document["plain"], document["plain_in_the_same_time"], document["reference"]["steps"]
    better = _or_infinite(same["psnr_to_reference"]) > _or_infinite(fast["psnr_to_reference"])
    return [
        f"{name}: {_speed(document['speed_up']['value'])} ({fast['seconds']:.2f} s vs {plain['seconds']:.2f} s), "
        + _distance(fast["psnr_to_plain"], "it"),
        f"plain in the same time ({same['steps']} steps, {same['seconds']:.2f} s vs "
        f"{same['accelerated']['seconds']:.2f} s): {_distance(same['psnr_to_reference'], f'the {many}-step plain run')}"
        f"; {name}: {decibels(_or_infinite(fast['psnr_to_reference']))}"
        + ("; here fewer steps are the better choice" if better else ""),
    ]


def captions(document: dict[str, Any]) -> tuple[str, str]:
    """What stands below the plain and below the accelerated picture."""
    steps, fast, plain = document["request"]["steps"], document["accelerated"], document["plain"]
    saved = ", ".join(
        f"{name} predicted {entry['predicted']} of {entry['predicted'] + entry['computed']}"
        for name, entry in document["report"]["techniques"].items()
    )
    return (
        f"plain: {steps} steps, {plain['seconds']:.2f} s",
        f"{label(document)}: {steps} steps, {fast['seconds']:.2f} s; {saved or 'nothing saved'}; "
        + _distance(fast["psnr_to_plain"], "plain"),
    )


def label(document: dict[str, Any]) -> str:
    """What the plan is called: its name, else its techniques'."""
    plan = document["plan"]
    return plan["name"] or " + ".join(entry["name"] for entry in plan["techniques"]) or "no plan"


def _seconds(runs: list[float]) -> dict[str, Any]:
    return {"seconds": statistics.median(runs), "runs": runs}


def _speed(value: float) -> str:
    if abs(value - 1) < _EVEN:
        return "as fast as plain"
    return f"{value:.1f}x faster than plain" if value > 1 else f"{1 / value:.1f}x slower than plain"


def _distance(value: float | None, other: str) -> str:
    return f"identical to {other}" if value is None else f"{decibels(value)} from {other}"


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value
