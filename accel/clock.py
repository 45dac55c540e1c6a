"""Where in a run are we? One clock per accelerated pipeline tells every technique the same answer.

The clock listens to two methods of the pipeline's own scheduler object: ``set_timesteps`` begins a run, ``step`` ends a
step. Nearly every diffusers pipeline goes through them, whatever its solver, strength or guidance. A hook on each
denoiser supplies the rest: which branch is being computed, and with how many rows.

A denoiser and a scheduler may be shared by several pipelines, but a plan belongs to one of them. Whose call it is can
be read off the call stack: the nearest caller that is a diffusers pipeline. A hand-written loop has none; its calls
belong to every pipeline accelerated over these components.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import torch

from accel.calls import Call, Calls, DenoiserHook, Interceptor, Lane, Proceed, only, part, through
from accel.errors import AccelWarning
from accel.hooks import install
from accel.report import Recorder
from accel.runs import Run, calling_pipeline, main_input, step_time
from accel.tap import Guard, guard, listen
from accel.target import Denoiser, Target, unwrap
from accel.tensors import Tree, height


class Clock:
    """Tells ``run``, ``step``, ``steps``, ``time``, ``sigma`` and ``call``; calls back at run boundaries."""

    def __init__(self, target: Target, recorder: Recorder):
        self.target, self.recorder = target, recorder
        self.run: Run | None = None
        self.step = 0
        self.call: Call | None = None
        self._begin_run: list[Callable[[Run], None]] = []
        self._end_run: list[Callable[[], None]] = []
        self._interceptors: list[Interceptor] = []
        self._guards: list[tuple[str, Guard]] = []  # methods of the scheduler, and what stands around them
        self._owner: Any = None  # the pipeline whose run this is, None for a hand-written loop
        self._scheduler: Any = None
        self._pending = False
        self._bar: Callable[[], None] | None = None  # stops listening to the progress bar of the newest loop
        self._calls = Calls()
        self._stops = ExitStack()

    # --- attaching ---------------------------------------------------------------------------------------------

    def attach(self) -> Callable[[], None]:
        """Listen to the scheduler and hook the denoisers; returns the function that undoes both."""
        with ExitStack() as undo:
            undo.callback(self._finish)
            undo.callback(self._stops.close)
            self._follow(self.target.scheduler)
            undo.callback(self._follow_pipeline(self.target.pipe))
            for denoiser in self.target.denoisers:
                undo.callback(install(denoiser.module, DenoiserHook(denoiser, self.around), "clock"))
            return undo.pop_all().close

    def _follow(self, scheduler: Any) -> None:
        self._stops.close()
        self._scheduler = scheduler
        self._stops.callback(listen(scheduler, "set_timesteps", self._on_set_timesteps))
        self._stops.callback(listen(scheduler, "step", self._on_step))
        for method, around in self._guards:
            if hasattr(scheduler, method):
                self._stops.callback(guard(scheduler, method, around))

    def _follow_pipeline(self, pipe: Any) -> Callable[[], None]:
        ends = {
            "check_inputs": self._on_check_inputs,
            "maybe_free_model_hooks": self._on_pipeline_end,
            "progress_bar": self._on_progress_bar,
        }
        with ExitStack() as undo:
            for name in filter(partial(hasattr, pipe), ends):
                undo.callback(listen(pipe, name, ends[name]))
            return undo.pop_all().close

    def subscribe(
        self,
        begin: Callable[[Run], None],
        end: Callable[[], None],
        around: Interceptor | None = None,
        outermost: bool = False,
    ) -> Callable[[], None]:
        """Be told when a run begins and ends, and stand around every denoiser call; returns what undoes it."""
        self._begin_run.append(begin)
        self._end_run.append(end)
        if around:
            self._interceptors.insert(0 if outermost else len(self._interceptors), around)

        def unsubscribe() -> None:
            self._begin_run.remove(begin)
            self._end_run.remove(end)
            if around:
                self._interceptors.remove(around)

        return unsubscribe

    def guard_scheduler(self, **around: Guard) -> Callable[[], None]:
        """Stand around methods of the pipeline's scheduler, whichever object that is; returns what undoes it.

        Calls of other pipelines that share the scheduler come through as well: ask `ours`.
        """
        self._guards += around.items()
        self._follow(self._scheduler)

        def undo() -> None:
            for each in around.items():
                self._guards.remove(each)
            self._follow(self._scheduler)

        return undo

    @property
    def standing(self) -> int:
        """How many techniques stand around the denoiser calls."""
        return len(self._interceptors)

    @property
    def lane(self) -> Lane:
        """The rows of the batch that are now going through the denoiser."""
        return part(self.target.pipe)[0]

    def only(self, lane: Lane) -> AbstractContextManager[None]:
        """While in this context, just these rows of the batch go through the denoiser."""
        assert self.call is not None
        return only(self.target.pipe, lane, self.call.batch)

    # --- what the scheduler tells ------------------------------------------------------------------------------

    def _on_set_timesteps(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if self.ours():
            self._finish(aborted=True)
            self._pending = True
            self._warn_if_replaced()

    def _warn_if_replaced(self) -> None:
        for denoiser in self.target.denoisers:
            now: Any = getattr(self.target.pipe, denoiser.name, None)
            if unwrap(now) is not denoiser.module:
                text = f"{denoiser.name} was replaced after the plan was attached: remove the plan and attach it again"
                warnings.warn(text, AccelWarning, stacklevel=2)

    def _on_step(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if self.run is None or calling_pipeline() is not self._owner:
            return
        if self.step == 1 and self._repeated(step_time(self._scheduler, args, kwargs)):
            text = (
                "the loop takes several solver steps at one timestep (views, tiles): this run goes on without the plan"
            )
            warnings.warn(text, AccelWarning, stacklevel=2)
            return self._finish(aborted=True)
        self._calls.step_ended(self._scheduler, args, kwargs)
        self.step += 1
        self.recorder.step_ended()
        if self.step == self.run.steps:
            self._finish()

    def _repeated(self, time: float | None) -> bool:
        """Is the second solver step one at the first's timestep, although the schedule goes on?"""
        assert self.run is not None
        first, second = self.run.times[:2]
        return time == first != second

    def _on_check_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A pipeline's call begins: a scheduler that was swapped is followed before it is asked for its steps."""
        if self.target.scheduler is not self._scheduler and self.ours():
            self._finish(aborted=True)
            self._follow(self.target.scheduler)

    def _on_pipeline_end(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Pipelines free their hooks as the last thing: a run that was interrupted, or cut short, ends here."""
        self._finish()

    def _on_progress_bar(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """The bar is closed when the loop is left, also by an error: what the run kept is freed at once."""
        if not hasattr(result, "close") or not self.ours():
            return

        def closed(*_: Any) -> None:
            stop()
            newest = self._bar is stop  # bars also close when they are collected, perhaps in the middle of a later run
            if newest and self.run is not None:  # a bar of an earlier stage says nothing about the run to come
                self._finish(aborted=sys.exc_info()[0] is not None)

        self._bar = stop = listen(result, "close", closed)

    def ours(self) -> bool:
        """Is the pipeline itself, or a hand-written loop, making the call that is going on?"""
        owner = calling_pipeline()
        return owner is None or owner is self.target.pipe

    # --- what the denoisers tell -------------------------------------------------------------------------------

    def around(self, denoiser: Denoiser, context: str | None, forward: Proceed, args: Any, kwargs: Any) -> Tree:
        """Run one denoiser call through the interceptors, if it belongs to a run of this pipeline."""
        owner = calling_pipeline()
        if owner not in (None, self.target.pipe) or not self._ready(denoiser, owner, args, kwargs):
            return forward(*args, **kwargs)
        _, full = part(self.target.pipe)
        self.call = call = self._calls.describe(denoiser, context, full, args, kwargs)
        self.recorder.call(f"{denoiser.name}/{call.branch}", call.batch)

        def compute(*args: Any, **kwargs: Any) -> Tree:
            self.recorder.computed(height(main_input(denoiser.module, args, kwargs)))
            return forward(*args, **kwargs)

        try:
            output = through(self._interceptors, call, compute)(*args, **kwargs)
            self._calls.answered(output)
            return output
        except BaseException:
            self._finish(aborted=True)
            raise
        finally:
            self.call = None

    def _ready(self, denoiser: Denoiser, owner: Any, args: Any, kwargs: Any) -> bool:
        """Is there a run to count this call in? Begins one lazily: only now is the loop's first timestep known."""
        if self.target.scheduler is not self._scheduler:
            self._finish()
            self._follow(self.target.scheduler)
            self._pending = True
        if self._pending:
            self._pending = False
            self._begin(denoiser, owner, args, kwargs)
        if self.run is None or owner is not self._owner:  # after a pipeline's run broke off, a direct call is no part
            return False
        if torch.is_grad_enabled() and any(p.requires_grad for p in denoiser.module.parameters()):
            self.recorder.decline("clock", "gradients are being recorded: run under torch.no_grad()")
            return False
        if problem := self._calls.lost(denoiser, self._scheduler):
            self.recorder.decline("clock", problem)
            return False
        return True

    def _begin(self, denoiser: Denoiser, owner: Any, args: Any, kwargs: Any) -> None:
        planned = getattr(owner, "_num_timesteps", None)  # set by the pipeline just before its loop
        self.run, self.step, self._owner = Run.of(self._scheduler, denoiser.module, planned, args, kwargs), 0, owner
        if self.run is None:
            return
        self._calls = Calls()
        self.recorder.run_began(self.run.steps)
        for callback in self._begin_run:
            callback(self.run)

    # --- ends --------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget the current run, if any, and free what techniques keep for it."""
        self._finish(aborted=True)

    def _finish(self, aborted: bool = False) -> None:
        self._pending = False
        if self.run is None:
            return
        self.run = None
        for callback in self._end_run:
            callback()
        self.recorder.run_ended(aborted)

    # --- where ---------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Steps of the current run, 0 outside of one."""
        return self.run.steps if self.run else 0

    @property
    def time(self) -> float:
        """The solver's timestep of the current step."""
        assert self.run is not None
        return self.run.times[min(self.step, self.run.steps - 1)]

    @property
    def sigma(self) -> float:
        """Noise level of the current step, in the scheduler's own convention (``nan`` when it has none)."""
        assert self.run is not None
        return self.run.sigmas[min(self.step, self.run.steps - 1)]
