"""A number of steps, or the steps themselves: the constant that every cleverer rule has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from accel.clock import Clock
from accel.errors import AccelError
from accel.report import Recorder
from accel.schedulers.probe import abilities, equivalent
from accel.schedulers.schedule import StepPlan, out_of_reach
from accel.schedulers.upfront import UpFront
from accel.target import Target
from accel.technique import Claim, Detach, Technique, positive


@dataclass(frozen=True)
class Steps(Technique):
    """Run ``count`` steps, or these ``timesteps``, whatever a longer call asks for. A shorter one is left alone."""

    name: ClassVar[str] = "steps"
    summary: ClassVar[str] = "a fixed number of steps, or a schedule of its own, instead of what a longer call asks for"

    count: int | None = None
    """Number of steps in the scheduler's own spacing."""
    timesteps: tuple[float, ...] = ()
    """Or the steps themselves, falling, in training timesteps (999 is nearly all noise with most models)."""

    def __post_init__(self) -> None:
        if self.count is not None and self.timesteps:
            raise AccelError("steps: give either a count or timesteps, not both")
        if self.count is not None:
            positive(self, count=self.count)
        falls = all(later < earlier for earlier, later in zip(self.timesteps, self.timesteps[1:], strict=False))
        if self.timesteps and not (falls and self.timesteps[-1] >= 0):
            raise AccelError(f"steps: timesteps fall from step to step and are not negative, unlike {self.timesteps}")

    @property
    def claims(self) -> frozenset[Claim]:
        return frozenset({"schedule"})

    def problems(self, target: Target) -> list[str]:
        if self.count is None and not self.timesteps:
            return ["steps: say how many steps, with a count or timesteps"]
        if reason := out_of_reach(target.pipe):
            return [f"steps: {reason}"]
        most = target.scheduler.config.get("num_train_timesteps", 1000)
        if self.timesteps and self.timesteps[0] > most:
            return [f"steps: timestep {self.timesteps[0]:g} is beyond the {most} that the model was trained with"]
        can = abilities(target.scheduler)
        reason = can.timesteps if self.timesteps else can.count
        hint = equivalent(target.scheduler) if self.timesteps else None
        return [f"steps: {reason}" + (f"; {hint}" if hint else "")] if reason else []

    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Detach:
        plan = StepPlan(self.count, self.timesteps)

        def choose(asked: int) -> list[StepPlan]:
            return [plan if plan.steps(asked) <= asked else StepPlan()]

        return UpFront(self.name, choose, clock, recorder).attach()
