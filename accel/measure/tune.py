"""`accel.tune`: the fastest plan for a pipeline that stays above a floor of quality, or plainly fewer steps."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel.errors import AccelWarning, Refused
from accel.fingerprint import Fingerprint
from accel.handle import check as problems_of
from accel.measure.arms import Arm, arms, check
from accel.measure.drawn import Drawn, Task
from accel.measure.events import Measured, Progress, Stopwatch, Watch
from accel.measure.floor import Floor
from accel.measure.intervals import Interval
from accel.measure.journal import Journal
from accel.measure.judging import Judge
from accel.measure.search import Found, search
from accel.measure.solvers import OWN, solvers
from accel.measure.space import candidates, plans, respaced
from accel.plan import Plan
from accel.target import Target

FEWEST = 16
"""Prompts that tuning needs: half of them to search on, half to judge by."""


@dataclass(frozen=True)
class Tuned:
    """What tuning found.

    Attributes:
        plan: To attach; an empty one where nothing beats fewer steps.
        steps: To ask for.
        solver: ``"own"``, or the name of the solver to use.
        baseline: The fastest plain way that keeps the floor; ``None`` where there is none.
        gain: Measured time of the baseline over the plan's.
        rejected: Why the others were not chosen.
        floor: What was asked for.
        tried: How many plans were drawn.
        candidates: How many there were.
        front: Of all that was measured on prompts not searched on, plain and with plans, what nothing else beats in
            both expected time and quality.
    """

    plan: Plan
    steps: int
    solver: str
    baseline: str | None
    gain: Interval | None
    rejected: Mapping[str, str]
    floor: Floor
    tried: int = 0
    candidates: int = 0
    front: Sequence[Measured] = ()

    def __str__(self) -> str:
        way = f"{self.steps} steps" + ("" if self.solver == OWN else f" and {self.solver}")
        tried = f"{self.tried} of {self.candidates} plans were drawn, the others were expected to fail, or time ran out"
        if self.plan.techniques and self.baseline:
            return f"{self.plan} with {way}: {self.gain} times as fast as {self.baseline} ({tried})"
        if self.plan.techniques:
            return f"{self.plan} with {way} is the only way found that keeps {self.floor} ({tried})"
        if self.baseline:
            return f"nothing beats fewer steps here: plainly {way} keep {self.floor} ({tried})"
        return f"nothing keeps {self.floor}, not even the plain pipeline: ask for less, or for more steps ({tried})"


def tune(
    pipe: Any,
    prompts: Sequence[str],
    floor: str | Mapping[str, float] | Floor = "40 dB",
    *,
    steps: int = 25,
    budget: float = 1200.0,
    judge: Judge | None = None,
    call: Mapping[str, Any] | None = None,
    seed: int = 0,
    batch: int = 8,
    progress: Progress | None = None,
    journal: Path | str | None = None,
    more: Sequence[Plan] = (),
) -> Tuned:
    """Find the fastest plan, step count and solver for ``pipe`` that keep ``floor``.

    Searched are all registered techniques with their choices, alone and in pairs, with the plan's steps and fewer, and
    every solver that fits; and, as the thing to beat, the plain pipeline's own curves. The finalists then get the
    spacing that suits them best, and as few steps as that allows. They are judged on prompts they were not searched on,
    by the lower end of a 95 % interval, and timed against the plain way in turns.

    Args:
        pipe: The pipeline; it is left as it was.
        prompts: At least `FEWEST`; more make a surer choice.
        floor: A `Floor`, its text, or ``{"psnr": 40}``.
        steps: The most steps to take.
        budget: Seconds to search for. The plain curve and the finalists are measured in any case.
        judge: Needed for a floor in points.
        call: Further arguments of the pipeline's call.
        seed: Prompt ``i`` starts from the noise of ``seed + i``.
        batch: Prompts drawn at once.
        progress: Told of everything that is measured, see `accel.measure.events.Event`. What it raises ends the search
            and comes out of here; the pipeline is as it was.
        journal: A file to keep measurements in. With the same one a search that was broken off goes on, also with
            another ``budget`` or another floor of the same kind.
        more: Further plans to try, such as those of `accel.schedulers.switching.candidates` with a helper of yours.

    Raises:
        AccelError: for too few prompts, a floor in points without a judge or with too few prompts to tell, a
            pipeline that has a plan attached, a journal of other settings, weights or machine, or a plan of ``more``
            that does not fit.
    """
    floor = Floor.asked(floor, len(prompts), FEWEST, "tune", judged=judge is not None)
    task = Task(pipe, prompts, floor, steps, judge, call or {}, seed, batch)
    kept = Journal(Path(journal) if journal else None, task.head() if journal else {})
    if problems := [text for plan in more for text in problems_of(pipe, plan)]:
        raise Refused(type(pipe).__name__, list(dict.fromkeys(problems)))
    check(pipe, prompts[0], task.call)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccelWarning)  # a plan may have nothing to predict in few steps
        return _tuned(pipe, _search(task, kept, budget, progress, more), floor)


def _search(task: Task, journal: Journal, budget: float, progress: Progress | None, more: Sequence[Plan] = ()) -> Found:
    names = solvers(task.pipe)
    curve = sorted(arms((), task.steps, names), key=lambda arm: (arm.solver != OWN, -arm.steps))
    spent = Stopwatch()
    watch = Watch(progress, spent, budget)
    ways = [way for name in names for way in candidates(_fitting(task.pipe, name, more), task.steps, [name])]
    return search(
        [arm for arm in curve if arm.steps <= task.steps],
        ways,
        Drawn(task, journal, spent, watch, ways),
        range(0, len(task.prompts), 2),  # in turns: files are often sorted
        range(1, len(task.prompts), 2),
        left=lambda: (budget - spent()) / budget if budget > 0 else 0.0,
        watch=watch,
        respaced=lambda arm: respaced(task.pipe, arm),
    )


def _fitting(pipe: Any, solver: str, more: Sequence[Plan]) -> list[Plan]:
    """What may be tried with a solver: not every one takes every schedule."""
    with Arm(1, solver).ready(pipe):
        return [*plans(pipe), *(plan for plan in more if not problems_of(pipe, plan))]


def _tuned(pipe: Any, found: Found, floor: Floor) -> Tuned:
    best, plan = found.best, found.best.plan or Plan()
    if best.plan is not None:
        quality = {"frontier_gain": found.gain.value} if found.gain and found.baseline else {}
        with Arm(best.steps, best.solver).ready(pipe):  # the plan was tuned for that solver
            mark = Fingerprint.of(Target.of(pipe), best.steps, quality)
        plan = dataclasses.replace(best.plan, promise=floor.promise, fingerprint=mark)
    return Tuned(
        plan=plan,
        steps=best.steps,
        solver=best.solver,
        baseline=found.baseline.name if found.baseline else None,
        gain=found.gain,
        rejected=found.rejected,
        floor=floor,
        tried=found.tried,
        candidates=found.candidates,
        front=found.front,
    )
