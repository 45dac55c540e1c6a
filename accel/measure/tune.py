"""`accel.tune`: the fastest plan for a pipeline that stays above a floor of quality, or plainly fewer steps."""

from __future__ import annotations

import dataclasses
import math
import re
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from accel.errors import AccelError, AccelWarning
from accel.fingerprint import Fingerprint
from accel.measure.arms import OWN, Arm, arms, draw, reference, solvers
from accel.measure.intervals import Interval
from accel.measure.judging import Judge
from accel.measure.quality import psnr
from accel.measure.search import Found, search
from accel.measure.space import candidates, plans
from accel.measure.timing import interleaved, ratio, timed
from accel.plan import Plan
from accel.target import Target

FEWEST = 8
"""Prompts that tuning needs: half of them to search on, half to judge by."""

_ROUNDS = 7


@dataclass(frozen=True)
class Floor:
    """What quality may not fall below.

    Attributes:
        kind: ``"psnr"``, mean distance to the long run in dB; or ``"facts"``, share of pictures in which every stated
            fact holds, against the long run's.
        value: In dB; or how many points (hundredths) the share may fall.
    """

    kind: str
    value: float

    @classmethod
    def of(cls, text: str) -> Floor:
        """``"40 dB"`` or ``"1 point"``; raises `AccelError` for anything else."""
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(db|points?)\s*", text, re.IGNORECASE)
        if not match:
            raise AccelError(f"a floor is a distance such as '40 dB' or a loss such as '1 point', not {text!r}")
        return cls("psnr" if match[2].lower() == "db" else "facts", float(match[1]))

    @property
    def promise(self) -> str:
        """The promise of a plan that keeps it."""
        return "same picture" if self.kind == "psnr" else "same content"

    def __str__(self) -> str:
        return f"{self.value:g} dB" if self.kind == "psnr" else f"{self.value:g} point" + "s" * (self.value != 1)


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
    """

    plan: Plan
    steps: int
    solver: str
    baseline: str | None
    gain: Interval | None
    rejected: Mapping[str, str]
    floor: Floor

    def __str__(self) -> str:
        solver = "" if self.solver == OWN else f" and {self.solver}"
        if self.gain:
            return f"{self.plan} with {self.steps} steps{solver}: {self.gain} times as fast as {self.baseline}"
        if self.baseline:
            return (
                f"nothing beats fewer steps here: the plain pipeline with {self.steps} steps{solver} keeps {self.floor}"
            )
        return f"nothing keeps {self.floor}, not even the plain pipeline: ask for less, or for more steps"


def tune(
    pipe: Any,
    prompts: Sequence[str],
    floor: str | Floor = "40 dB",
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
        floor: A `Floor`, or its text.
        steps: The most steps to take.
        budget: Seconds to search for; the verdict on the finalists comes on top.
        judge: Needed for a floor in points.
        call: Further arguments of the pipeline's call.
        seed: Prompt ``i`` starts from the noise of ``seed + i``.
        batch: Prompts drawn at once.

    Raises:
        AccelError: for too few prompts, or a floor in points without a judge.
    """
    floor = Floor.of(floor) if isinstance(floor, str) else floor
    if len(prompts) < FEWEST:
        raise AccelError(f"{len(prompts)} prompts are too few to tune on: give at least {FEWEST}")
    if floor.kind == "facts" and judge is None:
        raise AccelError("a floor in points needs a judge who knows what the prompts state: give one, or a floor in dB")
    began = time.monotonic()
    pictures = _Pictures(pipe, prompts, floor, steps, judge, call or {}, seed, batch)
    names = solvers(pipe)
    curve = sorted(arms((), steps, names), key=lambda arm: (arm.solver != OWN, -arm.steps))
    plain = [arm for arm in curve if arm.steps <= steps]
    half = len(prompts) // 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccelWarning)  # a plan may have nothing to predict in few steps
        found = search(
            plain,
            candidates(plans(pipe), steps, names),
            pictures,
            range(half),
            range(half, len(prompts)),
            left=lambda: 1 - (time.monotonic() - began) / budget,
        )
    return _tuned(pipe, found, floor)


def _tuned(pipe: Any, found: Found, floor: Floor) -> Tuned:
    best, plan = found.best, found.best.plan or Plan()
    if best.plan is not None:
        quality = {"margin": found.margin.value, "gain": found.gain.value} if found.margin and found.gain else {}
        mark = Fingerprint.of(Target.of(pipe), best.steps, quality)
        plan = dataclasses.replace(best.plan, name="tuned", promise=floor.promise, fingerprint=mark)
    baseline = found.baseline.name if found.baseline else None
    return Tuned(plan, best.steps, best.solver, baseline, found.gain, found.rejected, floor)


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
        self._truth: dict[int, torch.Tensor] = {}
        self._seconds: dict[str, float] = {}

    def margins(self, arm: Arm, rows: Sequence[int]) -> list[float]:
        """Per prompt how far the arm is above the floor."""
        missing = [row for row in rows if (arm.name, row) not in self._margins]
        for start in range(0, len(missing), self.batch):
            chunk = missing[start : start + self.batch]
            pictures, truth = self._draw(arm, chunk), self._references(chunk)
            for row, margin in zip(chunk, self._margin(pictures, truth, chunk), strict=True):
                self._margins[arm.name, row] = margin
        return [self._margins[arm.name, row] for row in rows]

    def expected(self, arm: Arm) -> float:
        """Time grows with the steps, and what techniques save multiplies; each is timed once, alone."""
        base = Arm(self.steps)
        shares = [self._once(Arm(self.steps, OWN, Plan((t,)))) for t in (arm.plan.techniques if arm.plan else ())]
        plain = self._once(base)
        return plain * arm.steps / self.steps * math.prod(share / plain for share in shares)

    def ratio(self, arm: Arm, other: Arm) -> Interval:
        """Measured in turns, on the first prompt."""
        sides = {side.name: (lambda side=side: self._draw(side, [0])) for side in (arm, other)}
        seconds = interleaved(sides, _ROUNDS)
        return ratio(seconds[other.name], seconds[arm.name])

    def _once(self, arm: Arm) -> float:
        if arm.name not in self._seconds:
            self._draw(Arm(2, arm.solver), [0])  # warm-up
            self._seconds[arm.name] = min(timed(lambda: self._draw(arm, [0])) for _ in range(2))
        return self._seconds[arm.name]

    def _draw(self, arm: Arm, rows: Sequence[int]) -> torch.Tensor:
        prompts, seeds = [self.prompts[row] for row in rows], [self.seed + row for row in rows]
        with arm.ready(self.pipe):
            return draw(self.pipe, prompts, seeds, arm.steps, self.call)

    def _references(self, rows: Sequence[int]) -> torch.Tensor:
        if missing := [row for row in rows if row not in self._truth]:
            self._truth.update(zip(missing, self._draw(reference(self.steps), missing), strict=True))
        return torch.stack([self._truth[row] for row in rows])

    def _margin(self, pictures: torch.Tensor, truth: torch.Tensor, rows: Sequence[int]) -> list[float]:
        if self.floor.kind == "psnr":
            return [min(value, 100.0) - self.floor.value for value in psnr(pictures, truth).tolist()]
        assert self.judge is not None
        right, before = (self.judge.facts(images, rows) for images in (pictures, truth))
        allowed = self.floor.value / 100
        return [all(a.values()) - all(b.values()) + allowed for a, b in zip(right, before, strict=True)]
