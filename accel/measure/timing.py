"""Timing that can be compared: the arms of a comparison take turns, warm-up apart, and only ratios are concluded."""

from __future__ import annotations

import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Arm = Callable[[], object]
"""One thing to time. It must leave no work queued: CUDA devices are synchronised around it."""


@dataclass(frozen=True)
class Ratio:
    """A median ratio with a 95 % bootstrap interval over the paired rounds."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def interleaved(
    arms: Mapping[str, Arm], rounds: int, warm_up: int = 1, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of every arm in every round: A B C, A B C, … after ``warm_up`` rounds that do not count.

    The order rotates from round to round, so that no arm always follows the same one. ``clock`` is
    wall time; ``time.process_time`` counts only what this process computed, which other work on the
    machine does not change.
    """
    names = list(arms)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-warm_up, rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            elapsed = _timed(arms[name], clock)
            if number >= 0:
                seconds[name].append(elapsed)
    return seconds


def ratio(numerator: Sequence[float], denominator: Sequence[float], resamples: int = 2000, seed: int = 0) -> Ratio:
    """Median over the rounds of ``numerator`` by ``denominator``.

    Each round is its own comparison, so a machine that is slow for a while slows both sides of it.
    """
    draw = random.Random(seed)
    rounds = [above / below for above, below in zip(numerator, denominator, strict=True)]
    values = sorted(statistics.median(draw.choices(rounds, k=len(rounds))) for _ in range(resamples))
    return Ratio(statistics.median(rounds), values[int(0.025 * resamples)], values[int(0.975 * resamples)])


def machine(device: str | torch.device = "cpu") -> dict[str, Any]:
    """Where a measurement was taken: processor or GPU, cores, threads, versions."""
    import diffusers

    on_gpu = torch.device(device).type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "diffusers": diffusers.__version__,
    }


def _timed(arm: Arm, clock: Callable[[], float]) -> float:
    _synchronise()
    began = clock()
    arm()
    _synchronise()
    return clock() - began


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _processor() -> str:
    info = Path("/proc/cpuinfo")  # Linux only
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
