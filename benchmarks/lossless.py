"""What the lossless tier saves: the same picture, bit for bit, with it and without it.

    python benchmarks/lossless.py --model tiny

One pipeline, with the plan attached and without in turns, on one thread, at each step count; the ratio is the median
over the rounds, above 1 where the plan is faster. What is counted is the processor time of this process; attaching and
removing the plan are not. A second pair of arms asks the same beside the other techniques of the preset ``balanced``.
"""

from __future__ import annotations

import argparse
import contextlib
import time
import warnings
from typing import Any

import torch
from common import prompts, subject, write
from diffusers import DiffusionPipeline

import accel
from accel.caches.lossless.technique import Lossless
from accel.commands.generate import BUNDLED_GUIDANCE
from accel.measure.arms import draw
from accel.measure.timing import ratio, turn

BESIDE: dict[str, list[str]] = {"plain": [], "balanced": ["deepcache", "guidance"]}
"""What the tier is added to."""


def main() -> None:
    """Measure, print, write ``results/lossless.json``."""
    options = _options()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", accel.AccelWarning)  # a preset may save nothing in a few steps
    pipe, text = subject(options.model), prompts(1)
    rows = [
        _compared(pipe, text, steps, name, options.rounds * options.steps[0] // steps or 1)
        for steps in options.steps
        for name in BESIDE
    ]
    print(write("lossless", {"model": options.model, "plan": str(accel.Plan.of(Lossless())), "rows": rows}))


def _compared(pipe: DiffusionPipeline, text: list[str], steps: int, name: str, rounds: int) -> dict[str, Any]:
    """One step count: what the tier adds to the plan ``name``."""
    arms = {"without": BESIDE[name], "with": [Lossless(), *BESIDE[name]]}
    pictures = {arm: _once(pipe, plan, text, steps)[1] for arm, plan in arms.items()}  # warm-up
    seconds: dict[str, list[float]] = {arm: [] for arm in arms}
    for number in range(rounds):
        for arm in turn(list(arms), number):
            seconds[arm].append(_once(pipe, arms[arm], text, steps)[0])
    gain = ratio(seconds["without"], seconds["with"])
    same, part = torch.equal(*pictures.values()), _cells(pipe, arms["with"], text, steps)
    print(
        f"{steps} steps, beside {name}: {gain.value:.4f} (95 % interval {gain.low:.4f} to {gain.high:.4f}), "
        f"{part['predicted']} of {part['computed'] + part['predicted']} cells reused, same bits: {same}"
    )
    return {
        "steps": steps,
        "beside": name,
        "same_bits": same,
        "ratio": vars(gain),
        **part,
        "rounds": rounds,
        "seconds": seconds,
    }


def _once(pipe: DiffusionPipeline, plan: list[Any], text: list[str], steps: int) -> tuple[float, torch.Tensor]:
    """Processor seconds of one run, and its picture."""
    with accel.accelerate(pipe, plan) if plan else contextlib.nullcontext():
        began = time.process_time()
        picture = draw(pipe, text, [0], steps, {"guidance_scale": BUNDLED_GUIDANCE})
        return time.process_time() - began, picture


def _cells(pipe: DiffusionPipeline, plan: list[Any], text: list[str], steps: int) -> dict[str, int]:
    with accel.accelerate(pipe, plan) as handle:
        draw(pipe, text, [0], steps, {"guidance_scale": BUNDLED_GUIDANCE})
        report = handle.report()
    part = report.techniques["lossless"]
    return {"computed": part.computed, "predicted": part.predicted, "bytes": report.cache_bytes_peak}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--steps", type=int, nargs="+", default=[4, 25])
    parser.add_argument("--rounds", type=int, default=120, help="at the first step count; others get as much work")
    return parser.parse_args()


if __name__ == "__main__":
    main()
