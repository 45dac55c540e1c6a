"""Techniques of the step axis against the plain pipeline with fewer steps, with DPM++.

    python benchmarks/steps.py

First a schedule of ten steps is chosen (``accel schedule``), then everything is one ``accel bench``, against the plain
curve of the better solver: DDIM's schedule cannot be edited. Some ten minutes of one core. Results go to
``results/steps-<steps>``; broken off, it goes on when it is repeated.
"""

from __future__ import annotations

import argparse

from common import RESULTS

from accel import cli

PLANS = (
    "converged(threshold=0.05)",
    "converged(threshold=0.1)",
    "interval(stop=0.8)",
    "interval(start=0.1, stop=0.6)",
    "rehash(unevenness=0.05)",
    "rehash(unevenness=0.2)",
    "steps(count=10, spacing=exponential)",
)
COUNT = 10
"""Steps of the chosen schedule."""


def main() -> None:
    """Choose the schedule where there is none yet, and measure."""
    options, schedule = _options(), RESULTS / f"schedule-{COUNT}.json"
    RESULTS.mkdir(exist_ok=True)
    if not schedule.exists():
        _run("schedule", "--steps", str(COUNT), "--n", str(options.schedule_n), "--out", str(schedule))
    size = ["--steps", str(options.steps), "--n", str(options.n), "--rounds", str(options.rounds)]
    out = str(RESULTS / f"steps-{options.steps}")
    _run("bench", *size, "--plans", ",".join([*PLANS, str(schedule)]), "--out", out)


def _run(command: str, *arguments: str) -> None:
    if cli.main([command, "--model", "tiny", "--solver", "dpm++", *arguments]):
        raise SystemExit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=15, help="of the plans")
    parser.add_argument("--n", type=int, default=6, help="prompts")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds")
    parser.add_argument("--schedule-n", type=int, default=8, help="prompts to choose and judge the schedule")
    return parser.parse_args()


if __name__ == "__main__":
    main()
