"""What an evaluation found, as text and as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from accel.measure.intervals import Interval
from accel.tables import aligned

TARGETS = (0.8, 0.9, 0.95)
HEADLINE = 0.95
"""The target that the verdict is about."""

DEPLOYED = ("predictor, good", "predictor, steps", "constant, good", "constant, steps")


@dataclass(frozen=True)
class Verdict:
    """Whether to ship the predictor, and why."""

    ship: bool
    reason: str

    def __str__(self) -> str:
        return f"{'use the predictor' if self.ship else 'use the constant'}: {self.reason}"


@dataclass(frozen=True)
class Evaluation:
    """What was found.

    Attributes:
        goal: When a picture counted as good.
        correlation: Intraclass correlation of log N*: the share of the spread of needs that is the prompts' own.
        needs: By way and target the mean steps needed; the value is ``nan`` where no knob reaches the target.
        gains: By target 1 - predictor / mixture, paired over prompts.
        deployed: By target what calibration alone leads to: good pictures and steps, of the predictor and a constant.
        rank: Spearman's correlation of expected and measured need, over prompts.
        by_count: Share of good pictures by constant count.
        prompts: How many.
        seeds: Pictures of each.
        verdict: The conclusion.
    """

    goal: str
    correlation: Interval
    needs: dict[str, dict[float, Interval]]
    gains: dict[float, Interval]
    deployed: dict[float, dict[str, Interval]]
    rank: float
    by_count: dict[int, float]
    prompts: int
    seeds: int
    verdict: Verdict

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: what is not known is ``None``, targets are text."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain

    def __str__(self) -> str:
        lines = [
            f"{self.prompts} prompts with {self.seeds} pictures each, good: {self.goal}",
            f"intraclass correlation of log N*: {self.correlation}",
            f"rank correlation of expected and measured need: {self.rank:.2f}",
            "",
            aligned(
                ["mean steps needed", *(f"{target:.0%} good" for target in TARGETS)],
                [[name, *(_shown(found[target]) for target in TARGETS)] for name, found in self.needs.items()],
            ),
            "",
            aligned(
                ["as calibrated", *(f"asked for {target:.0%}" for target in TARGETS)],
                [[name, *(_shown(self.deployed[target][name]) for target in TARGETS)] for name in DEPLOYED],
            ),
            "",
            "fewer steps than two constants mixed: "
            + ", ".join(f"{percent(gain)} at {target:.0%}" for target, gain in self.gains.items()),
            str(self.verdict),
        ]
        return "\n".join(lines)


def percent(gain: Interval) -> str:
    """``"12.3% (4.5% to 20.1%)"``."""
    if math.isnan(gain.value):
        return "not known"
    return f"{gain.value:.1%} ({gain.low:.1%} to {gain.high:.1%})"


def _shown(interval: Interval) -> str:
    return "not reached" if math.isnan(interval.value) else str(interval)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
