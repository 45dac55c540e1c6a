"""As many steps as fit in a time: a step is measured, and the schedule chosen that ends when it should.

The first run of its kind measures its first steps and thins the rest of its schedule; a later one of the same shape
knows before it begins, which gives the better picture.
"""

from __future__ import annotations

import math
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from accel.calls import Call
from accel.clock import Clock
from accel.errors import AccelError
from accel.handle import crowded
from accel.report import Recorder
from accel.schedulers.schedule import StepPlan, edits, ends_early, out_of_reach, thinned
from accel.schedulers.upfront import UpFront
from accel.target import Target
from accel.technique import Claim, Detach, Technique, positive

_MEASURED = 2
"""Steps of an unknown run that are measured, after a first one that may warm something up."""

Kind = tuple[Any, ...]
"""Rows and sample of a denoiser's call: what a step's time depends on."""


@dataclass(frozen=True)
class Deadline(Technique):
    """Take as many steps as the denoising loop can do in ``ms`` milliseconds, and never fewer than ``least``."""

    name: ClassVar[str] = "deadline"
    summary: ClassVar[str] = "as many steps as fit into a time, by the measured time of a step"

    ms: float = 1000.0
    """Time for the denoising loop; text encoder and decoder are not counted."""
    least: int = 4
    """Steps taken in any case."""

    def __post_init__(self) -> None:
        positive(self, least=self.least)
        if isinstance(self.ms, bool) or not isinstance(self.ms, (int, float)) or not self.ms > 0:
            raise AccelError(f"deadline: ms is a time in milliseconds above 0, not {self.ms!r}")

    @property
    def claims(self) -> frozenset[Claim]:
        return frozenset({"schedule"})

    def problems(self, target: Target) -> list[str]:
        reason = out_of_reach(target.pipe)
        return [f"deadline: {reason}"] if reason else []

    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Detach:
        return _Watch(self, clock, recorder).attach()


@dataclass
class _State:
    """What belongs to one run."""

    kind: Kind | None = None
    guessed: Kind | None = None
    """The kind of run for which its steps were chosen before it began."""
    ends: list[float] = field(default_factory=list)
    """When each step ended, by the clock on the wall."""


class _Watch:
    """Measures steps; chooses before a run where it can, in the middle of it where it must."""

    def __init__(self, settings: Deadline, clock: Clock, recorder: Recorder) -> None:
        self.settings, self.clock, self.recorder = settings, clock, recorder
        self.known: tuple[Kind, float] | None = None  # of the latest run: its kind, and the time of a step
        self.state = _State()
        self.up_front = UpFront(settings.name, self._choose, clock, recorder)
        self.up_front.rows.called, self.up_front.rows.stepped = self._called, self._stepped

    def attach(self) -> Detach:
        """Follow the run; returns what undoes it."""
        with ExitStack() as undo:
            undo.callback(self.up_front.attach())
            undo.callback(self.clock.subscribe(lambda run: None, self._end))
            return undo.pop_all().close

    def _choose(self, asked: int) -> list[StepPlan]:
        self.state = _State(guessed=self.known[0] if self.known else None)
        return [StepPlan(self._fitting(self.known[1])) if self.known else StepPlan()]

    def _fitting(self, seconds: float, spent: float = 0.0, done: int = 0) -> int:
        """Steps of so many ``seconds`` for which there is time, after ``done`` that took ``spent``."""
        return max(1, self.settings.least - done, math.floor((self.settings.ms / 1000 - spent) / seconds))

    def _called(self, call: Call) -> None:
        if self.state.kind is None:
            self.state.kind = (call.denoiser.name, call.batch, call.sample)
            self.state.ends.append(time.perf_counter())
            if self.state.guessed not in (None, self.state.kind):
                self.recorder.decline(self.settings.name, "the steps were chosen for a batch or size of another kind")

    def _stepped(self, output: torch.Tensor, sample: torch.Tensor) -> None:
        if sample.is_cuda:
            torch.cuda.synchronize(sample.device)  # a step's time is not known before it has ended
        self.state.ends.append(time.perf_counter())
        if self.state.kind != self.state.guessed and len(self.state.ends) == _MEASURED + 2:
            self._thin(len(sample))

    def _thin(self, batch: int) -> None:
        """The time of a step is known now, but the run has begun."""
        done, ends, scheduler = self.clock.step + 1, self.state.ends, self.clock.target.scheduler
        left = self._fitting(self._step_time(), ends[-1] - ends[0], done)
        if left >= self.clock.steps - done:
            return
        problem = edits(scheduler) or self.up_front.rows.problem or ends_early(scheduler, self.clock.run)
        if problem := problem or ("another technique counts in steps" if crowded(self.clock.target.pipe) else None):
            return self.recorder.decline(self.settings.name, f"only the next run is on time: {problem}")
        assert self.clock.run is not None
        before = self.clock.run.first + done
        self.recorder.left_out(self.settings.name, 0, done - self.clock.steps)  # from here on each call is a cell
        self.up_front.rows.divide(range(batch), batch, lambda own: thinned(own, before, left), before)

    def _step_time(self) -> float:
        ends = self.state.ends[1:]  # the first step may have warmed something up
        return statistics.median(b - a for a, b in zip(ends, ends[1:], strict=False))

    def _end(self) -> None:
        if self.state.kind is not None and len(self.state.ends) >= _MEASURED + 2:
            self.known = self.state.kind, self._step_time()
        self.state = _State()
