"""What an attached plan costs when it skips nothing: every technique on, every cell computed.

    python benchmarks/overhead.py --model tiny

The plain pipeline and a second copy with the plan attached take turns, on one thread; the overhead is the median over
the rounds of their ratio. What is counted is the processor time of this process: the cost of the hooks is far below
the scatter of wall time on a shared machine.
"""

from __future__ import annotations

import argparse
import time
import warnings

import torch
from common import draw, prompts, subject, write

import accel
from accel.caches.deepcache import DeepCache
from accel.caches.guidance import GuidanceCache
from accel.caches.tgate import TGate
from accel.measure.timing import interleaved, ratio


def main() -> None:
    """Measure, print, write ``results/overhead.json``."""
    options = _options()
    torch.set_num_threads(1)
    idle = [
        DeepCache(warm_up=options.steps),
        GuidanceCache(warm_up=options.steps),
        TGate(gate=options.steps, self_interval=2, warm_up=options.steps),
    ]
    plain, attached = subject(options.model), subject(options.model)
    handle = accel.accelerate(attached, idle)
    text = prompts(1)
    warnings.simplefilter("ignore", accel.AccelWarning)  # that nothing was saved is the point
    same = torch.equal(draw(plain, text, options.steps), draw(attached, text, options.steps))
    arms = {
        "plain": lambda: draw(plain, text, options.steps),
        "attached": lambda: draw(attached, text, options.steps),
    }
    seconds = interleaved(arms, options.rounds, clock=time.process_time)
    overhead = ratio(seconds["attached"], seconds["plain"])
    print(f"attached / plain: {overhead.value:.4f} (95 % interval {overhead.low:.4f} to {overhead.high:.4f})")
    print(f"same bits: {same}")
    result = {"model": options.model, "steps": options.steps, "plan": str(handle.plan), "same_bits": same}
    print(write("overhead", {**result, "ratio": vars(overhead), "seconds": seconds}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=40)
    return parser.parse_args()


if __name__ == "__main__":
    main()
