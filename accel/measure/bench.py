"""Measure plans and the plain pipeline's own curve, on the same prompts and seeds, taking turns."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from accel.errors import AccelError, AccelWarning
from accel.measure import flops, memory, stages
from accel.measure.arms import Arm, arms, check, draw, one_round, reference
from accel.measure.identity import identity
from accel.measure.journal import Item, Journal
from accel.measure.judging import Judge
from accel.measure.metrics import Metric
from accel.measure.quality import CAP, SMALLEST, ms_ssim, psnr, ssim
from accel.measure.solvers import OWN
from accel.plan import Plan

FORMAT = 1
"""Version of the journal and of the results."""

PICTURE = frozenset(("kind", "arm", "prompt", "psnr", "ssim", "ms_ssim", "side", "facts", "features"))
"""What is always kept of a picture; all else are metrics that were asked for."""

Progress = Callable[[str, int, int], None]
"""Told what is going on, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class Setup:
    """What is measured.

    Attributes:
        model: For the record.
        prompts: What is drawn; prompt ``i`` starts from the noise of ``seed + i``.
        plans: Held against the plain pipeline.
        steps: Of the plans' runs.
        solvers: Names from `accel.measure.arms`.
        rounds: Timed rounds; in each, every arm draws the first prompt once.
        batch: Prompts drawn at once where time is not taken.
        seed: Of the first prompt.
        call: Further arguments of the pipeline's call.
    """

    model: str
    prompts: Sequence[str]
    plans: Sequence[Plan]
    steps: int = 25
    solvers: Sequence[str] = (OWN,)
    rounds: int = 5
    batch: int = 8
    seed: int = 0
    call: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.prompts:
            raise AccelError("there is nothing to draw: give at least one prompt")
        if empty := [i for i, prompt in enumerate(self.prompts) if not prompt.strip()]:
            raise AccelError(f"prompt {empty[0] + 1} of {len(self.prompts)} is empty: take it out")
        if OWN not in self.solvers:
            raise AccelError(f"without the pipeline's own solver there is nothing to compare with: add {OWN!r}")
        names = [arm.name for arm in self.arms]
        if twice := {name for name in names if names.count(name) > 1}:
            raise AccelError(f"asked for twice: {', '.join(sorted(twice))}")

    @property
    def arms(self) -> list[Arm]:
        """Every way to draw, the references last."""
        return [*arms(self.plans, self.steps, self.solvers), *(reference(self.steps, name) for name in self.solvers)]

    def head(self, pipe: Any) -> Item:
        """The first line of the journal: whatever would make results incomparable."""
        plain = asdict(self) | {"plans": [plan.to_dict() for plan in self.plans]}
        del plain["batch"]
        return {"format": FORMAT, **identity(pipe), **plain}


