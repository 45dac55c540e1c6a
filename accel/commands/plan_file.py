"""The plan file that ``tune``, ``fit`` and ``calibrate`` write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from accel.errors import AccelError


def writable(name: str) -> Path:
    """The file to write a plan to; told before any work is done. Raises `AccelError` where it cannot be written."""
    file = Path(name).expanduser()
    if file.suffix != ".json" or file.is_dir() or not os.access(file.parent, os.W_OK):
        raise AccelError(f"{file} cannot be written: name a .json file in a folder that is yours with --out")
    return file


def write(file: Path, plan: Any, steps: int, solver: str) -> str:
    """Save the plan; returns how to use it."""
    plan.save(file)
    chosen = "" if solver == "own" else f" --solver {solver}"
    return f"wrote the plan to {file}: use it with --plan {file} --steps {steps}{chosen}"
