"""Modules that only come with ``pip install diffusers-accel[bench]``."""

from __future__ import annotations

import importlib
from typing import Any

from accel.errors import AccelError


def torchmetrics(module: str = "torchmetrics") -> Any:
    """Import a module of torchmetrics. Raises `AccelError` with the way out where it is missing."""
    return _load(module, "this metric")


def pyplot() -> Any:
    """Import matplotlib's pyplot, drawing to files only. Raises `AccelError` with the way out where it is missing."""
    _load("matplotlib", "the plot").use("Agg")
    return _load("matplotlib.pyplot", "the plot")


def _load(module: str, purpose: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise AccelError(f"{purpose} needs {package}: pip install 'diffusers-accel[bench]'") from error
