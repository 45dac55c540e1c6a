"""A number of steps, their spacing, or the steps themselves: the constant that every cleverer rule has to beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from accel.clock import Clock
from accel.errors import AccelError
from accel.report import Recorder
from accel.schedulers.probe import abilities, equivalent
from accel.schedulers.schedule import StepPlan, out_of_reach
from accel.schedulers.spacing import SPACINGS, spaced, unfit
from accel.schedulers.upfront import UpFront
from accel.target import Target
from accel.technique import Claim, Detach, Technique, positive


@dataclass(frozen=True)
class Steps(Technique):
    """Run ``count`` steps, a ``share`` of the call's, or these ``timesteps``. A shorter call is left alone.

    A ``spacing`` says where the steps lie, as many as were chosen or else the call says, and never more than the call.
    """

    name: ClassVar[str] = "steps"
    summary: ClassVar[str] = "a fixed number of steps, or a schedule of its own, instead of what a longer call asks for"

    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {"spacing": SPACINGS}

    count: int | None = None
    """Number of steps."""
    spacing: str = ""
    """Where they lie: karras, exponential, ays_sd15, ays_sdxl or ays_svd; the solver's own where none is given."""
    timesteps: tuple[float, ...] = ()
    """Or the steps themselves, falling, in training timesteps (999 is nearly all noise with most models)."""
    share: float | None = None
    """Or what share of the call's steps, so that one plan serves calls of any length."""
    least: int = 10
    """A share never makes a run shorter than this: models made for few steps keep theirs."""

    def __post_init__(self) -> None:
        numbers = [name for name in ("count", "share", "timesteps") if getattr(self, name) not in (None, ())]
        if len(numbers) > 1:
            raise AccelError(f"steps: give one of {' and '.join(numbers)}, not both")
        positive(self, least=self.least, **({} if self.count is None else {"count": self.count}))
        if self.share is not None and not 0 < self.share <= 1:
            raise AccelError(f"steps: share is above 0 and at most 1, not {self.share!r}")
        if self.spacing and self.timesteps:
            raise AccelError("steps: give either a spacing or timesteps, not both")
        if self.spacing and self.spacing not in SPACINGS:
            raise AccelError(f"steps: no spacing is called {self.spacing!r}: there are {', '.join(SPACINGS)}")
        falls = all(later < earlier for earlier, later in zip(self.timesteps, self.timesteps[1:], strict=False))
        if self.timesteps and not (falls and self.timesteps[-1] >= 0):
            raise AccelError(f"steps: timesteps fall from step to step and are not negative, unlike {self.timesteps}")

    @property
    def claims(self) -> frozenset[Claim]:
        return frozenset({"schedule"})

    def problems(self, target: Target) -> list[str]:
        if self == Steps(least=self.least):
            return ["steps: say how many, with a count, a share or timesteps, or where they lie, with a spacing"]
        if reason := out_of_reach(target.pipe):
            return [f"steps: {reason}"]
        most = target.scheduler.config.get("num_train_timesteps", 1000)
        if self.timesteps and self.timesteps[0] > most:
            return [f"steps: timestep {self.timesteps[0]:g} is beyond the {most} that the model was trained with"]
        can, own = abilities(target.scheduler), bool(self.timesteps or self.spacing)
        if reason := can.timesteps if own else can.count:
            hint = equivalent(target.scheduler) if own else None
            return [f"steps: {reason}" + (f"; {hint}" if hint else "")]
        reason = unfit(target.scheduler, self.spacing) if self.spacing else None
        return [f"steps: {reason}"] if reason else []

    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Detach:
        def choose(asked: int) -> list[StepPlan]:
            scheduler = clock.target.scheduler
            if self.spacing and (reason := unfit(scheduler, self.spacing)):  # it was swapped
                up_front.decline(reason)
                return [StepPlan()]
            return [self._plan(scheduler, asked)]

        up_front = UpFront(self.name, choose, clock, recorder)
        return up_front.attach()

    def _plan(self, scheduler: Any, asked: int) -> StepPlan:
        if self.spacing:
            return StepPlan(timesteps=spaced(scheduler, self.spacing, self._count(asked)))
        if self.timesteps:
            return StepPlan(timesteps=self.timesteps) if len(self.timesteps) <= asked else StepPlan()
        return StepPlan(self._count(asked))

    def _count(self, asked: int) -> int:
        """How many of the steps that a call asks for are run."""
        if self.share is not None:
            return min(asked, max(self.least, round(self.share * asked)))
        return min(asked, self.count or asked)
