"""The contract of a technique: frozen settings that can attach themselves to a pipeline, and detach without a trace."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from accel.clock import Clock
from accel.errors import AccelError
from accel.report import Recorder
from accel.sites import Family
from accel.target import Target

Claim = Literal[
    "schedule",
    "steps",
    "cross_attn_outputs",
    "self_attn_outputs",
    "block_outputs",
    "batch_halves",
    "constants",
    "pixels",
    "ranks",
    "linear_weights",
    "attention_kernel",
    "memory",
    "cache_storage",
    "models",
]
"""What a technique takes over. Two techniques with a claim in common are refused, whichever comes first."""

Detach = Callable[[], None]


@dataclasses.dataclass(frozen=True)
class Technique(ABC):
    """Base of every technique: a frozen dataclass of JSON-ready settings, checked in ``__post_init__``."""

    name: ClassVar[str]
    """The name in plans and on the command line."""
    summary: ClassVar[str]
    """One line for people."""
    source: ClassVar[str] = ""
    """The paper it comes from."""
    families: ClassVar[tuple[Family, ...]] = ("unet", "dit")
    lossless: ClassVar[bool] = False
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = MappingProxyType({})
    """Settings worth trying, for `accel.tune`; every combination of them must be valid."""

    @property
    @abstractmethod
    def claims(self) -> frozenset[Claim]:
        """What these settings take over."""

    @abstractmethod
    def problems(self, target: Target) -> list[str]:
        """Why these settings do not fit ``target``; empty when they do. Changes nothing."""

    @abstractmethod
    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Detach:
        """Install; returns what undoes it. Must leave ``target`` untouched when it raises."""

    def settings(self) -> dict[str, Any]:
        """The settings that differ from the defaults, JSON-ready."""
        changed = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                changed[field.name] = list(value) if isinstance(value, tuple) else value
        return changed

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Technique:
        """The inverse of `settings`; unknown keys are refused by name."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(settings) - known)
        if unknown:
            raise AccelError(f"{cls.name} has no setting {', '.join(unknown)}: it has {', '.join(sorted(known))}")
        try:
            return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()})
        except TypeError as error:  # a check in `__post_init__` met something it cannot even compare
            raise AccelError(f"{cls.name}: a setting has the wrong type: {error}") from None

    def __str__(self) -> str:
        inner = ", ".join(f"{key}={value}" for key, value in self.settings().items())
        return f"{self.name}({inner})" if inner else self.name


def positive(technique: Technique, **values: int) -> None:
    """Raise `AccelError` unless every value is a whole number of at least 1."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise AccelError(f"{technique.name}: {name} must be a whole number of at least 1, not {value!r}")
