"""The evaluator of a search that draws: what it has measured is kept in a journal, and not measured again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from accel.measure.arms import Arm, draw, one_round, reference
from accel.measure.events import Stopwatch, Watch
from accel.measure.floor import Floor
from accel.measure.identity import identity
from accel.measure.intervals import Interval
from accel.measure.journal import Item, Journal
from accel.measure.judging import Judge, accuracy
from accel.measure.quality import CAP, psnr
from accel.measure.timing import ratio
from accel.plan import Plan
from accel.technique import Technique

FORMAT = 2
"""Version of the journal."""

_ROUNDS = 7


@dataclass(frozen=True)
class Task:
    """What is tuned on what: the arguments of `accel.tune`."""

    pipe: Any
    prompts: Sequence[str]
    floor: Floor
    steps: int
    judge: Judge | None
    call: Mapping[str, Any]
    seed: int
    batch: int

    def head(self) -> Item:
        """The first line of the journal: whatever would make results incomparable, which the floor's value is not."""
        return {
            "tuning": FORMAT,
            **identity(self.pipe),
            "prompts": list(self.prompts),
            "quality": self.floor.kind,
            "judge": type(self.judge).__name__,
            "steps": self.steps,
            "seed": self.seed,
            "call": dict(self.call),
        }


class Drawn:
    """Draws what the search asks for. ``ways`` are all candidates, of which the techniques will be timed alone."""

    def __init__(
        self, task: Task, journal: Journal, spent: Stopwatch, watch: Watch | None = None, ways: Sequence[Arm] = ()
    ) -> None:
        self.task, self.journal, self.spent, self.watch = task, journal, spent, watch or Watch()
        self._quality = {(item["arm"], item["prompt"]): item for item in journal.of("quality")}
        self._times = {item["arm"]: item for item in journal.of("time")}
        self._ratios = {(item["arm"], item["other"]): item for item in journal.of("ratio")}
        self._truth: dict[tuple[str, int], torch.Tensor] = {}
        self._solvers = max(len({arm.solver for arm in ways}), 1)
        by_solver = [(technique, arm.solver) for arm in ways if arm.plan for technique in arm.plan.techniques]
        self._first_solver = dict(reversed(by_solver))
        self._timed_in_all = 2 * self._solvers + len(self._first_solver)

    # What the search asks for

    def margins(self, arm: Arm, rows: Sequence[int]) -> list[float]:
        """Per prompt how far the arm is above the floor."""
        missing = [row for row in rows if (arm.name, row) not in self._quality]
        for start in range(0, len(missing), self.task.batch):
            chunk = missing[start : start + self.task.batch]
            pictures, truth = self._draw(arm, chunk), self._references(arm.solver, chunk)
            for row, value in zip(chunk, self._judged(pictures, truth, chunk), strict=True):
                self._quality[arm.name, row] = self._keep("quality", arm=arm.name, prompt=row, value=value)
        return [self._margin(self._used(self._quality[arm.name, row])["value"]) for row in rows]

    def expected(self, arm: Arm) -> float:
        """A fixed part, and one that grows with the steps and of which techniques save their shares, timed alone."""
        steps = self.task.steps
        short, full = self._once(Arm(2, arm.solver)), self._once(Arm(steps, arm.solver))
        slope = max(full - short, 0.0) / max(steps - 2, 1)
        fixed = max(short - 2 * slope, 0.0)
        shares = [self._share(technique, arm.solver) for technique in (arm.plan.techniques if arm.plan else ())]
        return fixed + slope * arm.steps * math.prod(shares)

    def ratio(self, arm: Arm, other: Arm) -> Interval:
        """Measured in turns, on the first prompt."""
        if (arm.name, other.name) not in self._ratios:
            found = asdict(self._in_turns(arm, other))
            self._ratios[arm.name, other.name] = self._keep("ratio", arm=arm.name, other=other.name, **found)
        known = self._used(self._ratios[arm.name, other.name])
        return Interval(known["value"], known["low"], known["high"])

    def _share(self, technique: Technique, solver: str) -> float:
        """What it leaves of a run's time, alone and with the first solver that takes it; ``solver`` does."""
        steps, solver = self.task.steps, self._first_solver.setdefault(technique, solver)
        return self._once(Arm(steps, solver, Plan((technique,)))) / self._once(Arm(steps, solver))

    # What is kept

    def _keep(self, kind: str, **values: Any) -> Item:
        item = {"kind": kind, **values, "spent": round(self.spent(), 2)}
        self.journal.add(item)
        return item

    def _used(self, item: Item) -> Item:
        """A search that goes on decides by the time that was left when this was measured."""
        self.spent.catch_up(item["spent"])
        return item

    # Time

    def _once(self, arm: Arm) -> float:
        if arm.name not in self._times:
            seconds = min(one_round(self.task.pipe, (arm,), 0, self._first)[arm.name] for _ in range(3))
            self._times[arm.name] = self._keep("time", arm=arm.name, seconds=seconds)
            self.watch.beside("timing", arm, len(self._times), self._timed_in_all)
        seconds = self._used(self._times[arm.name])["seconds"]
        return float(seconds)

    def _in_turns(self, arm: Arm, other: Arm) -> Interval:
        one_round(self.task.pipe, (arm, other), 0, self._first)  # warm-up
        rounds = [one_round(self.task.pipe, (arm, other), number, self._first) for number in range(_ROUNDS)]
        return ratio([each[other.name] for each in rounds], [each[arm.name] for each in rounds])

    def _first(self, arm: Arm) -> torch.Tensor:
        return draw(self.task.pipe, self.task.prompts[:1], [self.task.seed], arm.steps, self.task.call)

    # Quality

    def _draw(self, arm: Arm, rows: Sequence[int]) -> torch.Tensor:
        prompts, seeds = [self.task.prompts[row] for row in rows], [self.task.seed + row for row in rows]
        with arm.ready(self.task.pipe):
            return draw(self.task.pipe, prompts, seeds, arm.steps, self.task.call)

    def _references(self, solver: str, rows: Sequence[int]) -> torch.Tensor:
        if missing := [row for row in rows if (solver, row) not in self._truth]:
            arm = reference(self.task.steps, solver)
            self._truth.update(zip([(solver, row) for row in missing], self._draw(arm, missing), strict=True))
            self.watch.beside("long runs", arm, len(self._truth), self._solvers * len(self.task.prompts))
        return torch.stack([self._truth[solver, row] for row in rows])

    def _judged(self, pictures: torch.Tensor, truth: torch.Tensor, rows: Sequence[int]) -> list[float | None]:
        """Quality of each picture by the kind of floor; ``None`` for one that is not finite."""
        if not torch.isfinite(pictures).all():
            return [None] * len(rows)
        if self.task.floor.kind == "psnr":
            return [min(value, CAP) for value in psnr(pictures, truth).tolist()]
        assert self.task.judge is not None
        right, before = (self.task.judge.facts(images, rows) for images in (pictures, truth))
        return [accuracy(a) - accuracy(b) for a, b in zip(right, before, strict=True)]

    def _margin(self, value: float | None) -> float:
        if value is None:
            return -CAP
        floor = self.task.floor
        return value - floor.value if floor.kind == "psnr" else value + floor.value / 100
