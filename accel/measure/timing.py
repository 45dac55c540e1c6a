"""Timing that can be compared: the arms of a comparison take turns, warm-up apart, and only ratios are concluded."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from accel.measure.intervals import Interval, median

Arm = Callable[[], object]
"""One thing to time. It must leave no work queued: CUDA devices are synchronised around it."""


def interleaved(
    arms: Mapping[str, Arm], rounds: int, warm_up: int = 1, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of every arm in every round: A B C, A B C, … after ``warm_up`` rounds that do not count.

    ``clock`` is wall time; ``time.process_time`` counts only what this process computed, which other
    work on the machine does not change.
    """
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(-warm_up, rounds):
        for name in turn(list(arms), number):
            elapsed = timed(arms[name], clock)
            if number >= 0:
                seconds[name].append(elapsed)
    return seconds


def turn(names: Sequence[str], number: int) -> list[str]:
    """The order of the arms in round ``number``: it rotates, so that no arm always follows the same one."""
    shift = number % len(names)
    return [*names[shift:], *names[:shift]]


def timed(arm: Arm, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of ``arm()`` by ``clock``."""
    synchronise()
    began = clock()
    arm()
    synchronise()
    return clock() - began


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    """Median over the rounds of ``numerator`` by ``denominator``.

    Each round is its own comparison, so a machine that is slow for a while slows both sides of it.
    """
    return median([above / below for above, below in zip(numerator, denominator, strict=True)])


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


def synchronise() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _processor() -> str:
    info = Path("/proc/cpuinfo")  # Linux only
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
