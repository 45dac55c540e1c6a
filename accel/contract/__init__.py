"""The promises of an attached plan, checked on any pipeline: nothing stays behind, leaks, or is invented.

for check in run_contract(pipe, "balanced", lambda pipe, steps: pipe(..., num_inference_steps=steps).images):
    print(check)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from accel.contract import isolation, runs
from accel.contract.bench import Bench, Draw, NotChecked
from accel.errors import AccelError, AccelWarning
from accel.handle import handles
from accel.plan import Plan

_CHECKS: tuple[Callable[[Bench], Iterator[str]], ...] = (
    runs.finite,
    runs.hits,
    runs.counts,
    runs.cache_freed,
    runs.repeat,
    runs.other_steps_between,
    runs.abort_in_denoiser,
    runs.abort_between_steps,
    runs.json_round_trip,
    isolation.empty_plan,
    isolation.removal,
    isolation.removal_after_abort,
    isolation.sibling,
)


@dataclass(frozen=True)
class Check:
    """The outcome of one check."""

    name: str
    passed: bool
    detail: str
    """What was found wrong; what was checked when nothing was; or why it could not be checked."""

    def __str__(self) -> str:
        return f"{'ok  ' if self.passed else 'FAIL'} {self.name.replace('_', ' ')}: {self.detail}"


def run_contract(pipe: Any, plan: Any, draw: Draw, steps: int = 8) -> list[Check]:
    """Check every promise of ``plan`` (anything `accel.accelerate` takes) on ``pipe``; the pipeline is left as it was.

    ``draw(pipe, steps)`` runs a pipeline of that class on fixed inputs (prompt, seed, size) and returns its output as
    one tensor; it must return the same bits whenever nothing is attached. Raises `Refused` when the plan does not fit
    the pipeline, and `AccelError` when it already carries one.
    """
    if handles(pipe):
        raise AccelError(f"this {type(pipe).__name__} already carries a plan: remove it first")
    bench = Bench(pipe, Plan.of(plan), draw, steps)
    bench.attached().remove()  # refused here, before anything is drawn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccelWarning)  # what a run did not save is the `hits` check's to tell
        first = _outcome(runs.deterministic, bench)
        return [first, *(_outcome(check, bench) for check in _CHECKS)] if first.passed else [first]


def _outcome(check: Callable[[Bench], Iterator[str]], bench: Bench) -> Check:
    """Run one check. An error inside is a failure of that check and does not stop the others."""
    name = check.__name__
    try:
        problems = list(check(bench))
    except NotChecked as reason:
        return Check(name, True, f"not checked: {reason}")
    except Exception as error:
        return Check(name, False, f"raised {type(error).__name__}: {error}")
    return Check(name, not problems, "; ".join(problems) or (check.__doc__ or "").strip().splitlines()[0])


__all__ = ["Check", "Draw", "run_contract"]
