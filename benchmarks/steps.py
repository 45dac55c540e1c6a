"""Techniques of the step axis against the plain pipeline with fewer steps, with DPM++.

    python benchmarks/steps.py

First a schedule of ten steps is chosen (``accel schedule``), then everything is one ``accel bench``. Results go to
``results/steps-25``; broken off, it goes on when it is repeated.
"""

from __future__ import annotations

from pathlib import Path

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

SOLVER = ["--model", "tiny", "--solver", "dpm++"]


def main() -> None:
    """Choose the schedule where there is none yet, and measure."""
    RESULTS.mkdir(exist_ok=True)
    if not SCHEDULE.exists():
        _run("schedule", *SOLVER, "--steps", "10", "--out", str(SCHEDULE))
    out = ["--n", "12", "--rounds", "3", "--out", str(RESULTS / "steps-25")]
    _run("bench", "--model", "tiny", "--solvers", "dpm++", "--steps", "25", "--plans", ",".join(PLANS), *out)


def _run(*arguments: str) -> None:
    if cli.main([*arguments]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
