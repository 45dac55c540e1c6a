"""Guidance only where it helps: off at high and at low noise (arXiv:2404.07724), and half of the batch saved there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from accel.caches.guidance import GuidanceExecutor
from accel.caches.table import Row
from accel.clock import Clock
from accel.errors import AccelError
from accel.report import Recorder
from accel.target import Target
from accel.technique import Claim, Detach, Technique


@dataclass(frozen=True)
class GuidanceInterval(Technique):
    """Guide only from the fraction ``start`` of the run to ``stop``; outside only the conditional half is computed.

    Which half that is cannot be known before the first step has ended, so that one is guided in any case.
    """

    name: ClassVar[str] = "interval"
    summary: ClassVar[str] = "guidance only in the middle of the run, half the batch outside of it"
    source: ClassVar[str] = "arXiv:2404.07724"
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {"start": (0.0, 0.2), "stop": (0.6, 0.8)}

    start: float = 0.0
    """Fraction of the steps before which there is no guidance."""
    stop: float = 0.8
    """Fraction of the steps from which on there is none."""

    def __post_init__(self) -> None:
        if any(isinstance(x, bool) or not isinstance(x, (int, float)) for x in (self.start, self.stop)) or not (
            0 <= self.start <= self.stop <= 1
        ):
            raise AccelError(
                f"interval: start and stop are fractions of the run, 0 <= start <= stop <= 1, not {self.start!r} and "
                f"{self.stop!r}"
            )

    @property
    def claims(self) -> frozenset[Claim]:
        return frozenset({"batch_halves"})

    def problems(self, target: Target) -> list[str]:
        return []

    def row(self, steps: int) -> Row:
        """``0`` where the difference of the halves is taken to be nothing."""
        begin, end = round(self.start * steps), round(self.stop * steps)
        return Row("0" * begin + "1" * (end - begin) + "0" * (steps - end), "zero")

    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Detach:
        return GuidanceExecutor(self.name, self.row, clock, recorder).attach()
