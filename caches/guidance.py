"""Classifier-free guidance without its second half.

Guidance adds ``scale · (cond − uncond)`` to the prediction, at the price of a second denoiser evaluation. The
difference changes slowly along a run, so it is a cell like any other: computed on some steps, predicted on the rest.
Where it is predicted only one half is evaluated, and the other is made from it: ``uncond = cond − difference``. With
the predictor ``zero`` the difference is dropped, which is T-GATE's guidance cut-off (arXiv:2404.02747).

Two ways pipelines do guidance are understood: both halves in one batch, in either order, and two calls per step in the
cache contexts ``cond`` and ``uncond``, in this order. Anything else is computed in full, with the reason reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from accel.caches.past import Entry, Past
from accel.caches.predict import Axis, check_how, predict
from accel.caches.table import Row, every
from accel.calls import Call, Proceed, narrowed
from accel.clock import Clock
from accel.report import Recorder
from accel.runs import Run
from accel.target import Target
from accel.technique import Claim, Detach, Technique, positive
from accel.tensors import Tree, map_tensors, tensors

Survivor = Literal["cond", "uncond"]
_KEY = "difference"


class GuidanceExecutor:
    """Follows one row of cells for the guidance difference, see the module's text."""

    def __init__(
        self,
        technique: str,
        rule: Callable[[int], Row],
        clock: Clock,
        recorder: Recorder,
        survivor: Survivor = "cond",
    ):
        self.technique, self.rule, self.survivor = technique, rule, survivor
        self.clock, self.recorder = clock, recorder
        self.past = Past(recorder)
        self.row = Row("")
        self.places: list[float] = []  # where each step is on the row's axis
        self.newest: Call | None = None
        self.first: tuple[int, Tree] | None = None  # step and output of the `cond` call, kept for the `uncond` one

    def attach(self) -> Detach:
        """Stand around the denoisers' calls; returns what undoes it."""
        with ExitStack() as undo:
            undo.callback(self._end)
            undo.callback(self.clock.subscribe(self._begin, self._end, self._around, outermost=True))
            self.recorder.matched(self.technique, 1)
            return undo.pop_all().close

    def _begin(self, run: Run) -> None:
        self.row = self.rule(run.steps)
        self.places = run.along(self.row.axis)

    def _end(self) -> None:
        self.past.clear()
        self.row, self.newest, self.first = Row(""), None, None

    def _around(self, call: Call, proceed: Proceed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
        self._forget_if_changed(call)
        if call.branch in ("cond", "uncond"):
            return self._sequential(call, proceed, args, kwargs)
        if self.row.predicts(self.clock.step) and (problem := self._not_batched(call)):
            self.recorder.decline(self.technique, problem)
            self.recorder.cell(self.technique, predicted=False)
            return proceed(*args, **kwargs)
        return self._batched(call, proceed, args, kwargs)

    def _forget_if_changed(self, call: Call) -> None:
        """A difference for another batch, resolution, type or device is worthless, or worse: it may broadcast."""
        earlier, self.newest = self.newest, call
        if earlier and self.past.keys() and (reason := call.changed_since(earlier)):
            self.recorder.decline(self.technique, reason)
            self.past.clear()

    def _not_batched(self, call: Call) -> str | None:
        pipe = self.clock.target.pipe
        if call.lanes is None:
            return "guidance is not known before the first step has ended"
        if call.lanes != 2 or not getattr(pipe, "do_classifier_free_guidance", True):
            return "the denoiser is not called with an unconditional and a conditional half"
        if getattr(pipe, "do_perturbed_attention_guidance", False):
            return "perturbed-attention guidance orders the batch differently"
        if len(call.sample) != 1:
            return "the denoiser takes a list with one tensor for each row, which is not cut in halves"
        if call.cond_first is None and self.row.how == "zero":
            return "what the solver is given does not tell which half is the conditional one: use another predictor"
        return None

    # --- both halves in one batch ------------------------------------------------------------------------------

    def _batched(self, call: Call, proceed: Proceed, args: Any, kwargs: Any) -> Tree:
        half = call.batch // 2
        if self._can_predict():
            start = 0 if bool(call.cond_first) == (self.survivor == "cond") else half
            lane = slice(start, start + half)
            halved, named = narrowed(args, kwargs, call.batch, lane)
            with self.clock.only((start, start + half)):
                output = proceed(*halved, **named)
            self.recorder.cell(self.technique, predicted=True)
            return self._both_halves(output, first=start == 0)
        output = proceed(*args, **kwargs)
        self.recorder.cell(self.technique, predicted=False)
        splits = call.lanes in (None, 2) and call.batch % 2 == 0 and len(call.sample) == 1
        if splits and self.row.keeps(self.clock.step):
            both = next(tensors(output))
            self._keep(both[half:] - both[:half])
        return output

    def _both_halves(self, output: Tree, first: bool) -> Tree:
        """The whole batch from its first, or else its second half."""
        if self.row.how == "zero":
            return map_tensors(lambda t: torch.cat([t, t]), output)
        difference = self._difference()  # the second half minus the first
        if first:
            return map_tensors(lambda t: torch.cat([t, t + difference]), output)
        return map_tensors(lambda t: torch.cat([t - difference, t]), output)

    # --- two calls per step ------------------------------------------------------------------------------------

    def _sequential(self, call: Call, proceed: Proceed, args: Any, kwargs: Any) -> Tree:
        step = self.clock.step
        if call.branch == "cond":
            if self.first is not None and self.row.predicts(step):
                self.recorder.decline(self.technique, "there is no unconditional call")
            output = proceed(*args, **kwargs)
            self.first = (step, output)
            return output
        cond_first = self.first is not None and self.first[0] == step
        problem = self._not_sequential(cond_first) if self.row.predicts(step) else None
        if problem:
            self.recorder.decline(self.technique, problem)
        if problem is None and self._can_predict():
            output = self._from_cond()
            self.recorder.cell(self.technique, predicted=True)
        else:
            output = proceed(*args, **kwargs)
            self.recorder.cell(self.technique, predicted=False)
            if cond_first and self.row.keeps(step):
                self._keep(next(tensors(self.first)) - next(tensors(output)))
        self.first = None
        return output

    def _not_sequential(self, cond_first: bool) -> str | None:
        if not cond_first:
            return "the unconditional call comes before the conditional one"
        if self.survivor == "uncond":
            return "of two calls the conditional one comes first, so it is the one that can be kept"
        return None

    def _from_cond(self) -> Tree:
        assert self.first is not None
        if self.row.how == "zero":
            return map_tensors(torch.Tensor.clone, self.first[1])
        difference = self._difference()
        return map_tensors(lambda cond: cond - difference, self.first[1])

    # --- the difference ----------------------------------------------------------------------------------------

    def _can_predict(self) -> bool:
        if not self.row.predicts(self.clock.step):
            return False
        wanted = self.row.order(self.clock.step)
        if self.past.count(_KEY, None) >= wanted:
            return True
        self.recorder.decline(self.technique, f"fewer than {wanted} computed differences to predict from")
        return False

    def _keep(self, difference: torch.Tensor) -> None:
        entry = Entry(self.clock.step, None, difference.shape[0], difference)
        self.past.keep(_KEY, entry, self.row.depth)

    def _difference(self) -> torch.Tensor:
        past = self.past.usable(_KEY, None)
        return predict(self.row.weigh(self.clock.step, [step for step, _ in past], self.places), past)


@dataclass(frozen=True)
class GuidanceCache(Technique):
    """Evaluate the unconditional half only every ``interval``-th step and extrapolate its difference in between."""

    name: ClassVar[str] = "guidance"
    summary: ClassVar[str] = "the unconditional half of guidance on some steps, its difference extrapolated on the rest"
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {"interval": (2, 3, 4), "warm_up": (2, 3)}

    interval: int = 2
    """Compute every ``interval``-th difference after the warm-up."""
    warm_up: int = 3
    """Steps computed in full at the start."""
    how: str = "linear"
    """Predictor: ``zero``, ``reuse``, ``linear`` or ``quadratic``."""
    axis: Axis = "time"
    """What the predictor runs along: ``time``, ``sigma`` or ``logsnr``."""

    def __post_init__(self) -> None:
        positive(self, interval=self.interval, warm_up=self.warm_up)
        check_how(self.how, self.axis, without=("fitted",))

    @property
    def claims(self) -> frozenset[Claim]:
        return frozenset({"batch_halves"})

    def problems(self, target: Target) -> list[str]:
        return []

    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Detach:
        def rule(steps: int) -> Row:
            return Row(every(self.interval, steps, self.warm_up), self.how, self.axis)

        return GuidanceExecutor(self.name, rule, clock, recorder).attach()
