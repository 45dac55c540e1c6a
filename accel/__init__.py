"""diffusers-accel: make diffusers pipelines faster, and prove it.

handle = accel.accelerate(pipe, "balanced")
image = pipe("a red fox").images[0]
print(handle.report())
handle.remove()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from accel.errors import AccelError as AccelError
    from accel.errors import AccelWarning as AccelWarning
    from accel.errors import Refused as Refused
    from accel.handle import Handle as Handle
    from accel.handle import accelerate as accelerate
    from accel.handle import check as check
    from accel.handle import handles as handles
    from accel.loading import load as load
    from accel.measure.tune import tune as tune
    from accel.plan import Plan as Plan
    from accel.plan import presets as presets
    from accel.registry import register as register
    from accel.report import Report as Report
    from accel.target import Target as Target
    from accel.technique import Technique as Technique

# Resolved on first use: importing the package stays light (no torch, no diffusers).
_PUBLIC = {
    "AccelError": "accel.errors",
    "AccelWarning": "accel.errors",
    "Handle": "accel.handle",
    "Plan": "accel.plan",
    "Refused": "accel.errors",
    "Report": "accel.report",
    "Target": "accel.target",
    "Technique": "accel.technique",
    "accelerate": "accel.handle",
    "check": "accel.handle",
    "handles": "accel.handle",
    "load": "accel.loading",
    "presets": "accel.plan",
    "register": "accel.registry",
    "tune": "accel.measure.tune",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'accel' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
