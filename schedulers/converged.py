"""Stopping when the picture has converged, without training: the rest of the schedule is re-spaced, never cut off.

At every step the model's output says what the clean sample would be, x0. Once it hardly changes any more,

    |x0_k - x0_{k-1}| / |x0_k|  <=  threshold        (root mean squares, per picture)

the remaining steps have little left to decide. Breaking off there would leave noise in the sample, so the tail is
thinned to a few of its own steps, down to the last noise level. Each picture of a batch decides for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from accel.clock import Clock
from accel.errors import AccelError
from accel.report import Recorder
from accel.schedulers.levels import clean
from accel.schedulers.probe import abilities, equivalent
from accel.schedulers.rows import Rows
from accel.schedulers.schedule import edits, ends_early, out_of_reach, thinned
from accel.target import Target
from accel.technique import Claim, Detach, Technique, positive


@dataclass(frozen=True)
class Converged(Technique):
    """Finish a picture in ``tail`` steps once its predicted clean sample has stopped changing."""

    name: ClassVar[str] = "converged"
    summary: ClassVar[str] = "the rest of the schedule thinned to a few steps once the predicted picture stands still"
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {"threshold": (0.02, 0.05, 0.1)}

    threshold: float = 0.02
    """Relative change of the predicted clean sample from one step to the next that counts as standing still."""
    warm_up: int = 4
    """Steps taken in any case."""
    patience: int = 2
    """Steps in a row that must stand still."""
    tail: int = 3
    """Steps in which the picture is then finished."""

    def __post_init__(self) -> None:
        positive(self, warm_up=self.warm_up, patience=self.patience, tail=self.tail)
        if isinstance(self.threshold, bool) or not self.threshold >= 0:
            raise AccelError(f"converged: threshold is a relative change, 0 or more, not {self.threshold!r}")

    @property
    def claims(self) -> frozenset[Claim]:
        """What other techniques count in steps cannot be counted when the steps change under way."""
        return frozenset(
            {"schedule", "steps", "cross_attn_outputs", "self_attn_outputs", "block_outputs", "batch_halves", "models"}
        )

    def problems(self, target: Target) -> list[str]:
        if reason := out_of_reach(target.pipe):
            return [f"converged: {reason}"]
        if reason := abilities(target.scheduler).tail:
            hint = equivalent(target.scheduler)
            return [f"converged: the tail of the schedule cannot be changed: {reason}" + (f"; {hint}" if hint else "")]
        return []

    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Detach:
        return _Watch(self, clock, recorder).attach()


@dataclass
class _State:
    """What belongs to one run."""

    least: float = float("inf")
    """The smallest change seen."""
    before: torch.Tensor | None = None
    """The clean sample predicted in the step before, all pictures."""
    still: dict[int, int] = field(default_factory=dict)
    """Steps in a row in which a picture stood still."""
    finishing: set[int] = field(default_factory=set)


class _Watch:
    """Compares predicted clean samples and sends pictures to the end."""

    def __init__(self, settings: Converged, clock: Clock, recorder: Recorder) -> None:
        self.settings, self.clock, self.recorder = settings, clock, recorder
        self.rows = Rows(settings.name, clock, recorder, self._stepped)
        self.state = _State()

    def attach(self) -> Detach:
        """Follow the run; returns what undoes it."""
        with ExitStack() as undo:
            undo.callback(self._end)
            undo.callback(self.rows.attach())
            undo.callback(self.clock.subscribe(lambda run: None, self._end))
            self.recorder.matched(self.settings.name, 1)
            return undo.pop_all().close

    def _end(self) -> None:
        if self.state.before is not None and not self.state.finishing:
            self.recorder.decline(self.settings.name, f"no picture stood still (least change {self.state.least:.2g})")
        self.state = _State()

    @torch.no_grad()
    def _stepped(self, output: torch.Tensor, sample: torch.Tensor) -> None:
        step, run, state = self.clock.step, self.clock.run, self.state
        if self.clock.steps - step - 1 <= self.settings.tail or len(state.finishing) == len(sample):
            return
        scheduler = self.clock.target.scheduler
        if problem := self.rows.problem or edits(scheduler) or ends_early(scheduler, run):
            return self.recorder.decline(self.settings.name, problem)
        now = clean(scheduler, output, sample, self.clock.time)
        change = _change(now, state.before)
        state.before, state.least = now, min([state.least, *change])
        for picture, moved in enumerate(change):
            still = moved <= self.settings.threshold
            state.still[picture] = state.still.get(picture, 0) + 1 if still else 0
        ready = {p for p, count in state.still.items() if count >= self.settings.patience} - state.finishing
        if ready and step + 1 >= self.settings.warm_up:
            assert run is not None
            self._finish(ready, len(sample), run.first + step + 1)

    def _finish(self, pictures: set[int], batch: int, done: int) -> None:
        self.state.finishing |= pictures
        self.rows.divide(pictures, batch, lambda scheduler: thinned(scheduler, done, self.settings.tail), done)


def _change(now: torch.Tensor, before: torch.Tensor | None) -> list[float]:
    """|now - before| / |now| of every row, infinite where there is nothing to compare with. Waits for a GPU."""
    if before is None or before.shape != now.shape:
        return [float("inf")] * len(now)
    difference, size = ((t.flatten(1) ** 2).mean(1).sqrt() for t in (now - before, now))
    return (difference / size.clamp_min(1e-12)).tolist()
