"""What quality may not fall below when a plan is tuned."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from accel.errors import AccelError

_UNSEEN = 100
"""Points that stay unseen, times prompts: where no picture loses a fact, up to three in so many still may (the rule of
three, at 95 %), one of the three facts and more that a prompt worth judging by states."""


@dataclass(frozen=True)
class Floor:
    """What quality may not fall below.

    Attributes:
        kind: ``"psnr"``, mean distance to the long run in dB; or ``"facts"``, attribute accuracy (the share of the
            stated facts that hold, by picture), against the long run's.
        value: In dB; or how many points (hundredths) the accuracy may fall.
    """

    kind: str
    value: float

    @classmethod
    def of(cls, text: str | Mapping[str, float]) -> Floor:
        """``"40 dB"`` or ``"1 point"``, ``{"psnr": 40}`` or ``{"facts": 1}``; `AccelError` for anything else."""
        if isinstance(text, Mapping):
            return cls._named(text)
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(db|points?)\s*", text, re.IGNORECASE)
        if not match:
            raise AccelError(f"a floor is a distance such as '40 dB' or a loss such as '1 point', not {text!r}")
        return cls("psnr" if match[2].lower() == "db" else "facts", float(match[1]))

    @classmethod
    def _named(cls, given: Mapping[str, float]) -> Floor:
        ((kind, value),) = given.items() if len(given) == 1 else ((None, None),)
        if kind not in ("psnr", "facts") or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise AccelError(f"a floor is one of {{'psnr': dB}} and {{'facts': points}}, not {dict(given)!r}")
        return cls(kind, float(value))

    @classmethod
    def asked(
        cls, floor: Floor | str | Mapping[str, float], prompts: int, fewest: int, doing: str, judged: bool
    ) -> Floor:
        """``floor`` as one, for half of so many ``prompts`` to show that it is kept; `AccelError` where they cannot."""
        floor = floor if isinstance(floor, Floor) else cls.of(floor)
        if prompts < fewest:
            raise AccelError(f"{prompts} prompts are too few to {doing} on: give at least {fewest}")
        if floor.kind == "facts" and not judged:
            raise AccelError(
                "a floor in points needs a judge who knows what the prompts state: give one, or a floor in dB"
            )
        floor.check(prompts // 2)
        return floor

    @property
    def promise(self) -> str:
        """The promise of a plan that keeps it."""
        return "same picture" if self.kind == "psnr" else "same content"

    def __str__(self) -> str:
        return f"{self.value:g} dB" if self.kind == "psnr" else f"{self.value:g} point" + "s" * (self.value != 1)

    def check(self, fresh: int) -> None:
        """Raise `AccelError` where ``fresh`` prompts cannot show that the floor is kept."""
        if self.kind == "facts" and self.value < (least := _UNSEEN / fresh):
            needed = f"{math.ceil(2 * _UNSEEN / self.value)} prompts in all" if self.value else "up the idea of no loss"
            raise AccelError(
                f"{fresh} prompts to judge by cannot tell a loss of {self}: give {needed}, or a floor of "
                f"{math.ceil(least)} points"
            )
