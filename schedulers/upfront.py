"""Deciding the schedule before the first step, the best time to do so: solver, caches and batch all know it.

What a pipeline asks ``scheduler.set_timesteps`` for is replaced on the way, so that a run under a plan of ``n`` steps
*is* the plain run at ``n`` steps, to the bit. Image-to-image pipelines cut the schedule by the number of steps that
they were asked for; they are told the new one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from accel.clock import Clock
from accel.handle import crowded
from accel.report import Recorder
from accel.runs import Run
from accel.schedulers.probe import doubles
from accel.schedulers.rows import Rows, unfit
from accel.schedulers.schedule import Asked, StepPlan, edits, rewrite
from accel.tap import guard

Choose = Callable[[int], list[StepPlan]]
"""For the number of steps asked for: one plan for the whole batch, or one for each picture."""


class UpFront:
    """Replaces schedules for a technique, see the module's text.

    Args:
        technique: In whose name it is done.
        choose: Decides.
        clock: The pipeline's clock.
        recorder: Is told what was left out, and why not more.
    """

    def __init__(self, technique: str, choose: Choose, clock: Clock, recorder: Recorder) -> None:
        self.technique, self.choose, self.clock, self.recorder = technique, choose, clock, recorder
        self.rows = Rows(technique, clock, recorder)
        self.asked = self.given = 0
        self._plans: list[StepPlan] = []  # by picture, where they differ
        self._shorter: Callable[[int], dict[str, Any]] = lambda count: {}
        self._moved = False  # as many steps as asked for, elsewhere
        self._reasons: list[str] = []  # for the run to come: its report does not exist yet

    def attach(self) -> Callable[[], None]:
        """Stand around the scheduler; returns what undoes it."""
        pipe = self.clock.target.pipe
        with ExitStack() as undo:
            undo.callback(self.rows.attach())
            undo.callback(self.clock.guard_scheduler(set_timesteps=self._set))
            if hasattr(pipe, "get_timesteps"):
                undo.callback(guard(pipe, "get_timesteps", self._cut))
            undo.callback(self.clock.subscribe(self._begin, lambda: None))
            self.recorder.matched(self.technique, 1)
            return undo.pop_all().close

    def decline(self, reason: str) -> None:
        """Say in the report of the run to come why its steps were not changed, or not all that much."""
        self._reasons.append(reason)

    # --- before the run ----------------------------------------------------------------------------------------

    def _set(self, proceed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.clock.ours():
            return proceed(*args, **kwargs)
        asked = Asked.of(self.clock.target.scheduler, args, kwargs)
        self.asked = self.given = asked.count
        self._plans = []
        if asked.own or not asked.count:
            self.decline("the call brings timesteps of its own" if asked.own else "it asks for no number of steps")
            return proceed(*args, **kwargs)
        plans = self.choose(asked.count)
        longest = max(plans, key=lambda plan: plan.steps(asked.count))
        return self._apply(plans, longest, asked, proceed)

    def _apply(self, plans: list[StepPlan], longest: StepPlan, asked: Asked, proceed: Callable[..., Any]) -> Any:
        scheduler, count = self.clock.target.scheduler, longest.steps(asked.count)
        if count == asked.count and not longest.timesteps:
            self.decline("the call asks for no more steps than that")
            result = proceed(**asked.arguments)
        else:
            result = proceed(**asked.at(count))
            if problem := _put(scheduler, longest) or doubles(scheduler):
                self.decline(problem)
                return proceed(**asked.arguments)
            if count == asked.count:
                self._moved = True
        self.given = count
        self._plans = plans if len(set(plans)) > 1 else []
        self._shorter = asked.at
        return result

    def _cut(self, proceed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``pipe.get_timesteps(num_inference_steps, strength, …)`` of an image-to-image pipeline."""
        if not self.given:  # not in a call of the pipeline
            return proceed(*args, **kwargs)
        if "num_inference_steps" in kwargs:
            return proceed(*args, **{**kwargs, "num_inference_steps": self.given})
        return proceed(self.given, *args[1:], **kwargs)

    # --- the run -----------------------------------------------------------------------------------------------

    def _begin(self, run: Run) -> None:
        for reason in self._reasons:
            self.recorder.decline(self.technique, reason)
        self._reasons.clear()
        if self._moved:
            self.recorder.acted(self.technique)
        self._moved = False
        plans, self._plans = self._plans, []
        if not self.given:
            return self.recorder.decline(self.technique, "the loop was begun before the plan could choose its steps")
        planned = round(run.steps * self.asked / self.given)
        self.recorder.left_out(self.technique, max(0, planned - run.steps), 0 if plans else run.steps)
        if plans:
            self._divide(run, plans)
        self.given = 0  # said anew before every run

    def _divide(self, run: Run, plans: list[StepPlan]) -> None:
        """Pictures that take fewer steps than the longest run get a scheduler of their own."""
        problem = "the run begins in the middle of its schedule" if run.steps < self.given else None
        problem = problem or unfit(self.clock.target)
        if problem := problem or ("another technique counts in steps" if crowded(self.clock.target.pipe) else None):
            return self.recorder.decline(self.technique, f"all pictures take the most steps that one needs: {problem}")
        by_plan: dict[StepPlan, list[int]] = {}
        for picture, plan in enumerate(plans):
            by_plan.setdefault(plan, []).append(picture)
        for plan, pictures in by_plan.items():
            self.rows.divide(pictures, len(plans), partial(self._follow, plan), 0)

    def _follow(self, plan: StepPlan, scheduler: Any) -> None:
        scheduler.set_timesteps(**self._shorter(plan.steps(self.asked)))
        _put(scheduler, plan)


def _put(scheduler: Any, plan: StepPlan) -> str | None:
    """Give a scheduler that was set to the right number of steps the plan's own; why not, where it takes none."""
    if not plan.timesteps:
        return None
    if problem := edits(scheduler):
        return problem
    rewrite(scheduler, plan.timesteps)
    return None
