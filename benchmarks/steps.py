"""Techniques of the step axis against the plain pipeline with fewer steps, with Euler and DPM++.

    python benchmarks/steps.py

The bundled pipeline comes with DDIM, whose schedule cannot be edited; it is given Euler, the same solver in another
notation. First a schedule of ten steps is chosen (``accel schedule``), then everything is one ``accel bench``. Results
go to ``results/steps-25``; broken off, it goes on when it is repeated.
"""

from __future__ import annotations

from pathlib import Path

from diffusers import EulerDiscreteScheduler

import accel
from accel import cli

RESULTS = Path(__file__).parent / "results"
SCHEDULE = RESULTS / "schedule-10.json"

PLANS = (
    "converged(threshold=0.05)",
    "converged(threshold=0.1)",
    "interval(stop=0.8)",
    "interval(start=0.1, stop=0.6)",
    "rehash(unevenness=0.05)",
    "rehash(unevenness=0.2)",
    str(SCHEDULE),
)

EULER = "out/tiny-euler"
"""Where the pipeline with the other solver is put, from where the script is called."""


def main() -> None:
    """Choose the schedule where there is none yet, and measure."""
    RESULTS.mkdir(exist_ok=True)
    pipe = accel.load("tiny")
    pipe.scheduler = EulerDiscreteScheduler.from_config(pipe.scheduler.config)
    pipe.save_pretrained(EULER)
    if not SCHEDULE.exists():
        _run("schedule", "--solver", "dpm++", "--steps", "10", "--out", str(SCHEDULE))
    out = ["--n", "12", "--rounds", "3", "--out", str(RESULTS / "steps-25")]
    _run("bench", "--steps", "25", "--plans", ",".join(PLANS), *out)


def _run(command: str, *arguments: str) -> None:
    if cli.main([command, "--model", EULER, "--guidance", "4", *arguments]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
