"""Peak memory of a run: the CUDA allocator's own count, or the process's resident memory, sampled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

_INTERVAL = 0.002
"""Seconds between two samples."""


@dataclass(frozen=True)
class Peak:
    """The most memory held at once.

    Attributes:
        bytes: Above what was held before the run.
        source: ``"CUDA allocator"`` (exact) or ``"resident memory, sampled"`` (a lower bound, shared
            with everything else in the process; memory that an earlier run left to the allocator
            and this one takes again does not show).
    """

    bytes: int
    source: str


def peak(run: Callable[[], object], device: torch.device | str = "cpu") -> Peak:
    """Run ``run()`` and say how much memory it held at most.

    Raises:
        OSError: on systems without ``/proc/self/statm`` where no CUDA device is measured.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return Peak(torch.cuda.max_memory_allocated(device) - before, "CUDA allocator")
    return _sampled(run)


def _sampled(run: Callable[[], object]) -> Peak:
    before = highest = _resident()
    done = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(_INTERVAL):
            highest = max(highest, _resident())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        run()
        highest = max(highest, _resident())
    finally:
        done.set()
        watcher.join()
    return Peak(highest - before, "resident memory, sampled")


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * _page_size()


def _page_size() -> int:
    import resource  # not on Windows, where /proc is missing as well

    return resource.getpagesize()
