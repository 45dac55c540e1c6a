"""Finding techniques by name without importing them all.

Each technique package lists its own in ``TECHNIQUES`` (name → ``"module:Class"``); a new technique joins with one line
there.
"""

from __future__ import annotations

import difflib
import importlib

from accel.errors import AccelError
from accel.technique import Technique

PACKAGES = ("accel.caches", "accel.schedulers", "accel.parallel", "accel.distill")


def names() -> list[str]:
    """Names of every registered technique."""
    return sorted(_places())


def find(name: str) -> type[Technique]:
    """The class of the technique called ``name``; raises `AccelError` with the nearest names for an unknown one."""
    places = _places()
    if name not in places:
        near = difflib.get_close_matches(name, places, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(places))}"
        raise AccelError(f"no technique is called {name!r}: {hint}")
    module, _, cls = places[name].partition(":")
    return getattr(importlib.import_module(module), cls)


def _places() -> dict[str, str]:
    return {
        name: place
        for package in PACKAGES
        for name, place in getattr(importlib.import_module(package), "TECHNIQUES", {}).items()
    }