class Bench:
    """A measurement that can be broken off and gone on with."""

    def __init__(
        self,
        pipe: Any,
        setup: Setup,
        path: Path,
        judge: Judge | None = None,
        progress: Progress | None = None,
        metrics: Sequence[Metric] = (),
    ) -> None:
        self.pipe, self.setup, self.judge, self.metrics = pipe, setup, judge, metrics
        self.head = setup.head(pipe)
        names = [metric.name for metric in metrics]
        if wrong := [name for name in names if name in PICTURE or names.count(name) > 1]:
            raise AccelError(f"no metric can be called {wrong[0]!r}: the name is taken")
        if metrics:
            self.head["metrics"] = {metric.name: metric.about for metric in metrics}
        self.journal = Journal(path, self.head)
        self._progress = progress or (lambda what, done, total: None)

    def run(self) -> list[Item]:
        """Measure what the journal lacks; returns all results."""
        for metric in self.metrics:
            metric.check(self.setup.prompts)
        check(self.pipe, self.setup.prompts[0], self.setup.call)
        with warnings.catch_warnings():
            # Short runs leave a plan nothing to predict: the table has that as "predicted 0".
            warnings.simplefilter("ignore", AccelWarning)
            self._draw_all()
            self._count_all()
            self._time_all()
        return self.journal.items

    # Quality

    def _draw_all(self) -> None:
        done = {(item["arm"], item["prompt"]) for item in self.journal.of("picture")}
        chunks = list(self._chunks())
        total = len(chunks) * len(self.setup.arms)
        for number, rows in enumerate(chunks):
            truth: dict[str, torch.Tensor] = {}
            for index, arm in enumerate(self.setup.arms):
                self._progress("drawing", number * len(self.setup.arms) + index, total)
                if wanted := [row for row in rows if (arm.name, row) not in done]:
                    if arm.solver not in truth:
                        truth[arm.solver] = self._draw(reference(self.setup.steps, arm.solver), rows)
                    self._judge(arm, wanted, rows, truth[arm.solver])

    def _chunks(self) -> Iterator[list[int]]:
        count, size = len(self.setup.prompts), self.setup.batch
        yield from (list(range(start, min(start + size, count))) for start in range(0, count, size))

    def _draw(self, arm: Arm, rows: Sequence[int]) -> torch.Tensor:
        prompts, seeds = [self.setup.prompts[row] for row in rows], [self.setup.seed + row for row in rows]
        with arm.ready(self.pipe):
            return draw(self.pipe, prompts, seeds, arm.steps, self.setup.call)

    def _judge(self, arm: Arm, wanted: Sequence[int], rows: Sequence[int], truth: torch.Tensor) -> None:
        pictures = truth if arm == reference(self.setup.steps, arm.solver) else self._draw(arm, rows)
        try:
            columns = {**_likeness(pictures, truth), **self._more(pictures, truth, rows)}
        except AccelError as error:
            raise AccelError(f"{arm.name}, prompts {rows[0] + 1} to {rows[-1] + 1}: {error}") from None
        judged = self._facts(pictures, rows)
        for i, row in enumerate(rows):
            if row in wanted:
                quality = {name: values[i] for name, values in columns.items()}
                self.journal.add({"kind": "picture", "arm": arm.name, "prompt": row, **quality, **judged[i]})

    def _more(self, pictures: torch.Tensor, truth: torch.Tensor, rows: Sequence[int]) -> dict[str, list[float]]:
        prompts = [self.setup.prompts[row] for row in rows]
        return {metric.name: _values(metric, pictures, truth, prompts) for metric in self.metrics}

    def _facts(self, pictures: torch.Tensor, rows: Sequence[int]) -> list[Item]:
        if self.judge is None:
            return [{"facts": None, "features": None}] * len(rows)
        facts, features = self.judge.facts(pictures, rows), self.judge.features(pictures).tolist()
        short = [[round(value, 4) for value in row] for row in features]
        return [{"facts": f, "features": v} for f, v in zip(facts, short, strict=True)]

    # Cost

    def _count_all(self) -> None:
        done = {item["arm"] for item in self.journal.of("cost")}
        for number, arm in enumerate(self.setup.arms):
            self._progress("counting", number, len(self.setup.arms))
            if arm.name not in done:
                self.journal.add({"kind": "cost", "arm": arm.name, **self._cost(arm)})

    def _cost(self, arm: Arm) -> Item:
        with arm.ready(self.pipe) as handle:
            # Resident memory says nothing here: what earlier pictures took is still with the allocator.
            on_gpu = self.pipe.device.type == "cuda"
            peak = memory.peak(lambda: self._first(arm), self.pipe.device).bytes if on_gpu else None
            operations = flops.count(lambda: self._first(arm)).total
            predicted = handle.report().predicted if handle else 0
            seconds = stages.split(self.pipe, lambda: self._first(arm))
            steps = [round(value, 5) for value in handle.report().step_seconds] if handle else None
        shares = {name: round(value / sum(seconds.values()), 4) for name, value in seconds.items()}
        cost = {"flops": operations, "peak_bytes": peak, "predicted": predicted}
        return {**cost, "stages": shares, "step_seconds": steps}

    # Time

    def _time_all(self) -> None:
        done, racers = len(self.journal.of("round")), self.setup.arms
        if done < self.setup.rounds:
            one_round(self.pipe, racers, 0, self._first)  # warm-up
        for number in range(done, self.setup.rounds):
            self._progress("timing", number, self.setup.rounds)
            self.journal.add({"kind": "round", "seconds": one_round(self.pipe, racers, number, self._first)})

    def _first(self, arm: Arm) -> torch.Tensor:
        return draw(self.pipe, self.setup.prompts[:1], [self.setup.seed], arm.steps, self.setup.call)


def _likeness(pictures: torch.Tensor, truth: torch.Tensor) -> dict[str, list[Any]]:
    """The distances that are always there; of MS-SSIM ``None`` where pictures are too small for it."""
    side = min(pictures.shape[-2:])
    scales = ms_ssim(pictures, truth).tolist() if side >= SMALLEST else [None] * len(pictures)
    distances = [min(value, CAP) for value in psnr(pictures, truth).tolist()]
    return {
        "psnr": distances,
        "ssim": ssim(pictures, truth).tolist(),
        "ms_ssim": scales,
        "side": [side] * len(pictures),
    }


def _values(metric: Metric, pictures: torch.Tensor, truth: torch.Tensor, prompts: Sequence[str]) -> list[float]:
    try:
        values = metric(pictures, truth, prompts)
    except Exception as error:  # anybody's code
        raise AccelError(f"{metric.name} failed ({error}); what was measured before is kept") from error
    if values.shape != (len(pictures),) or not torch.isfinite(values).all():
        raise AccelError(f"{metric.name} must be one finite number per picture, not {values}")
    return [float(value) for value in values]
