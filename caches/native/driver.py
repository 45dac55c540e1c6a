"""Runs diffusers' cache hooks on the clock's terms.

Left on the denoiser, they act on every caller's calls, learn where in a run they are from what the pipeline happens to
tell them, and start a run with whatever the last one left. Here each is called from a hook of ours, only in calls of
this pipeline's runs; the clock says which branch, step and noise level it is; every run begins with empty states,
however the last one ended; and what they skip is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Protocol

import torch
from diffusers.hooks import ModelHook
from diffusers.hooks.hooks import CacheContext
from torch import nn

from accel.caches.native.lifting import Lifted, held, tell
from accel.calls import Call, Proceed
from accel.clock import Clock
from accel.hooks import install
from accel.report import Recorder
from accel.runs import Run, main_input
from accel.technique import Detach
from accel.tensors import Tree, height


class Rules(Protocol):
    """What differs from cache to cache."""

    name: ClassVar[str]

    @property
    def halves(self) -> bool:
        """Does it leave out the unconditional half of a batch?"""

    def declines(self, call: Call, clock: Clock) -> str | None:
        """Why this call, and the rest of its run, must be computed in full; ``None`` where the cache is sound."""

    def place(self, hooks: Sequence[Lifted], clock: Clock) -> None:
        """Set what the hooks would count wrongly by themselves."""


class Driver:
    """Runs the lifted hooks of every denoiser of a pipeline, and keeps account."""

    def __init__(self, rules: Rules, lifted: dict[str, list[Lifted]], clock: Clock, recorder: Recorder):
        self.rules, self.lifted = rules, lifted
        self.clock, self.recorder = clock, recorder
        self.everything = [each for hooks in lifted.values() for each in hooks]
        self.names = [rules.name, f"{rules.name} guidance"][: 1 + rules.halves]
        self.call: Call | None = None
        self.closed: str | None = None  # why the hooks are left out for the rest of the run
        self.newest: dict[tuple[str, str], Call] = {}
        self.cells: list[tuple[str, bool]] = []  # of the current call: was the module's output predicted?
        self.halved = False
        self.kept = 0

    def attach(self) -> Detach:
        """Hook the modules and listen to the clock; returns what undoes it."""
        inner = [each for each in self.everything if each.path]  # those of the denoiser itself are called around it
        with ExitStack() as undo:
            undo.callback(self._end)
            for each in self.everything:
                each.hook.initialize_hook(each.module)
                undo.callback(each.hook.deinitalize_hook, each.module)
            for each in inner:
                undo.callback(install(each.module, _LiftedHook(self, each), self.rules.name))
            undo.callback(self.clock.subscribe(self._begin, self._end, self._around))
            for name, sites in zip(self.names, (len(inner), 1), strict=False):
                self.recorder.matched(name, sites)
            return undo.pop_all().close

    # --- a run -------------------------------------------------------------------------------------------------

    def _begin(self, run: Run) -> None:
        self.closed = None

    def _end(self) -> None:
        self.newest.clear()
        self._reset(self.everything)

    def _reset(self, hooks: Sequence[Lifted]) -> None:
        for each in hooks:
            each.reset()
        self._account()

    def _account(self) -> None:
        """Tell the recorder how many bytes the hooks keep now."""
        now = held(self.everything)
        self.recorder.cached(now - self.kept)
        self.kept = now

    # --- a denoiser call ---------------------------------------------------------------------------------------

    def _around(self, call: Call, proceed: Proceed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
        hooks = self.lifted[call.denoiser.name]
        self._look_at(call, hooks)
        self.call, self.cells, self.halved = call, [], False
        forward = proceed if self.closed else self._entered(call, hooks, proceed)
        try:
            return forward(*args, **kwargs)
        finally:
            self.call = None
            tell(hooks, None)
            self._count()
            self._account()

    def _look_at(self, call: Call, hooks: list[Lifted]) -> None:
        """Drop what was kept for other inputs; leave the hooks out for good where they are not sound."""
        key = (call.denoiser.name, call.branch)
        earlier, self.newest[key] = self.newest.get(key), call
        if earlier and (reason := call.changed_since(earlier)):
            self._decline(reason)
            self._reset(hooks)
        if self.closed is None and (reason := self.rules.declines(call, self.clock)):
            self.closed = reason
            self._reset(self.everything)
        if self.closed:
            self._decline(self.closed)

    def _decline(self, reason: str) -> None:
        for name in self.names:
            self.recorder.decline(name, reason)

    def _entered(self, call: Call, hooks: list[Lifted], proceed: Proceed) -> Proceed:
        """``proceed`` within the hooks of the denoiser itself, after telling all of them what call this is."""
        clock = self.clock
        tell(hooks, CacheContext(call.branch, clock.step, clock.steps, clock.time, clock.sigma))
        for each in hooks:
            each.enter(call.branch)
        self.rules.place(hooks, clock)

        def rows_given(*args: Any, **kwargs: Any) -> Tree:
            rows = height(main_input(call.denoiser.module, args, kwargs))
            if rows == call.batch:
                return proceed(*args, **kwargs)
            self.halved = True
            with clock.only((call.batch - rows, call.batch)):  # diffusers keeps the second half
                return proceed(*args, **kwargs)

        forward: Proceed = rows_given
        for each in hooks:
            forward = forward if each.path else each.around(forward)
        return forward

    def _count(self) -> None:
        for site, predicted in self.cells:
            self.recorder.cell(self.rules.name, predicted, site=site)
        for name in self.names[1:]:
            self.recorder.cell(name, self.halved)

    def at_module(self, each: Lifted, forward: Proceed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
        """The output of a hooked module: through diffusers' hook in a call that is ours, plainly in any other."""
        if self.call is None:
            return forward(*args, **kwargs)
        ran = False

        def compute(*args: Any, **kwargs: Any) -> Tree:
            nonlocal ran
            ran = True
            return forward(*args, **kwargs)

        output = compute(*args, **kwargs) if self.closed else each.around(compute)(*args, **kwargs)
        self.cells.append((f"{self.call.denoiser.name}.{each.path}", not ran))
        return output


class _LiftedHook(ModelHook):
    def __init__(self, driver: Driver, lifted: Lifted):
        super().__init__()
        self.driver, self.lifted = driver, lifted

    @torch.compiler.disable(recursive=False)
    def new_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Tree:
        return self.driver.at_module(self.lifted, self.fn_ref.original_forward, args, kwargs)
