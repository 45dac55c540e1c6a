"""`accel.tune`: the fastest plan for a pipeline that stays above a floor of quality, or plainly fewer steps."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from accel.errors import AccelError, AccelWarning
from accel.fingerprint import Fingerprint
from accel.measure.arms import OWN, Arm, arms, check, draw, one_round, reference, solvers
from accel.measure.floor import Floor
from accel.measure.intervals import Interval
from accel.measure.judging import Judge
from accel.measure.quality import CAP, psnr
from accel.measure.search import Found, Measured, search
from accel.measure.space import candidates, plans
from accel.measure.timing import ratio
from accel.plan import Plan
from accel.target import Target

FEWEST = 16
"""Prompts that tuning needs: half of them to search on, half to judge by."""

_ROUNDS = 7


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
        tried = f"{self.tried} of {self.candidates} plans were drawn, the others expected to be too slow or out of time"
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
) -> Tuned:
    """Find the fastest plan, step count and solver for ``pipe`` that keep ``floor``.

    Searched are all registered techniques with their choices, alone and in pairs, with the plan's steps and fewer, and
    every solver that fits; and, as the thing to beat, the plain pipeline's own curves. The finalists are judged on
    prompts they were not searched on, by the lower end of a 95 % interval, and timed against the plain way in turns.

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

    Raises:
        AccelError: for too few prompts, a floor in points without a judge or with too few prompts to tell, or a
            pipeline that has a plan attached.
    """
    floor = floor if isinstance(floor, Floor) else Floor.of(floor)
    if len(prompts) < FEWEST:
        raise AccelError(f"{len(prompts)} prompts are too few to tune on: give at least {FEWEST}")
    if floor.kind == "facts" and judge is None:
        raise AccelError("a floor in points needs a judge who knows what the prompts state: give one, or a floor in dB")
    floor.check(len(prompts) // 2)
    check(pipe, prompts[0], call or {})
    began = time.monotonic()
    pictures = _Pictures(pipe, prompts, floor, steps, judge, call or {}, seed, batch)
    names = solvers(pipe)
    curve = sorted(arms((), steps, names), key=lambda arm: (arm.solver != OWN, -arm.steps))
    plain = [arm for arm in curve if arm.steps <= steps]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccelWarning)  # a plan may have nothing to predict in few steps
        found = search(
            plain,
            candidates(plans(pipe), steps, names),
            pictures,
            range(0, len(prompts), 2),  # in turns: files are often sorted
            range(1, len(prompts), 2),
            left=lambda: (began + budget - time.monotonic()) / budget if budget > 0 else 0.0,
        )
    return _tuned(pipe, found, floor)


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


class _Pictures:
    """The evaluator that draws; it keeps what it has measured."""

    def __init__(
        self,
        pipe: Any,
        prompts: Sequence[str],
        floor: Floor,
        steps: int,
        judge: Judge | None,
        call: Mapping[str, Any],
        seed: int,
        batch: int,
    ) -> None:
        self.pipe, self.prompts, self.floor, self.steps = pipe, prompts, floor, steps
        self.judge, self.call, self.seed, self.batch = judge, call, seed, batch
        self._margins: dict[tuple[str, int], float] = {}
        self._truth: dict[tuple[str, int], torch.Tensor] = {}
        self._seconds: dict[str, float] = {}

    def margins(self, arm: Arm, rows: Sequence[int]) -> list[float]:
        """Per prompt how far the arm is above the floor."""
        missing = [row for row in rows if (arm.name, row) not in self._margins]
        for start in range(0, len(missing), self.batch):
            chunk = missing[start : start + self.batch]
            pictures, truth = self._draw(arm, chunk), self._references(arm.solver, chunk)
            for row, margin in zip(chunk, self._margin(pictures, truth, chunk), strict=True):
                self._margins[arm.name, row] = margin
        return [self._margins[arm.name, row] for row in rows]

    def expected(self, arm: Arm) -> float:
        """A fixed part, and one that grows with the steps and of which techniques save their shares, timed alone."""
        short, full = self._once(Arm(2, arm.solver)), self._once(Arm(self.steps, arm.solver))
        slope = max(full - short, 0.0) / max(self.steps - 2, 1)
        fixed = max(short - 2 * slope, 0.0)
        own = self._once(Arm(self.steps))
        alone = [self._once(Arm(self.steps, OWN, Plan((t,)))) for t in (arm.plan.techniques if arm.plan else ())]
        return fixed + slope * arm.steps * math.prod(seconds / own for seconds in alone)

    def ratio(self, arm: Arm, other: Arm) -> Interval:
        """Measured in turns, on the first prompt."""
        one_round(self.pipe, (arm, other), 0, self._first)  # warm-up
        rounds = [one_round(self.pipe, (arm, other), number, self._first) for number in range(_ROUNDS)]
        return ratio([each[other.name] for each in rounds], [each[arm.name] for each in rounds])

    def _first(self, arm: Arm) -> torch.Tensor:
        return draw(self.pipe, self.prompts[:1], [self.seed], arm.steps, self.call)

    def _once(self, arm: Arm) -> float:
        if arm.name not in self._seconds:
            self._seconds[arm.name] = min(one_round(self.pipe, (arm,), 0, self._first)[arm.name] for _ in range(3))
        return self._seconds[arm.name]

    def _draw(self, arm: Arm, rows: Sequence[int]) -> torch.Tensor:
        prompts, seeds = [self.prompts[row] for row in rows], [self.seed + row for row in rows]
        with arm.ready(self.pipe):
            return draw(self.pipe, prompts, seeds, arm.steps, self.call)

    def _references(self, solver: str, rows: Sequence[int]) -> torch.Tensor:
        if missing := [row for row in rows if (solver, row) not in self._truth]:
            drawn = self._draw(reference(self.steps, solver), missing)
            self._truth.update(zip([(solver, row) for row in missing], drawn, strict=True))
        return torch.stack([self._truth[solver, row] for row in rows])

    def _margin(self, pictures: torch.Tensor, truth: torch.Tensor, rows: Sequence[int]) -> list[float]:
        if not torch.isfinite(pictures).all():
            return [-CAP] * len(rows)
        if self.floor.kind == "psnr":
            return [min(value, CAP) - self.floor.value for value in psnr(pictures, truth).tolist()]
        assert self.judge is not None
        right, before = (self.judge.facts(images, rows) for images in (pictures, truth))
        allowed = self.floor.value / 100
        return [all(a.values()) - all(b.values()) + allowed for a, b in zip(right, before, strict=True)]
