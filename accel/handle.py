"""Attaching a plan to a pipeline, and taking it off again."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from accel.clock import Clock
from accel.distilled import signs
from accel.errors import AccelError, AccelWarning, Refused
from accel.plan import Plan
from accel.report import Recorder, Report
from accel.target import Target
from accel.technique import Technique

_HANDLES = "_accel_handles"  # on the pipeline itself, so that it lives exactly as long


class Handle:
    """An attached plan. Also a context manager: leaving the block removes it."""

    def __init__(self, target: Target, plan: Plan, omitted: Sequence[str] = ()):
        self.pipe, self.plan = target.pipe, plan
        self._recorder = Recorder(type(target.pipe).__name__, str(plan), target.unread, omitted)
        self._recorder.signs = lambda: signs(target)
        self._clock = Clock(target, self._recorder)
        with ExitStack() as undo:  # closed, that is rolled back, unless every line below succeeds
            undo.callback(self._clock.attach())
            for technique in plan.techniques:
                undo.callback(technique.attach(target, self._clock, self._recorder))
            vars(self.pipe).setdefault(_HANDLES, []).append(self)
            undo.callback(self._forget)
            self._undo = undo.pop_all()

    def report(self) -> Report:
        """What happened in the last run (or in the one that is going on)."""
        return self._recorder.report

    def reset(self) -> None:
        """Forget a run that was broken off, and free what was kept for it. The next run does so by itself."""
        self._clock.reset()

    def remove(self) -> None:
        """Take the plan off: the pipeline is bit-identical to before. Calling it again does nothing."""
        self._undo.close()

    def _forget(self) -> None:
        attached = handles(self.pipe)
        attached.remove(self)
        if not attached:
            delattr(self.pipe, _HANDLES)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"<{self.plan} on {type(self.pipe).__name__}>"


def handles(pipe: Any) -> list[Handle]:
    """The handles now attached to ``pipe``, oldest first."""
    return vars(pipe).get(_HANDLES, [])


def crowded(pipe: Any) -> bool:
    """Does more than one technique stand around the denoiser calls of ``pipe``, over all of its handles?"""
    return sum(handle._clock.standing for handle in handles(pipe)) > 1


def check_plain(pipe: Any) -> None:
    """Raise `AccelError` where a plan is attached to ``pipe``."""
    if handles(pipe):
        raise AccelError("the pipeline has a plan attached, so it is not the plain one: remove() its handle first")


def accelerate(pipe: Any, plan: Any = "balanced") -> Handle:
    """Make ``pipe`` follow ``plan``, in place; returns the `Handle` that reports on it and removes it.

    ``plan`` is a preset's name, a `Plan`, a technique, a list of them, or the path of a plan file. The pipeline keeps
    its class and its call; only this object is touched, not its class and not other pipelines that share its parts.
    Raises `Refused` with every reason at once when the plan does not fit, before anything is changed. What a preset
    contains and cannot do here is left out, which the report tells; what is asked for by its own name is refused.
    """
    plan = Plan.of(plan)
    target = Target.of(pipe)
    plan, omitted = _fitting(target, plan)
    refuse, warn = _verdict(target, plan)
    if refuse:
        raise Refused(f"{plan} on {type(pipe).__name__}", refuse)
    for message in warn:
        warnings.warn(message, AccelWarning, stacklevel=2)
    return Handle(target, plan, omitted)


def check(pipe: Any, plan: Any = "balanced") -> list[str]:
    """Every reason why ``accelerate(pipe, plan)`` would be refused; an empty list when it would not.

    What it would warn about is warned about here too.
    """
    try:
        target = Target.of(pipe)
        refuse, warn = _verdict(target, _fitting(target, Plan.of(plan))[0])
    except Refused as refusal:
        return list(refusal.problems)
    for message in warn:
        warnings.warn(message, AccelWarning, stacklevel=2)
    return refuse


def _fitting(target: Target, plan: Plan) -> tuple[Plan, list[str]]:
    """``plan`` without its optional techniques that do not fit, and why they do not; all of it where none would do."""
    fitting: list[Technique] = []
    omitted: list[str] = []
    for technique in plan.techniques:
        alone = replace(plan, techniques=(technique,))
        problems = _family_problems(target, [technique]) + _claim_conflicts(target, alone) + technique.problems(target)
        if technique.name in plan.optional and problems:
            omitted += problems
        else:
            fitting.append(technique)
    if not fitting:
        return plan, []
    names = plan.optional & {technique.name for technique in fitting}
    return replace(plan, techniques=tuple(fitting), optional=names), omitted


def _verdict(target: Target, plan: Plan) -> tuple[list[str], list[str]]:
    refuse, warn = plan.fingerprint.mismatches(target) if plan.fingerprint else ([], [])
    refuse = [*refuse, *_family_problems(target, plan.techniques), *_claim_conflicts(target, plan)]
    refuse += native_caches(target) if plan.techniques else []
    for technique in plan.techniques:
        refuse += technique.problems(target)
    return refuse, [*warn, *(f"{text}; it runs without the plan" for text in target.unread)]


def _family_problems(target: Target, techniques: Sequence[Technique]) -> list[str]:
    return [
        f"{t.name} works on {' and '.join(t.families)} denoisers, {denoiser.name} is a {denoiser.family}"
        for t in techniques
        for denoiser in target.denoisers
        if denoiser.family not in t.families
    ]


def _claim_conflicts(target: Target, plan: Plan) -> list[str]:
    attached = [t for handle in handles(target.pipe) for t in handle.plan.techniques]
    everything = [*attached, *plan.techniques]
    problems = []
    for i, later in enumerate(everything[len(attached) :], start=len(attached)):
        for earlier in everything[:i]:
            if both := sorted(earlier.claims & later.claims):
                problems.append(f"{earlier.name} and {later.name} both take over {', '.join(both)}: use one of them")
    return problems


def native_caches(target: Target) -> list[str]:
    """Which denoisers have one of diffusers' own caches switched on, and the way out."""
    return [
        f"{d.name} has diffusers' own cache enabled: call {d.name}.disable_cache() first"
        for d in target.denoisers
        if getattr(d.module, "is_cache_enabled", False)
    ]
