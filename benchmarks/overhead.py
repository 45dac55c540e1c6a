"""What an attached plan costs when it skips nothing: every technique on, every cell computed.

    python benchmarks/overhead.py --model tiny

One pipeline, with the plan attached and without in turns, on one thread; the overhead is the median over the rounds of
their ratio. Runs are short and many, because a shared machine changes its speed from second to second, and what is
counted is the processor time of this process.
"""

from __future__ import annotations

import argparse
import contextlib
import time
import warnings

import torch
from common import prompts, subject, write

import accel
from accel.caches.deepcache import DeepCache
from accel.caches.guidance import GuidanceCache
from accel.caches.tgate import TGate
from accel.commands.generate import BUNDLED_GUIDANCE
from accel.measure.arms import draw
from accel.measure.timing import ratio, turn


def main() -> None:
    """Measure, print, write ``results/overhead.json``."""
    options = _options()
    torch.set_num_threads(1)
    idle = [
        DeepCache(warm_up=options.steps),
        GuidanceCache(warm_up=options.steps),
        TGate(gate=options.steps, self_interval=2, warm_up=options.steps),
    ]
    pipe, text = subject(options.model), prompts(1)
    warnings.simplefilter("ignore", accel.AccelWarning)  # that nothing was saved is the point

    def once(attach: bool) -> tuple[float, torch.Tensor]:
        with accel.accelerate(pipe, idle) if attach else contextlib.nullcontext():
            began = time.process_time()
            picture = draw(pipe, text, [0], options.steps, {"guidance_scale": BUNDLED_GUIDANCE})
            return time.process_time() - began, picture

    same = torch.equal(once(True)[1], once(False)[1])
    seconds: dict[str, list[float]] = {"plain": [], "attached": []}
    for number in range(options.rounds):
        for name in turn(list(seconds), number):
            seconds[name].append(once(name == "attached")[0])
    overhead = ratio(seconds["attached"], seconds["plain"])
    print(f"attached / plain: {overhead.value:.4f} (95 % interval {overhead.low:.4f} to {overhead.high:.4f})")
    print(f"same bits: {same}")
    result = {"model": options.model, "steps": options.steps, "plan": str(accel.Plan.of(idle)), "same_bits": same}
    print(write("overhead", {**result, "ratio": vars(overhead), "seconds": seconds}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=150)
    return parser.parse_args()


if __name__ == "__main__":
    main()
