"""Plans against the plain pipeline, and against the plain pipeline with fewer steps.

    python benchmarks/plans.py --model tiny --steps 25 --plans balanced fast tgate

Quality is PSNR to the plain picture of the same seed with four times the steps, on held-out prompts. Time is one
picture, all arms taking turns. *Frontier gain* is the time the plain pipeline needs for the plan's quality (step count
interpolated) over the plan's time: above 1 the plan beats simply taking fewer steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import torch
from common import draw, prompts, subject, write
from diffusers import DiffusionPipeline, DPMSolverMultistepScheduler

import accel
from accel.measure.frontier import Point, gain
from accel.measure.quality import psnr
from accel.measure.timing import Ratio, interleaved, ratio
from accel.tables import aligned

CURVE = (6, 8, 10, 12, 15, 20, 25, 30, 40)
"""Step counts of the plain pipeline's own curve."""

PLANS = (
    "balanced",
    "fast",
    "deepcache",
    '[{"name": "deepcache", "how": "reuse"}]',
    "guidance",
    '[{"name": "guidance", "how": "reuse"}]',
    "tgate",
    '[{"name": "tgate", "cutoff": "cond"}]',
)
"""The presets, and what they are made of, each with the predictor it has in its paper beside ours."""


def main() -> None:
    """Measure every plan with the pipeline's own solver and with DPM++ 2M, print the tables, write the JSON."""
    options = _options()
    texts = prompts(options.prompts)
    result: dict[str, Any] = {"model": options.model, "steps": options.steps, "prompts": texts, "solvers": {}}
    for name, make in {"own": None, "dpm++": _dpm}.items():
        result["solvers"][name] = measured = _measure(make, texts, options)
        print(f"\nsolver: {name}, {options.steps} steps\n{aligned(*_table(measured))}")
    print(write(f"plans-{options.steps}", result))


def _measure(make: Callable[[Any], Any] | None, texts: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """One solver's table: the plain curve and every plan."""
    plain = _pipe(options.model, make)
    reference = draw(plain, texts, 4 * options.steps)
    steps = sorted({options.steps, *(n for n in CURVE if n <= 2 * options.steps)})
    arms = {f"plain {n}": _Arm(plain, None, n, texts[:1]) for n in steps}
    for plan in map(_plan, options.plans):
        arms[str(plan)] = _Arm(_pipe(options.model, make), plan, options.steps, texts[:1])
    quality = {name: psnr(arm.pictures(texts), reference).tolist() for name, arm in arms.items()}
    seconds = interleaved(arms, options.rounds)
    curve = [_point(seconds, quality, f"plain {n}") for n in steps]
    base = f"plain {options.steps}"
    return {name: _row(seconds, quality, name, base, curve, arm) for name, arm in arms.items()}


class _Arm:
    """A way to draw: a pipeline, maybe with a plan attached for good (attaching is not timed)."""

    def __init__(self, pipe: DiffusionPipeline, plan: accel.Plan | None, steps: int, timed: list[str]):
        self.pipe, self.plan, self.steps, self.timed = pipe, plan, steps, timed
        if plan is not None:
            accel.accelerate(pipe, plan)

    def __call__(self) -> None:
        self.pictures(self.timed)

    def pictures(self, texts: list[str]) -> torch.Tensor:
        return draw(self.pipe, texts, self.steps)


def _row(
    seconds: dict[str, list[float]],
    quality: dict[str, list[float]],
    name: str,
    base: str,
    curve: list[Point],
    arm: _Arm,
) -> dict[str, Any]:
    speed: Ratio = ratio(seconds[base], seconds[name])
    row: dict[str, Any] = {
        "steps": arm.steps,
        "seconds": seconds[name],
        "psnr": quality[name],
        "psnr_mean": statistics.mean(quality[name]),
        "speed_up": vars(speed),
    }
    if arm.plan is not None:
        row["plan"] = arm.plan.to_dict()
        row["frontier_gain"] = gain(curve, _point(seconds, quality, name))
    return row


def _point(seconds: dict[str, list[float]], quality: dict[str, list[float]], name: str) -> Point:
    return Point(statistics.median(seconds[name]), statistics.mean(quality[name]))


def _table(measured: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    head = ["what", "speed-up", "95 % interval", "PSNR (dB)", "frontier gain"]
    body = []
    for name, row in measured.items():
        speed, profit = row["speed_up"], row.get("frontier_gain", 1.0)
        body.append(
            [
                name,
                f"{speed['value']:.2f}",
                f"{speed['low']:.2f} to {speed['high']:.2f}",
                f"{row['psnr_mean']:.1f}",
                "outside the curve" if profit is None else f"{profit:.2f}",
            ]
        )
    return head, body


def _plan(text: str) -> accel.Plan:
    """A preset's or technique's name, a plan file, or a JSON list of techniques."""
    if text.startswith("["):
        return accel.Plan.from_dict({"techniques": json.loads(text)})
    return accel.Plan.of(text)


def _dpm(config: Any) -> DPMSolverMultistepScheduler:
    return DPMSolverMultistepScheduler.from_config(config)


def _pipe(model: str, make: Callable[[Any], Any] | None) -> DiffusionPipeline:
    pipe = subject(model)
    if make is not None:
        pipe.scheduler = make(pipe.scheduler.config)
    return pipe


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--plans", nargs="+", default=PLANS, metavar="PLAN", help="preset, technique, file or JSON")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    warnings.simplefilter("ignore", accel.AccelWarning)  # short runs may leave a plan nothing to predict
    return parser.parse_args()


if __name__ == "__main__":
    main()
