"""Finding techniques by name without importing them all.

Each technique package lists its own in ``TECHNIQUES`` (name → ``"module:Class"``); a new technique joins with one line
there.
"""

from __future__ import annotations

import difflib
import importlib

from accel.errors import AccelError
from accel.technique import Technique

_registered: dict[str, type[Technique]] = {}

PACKAGES = ("accel.caches", "accel.schedulers", "accel.parallel", "accel.distill")


def names() -> list[str]:
    """Names of every registered technique."""
    return sorted({*_places(), *_registered})


def register(cls: type[Technique]) -> type[Technique]:
    """Make a technique of your own known by its name, so that plans can be saved and loaded; a class decorator.

    Raises `AccelError` when the name is taken by another class.
    """
    if cls.name in _places() or _registered.get(cls.name, cls) is not cls:
        raise AccelError(f"a technique is called {cls.name!r} already: give {cls.__name__} another name")
    _registered[cls.name] = cls
    return cls


def find(name: str) -> type[Technique]:
    """The class of the technique called ``name``; raises `AccelError` with the nearest names for an unknown one."""
    if name in _registered:
        return _registered[name]
    places = _places()
    if name not in places:
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names())}"
        raise AccelError(f"no technique is called {name!r}: {hint}")
    module, _, cls = places[name].partition(":")
    return getattr(importlib.import_module(module), cls)


def _places() -> dict[str, str]:
    return {
        name: place
        for package in PACKAGES
        for name, place in getattr(importlib.import_module(package), "TECHNIQUES", {}).items()
    }
