"""The lossless tier: what is the same from call to call is computed once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from accel.caches.lossless.memo import Account
from accel.caches.lossless.places import Part, networks
from accel.caches.lossless.reuse import Reuse
from accel.clock import Clock
from accel.errors import AccelError
from accel.report import Recorder
from accel.target import Target
from accel.technique import Claim, Detach, Technique, positive

_SETTINGS: dict[str, Part] = {
    "text_kv": "text",
    "modulation": "modulation",
    "positions": "positions",
    "controlnet_halves": "control",
}


@dataclass(frozen=True)
class Lossless(Technique):
    """Remember what modules gave for an input, and hand it out when they are given the same again.

    No guess is made: a module's output is reused when its input is the same memory, unwritten since, or has the same
    bits. The picture keeps every bit, and the steps need not be alike, so that runs of two steps gain as well.

    Of a ControlNet, what it makes of the picture it follows is the same in all steps, and so are its keys and values of
    the text. Its residuals are not the same in both halves of a guided batch: its cross-attention sees the half's own
    text. (Where it sees none, in guess mode, pipelines run it on one half by themselves.)
    """

    name: ClassVar[str] = "lossless"
    summary: ClassVar[str] = "text projections, modulation and position tables that stay the same, computed once"
    lossless: ClassVar[bool] = True

    text_kv: bool = True
    """Projections of the text, and the keys and values of cross-attention; also those of IP-Adapters."""
    modulation: bool = True
    """What depends on the timestep or pooled conditions alone: two calls of one step share it."""
    positions: bool = True
    """Position tables that are made anew at each call."""
    controlnet_halves: bool = True
    """What a ControlNet makes of the picture it follows."""
    budget: int = 512
    """MiB that may be kept; the rest is computed."""

    def __post_init__(self) -> None:
        positive(self, budget=self.budget)
        for name in _SETTINGS:
            if not isinstance(getattr(self, name), bool):
                raise AccelError(f"lossless: {name} is true or false, not {getattr(self, name)!r}")
        if not self.parts:
            raise AccelError(f"lossless: {', '.join(_SETTINGS)} are all switched off: switch one on, or leave it out")

    @property
    def claims(self) -> frozenset[Claim]:
        return frozenset({"constants"})

    @property
    def parts(self) -> list[Part]:
        """Those that are switched on."""
        return [part for name, part in _SETTINGS.items() if getattr(self, name)]

    def problems(self, target: Target) -> list[str]:
        found = networks(target)
        if any(network.compiled or network.places(self.parts) for network in found):
            return []
        kinds = ", ".join(f"{network.name} ({type(network.module).__name__})" for network in found)
        asked = ", ".join(name for name, part in _SETTINGS.items() if part in self.parts)
        return [f"lossless: {kinds} has nothing that may stay the same from call to call ({asked}): leave it out"]

    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Detach:
        account = Account(self.name, recorder, self.budget << 20)
        return Reuse(self.name, networks(target), self.parts, account, clock).attach()
