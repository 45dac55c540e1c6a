"""Checks that a plan touches nothing but its own pipeline, and nothing for good."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from accel.contract.bench import Bench, NotChecked, difference
from accel.contract.runs import broken_between_steps
from accel.contract.trace import differences, trace
from accel.plan import Plan


def empty_plan(bench: Bench) -> Iterator[str]:
    """an attached plan without techniques changes no bit"""
    with bench.attached(Plan()):
        if problem := difference(bench.draw(), bench.plain):
            yield f"the run under an empty plan {problem}"


def removal(bench: Bench) -> Iterator[str]:
    """removing the plan gives the plain bits back and leaves no trace"""
    yield from _removed(bench, lambda: bench.draw())


def removal_after_abort(bench: Bench) -> Iterator[str]:
    """so does removing it after a run that broke off"""
    yield from _removed(bench, lambda: broken_between_steps(bench, 2))


def _removed(bench: Bench, use: Any) -> Iterator[str]:
    bench.draw()  # pipelines and schedulers set attributes in their first run
    before = trace(bench.pipe)
    with bench.attached():
        use()
    yield from differences(before, trace(bench.pipe))
    if problem := difference(bench.draw(), bench.plain):
        yield f"the run after removing the plan {problem}"


def sibling(bench: Bench) -> Iterator[str]:
    """another pipeline over the same components is untouched, even while a run of this one lies broken"""
    other = second_pipeline(bench.pipe)
    wanted = bench.draw(other)
    with bench.attached() as handle:
        if problem := difference(bench.draw(other), wanted):
            yield f"the second pipeline's run {problem} while the plan is attached"
        if handle.report().steps_planned:
            yield "the second pipeline's run was counted as this one's"
        broken_between_steps(bench, 2)
        if problem := difference(bench.draw(other), wanted):
            yield f"the second pipeline's run {problem} while a run of this one lies broken"
        if problem := difference(bench.draw(), bench.fast):
            yield f"the run after the second pipeline's {problem}"


def second_pipeline(pipe: Any) -> Any:
    """A new pipeline of the same class over the same components, set up alike."""
    takes = inspect.signature(type(pipe).__init__).parameters
    settings = {k: v for k, v in dict(pipe.config).items() if k in takes and k not in pipe.components}
    try:
        other = type(pipe)(**pipe.components, **settings)
    except Exception as error:
        raise NotChecked(f"no second pipeline can be made of the same components ({error})") from None
    other.set_progress_bar_config(**getattr(pipe, "_progress_bar_config", {}))
    return other
