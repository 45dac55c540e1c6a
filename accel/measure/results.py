"""From a journal to a table: speed, quality and the honest baseline, each with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from accel.measure.arms import Arm, arms, reference
from accel.measure.bench import PICTURE, Setup
from accel.measure.frontier import Point, content_gain, gain
from accel.measure.intervals import Interval, Rows, mean, resampled
from accel.measure.journal import Item
from accel.measure.judging import Judge, accuracy
from accel.measure.sets import FEWEST, fid, kid
from accel.measure.timing import ratio

TOLERANCE = 0.01
"""A plan keeps the content when its attribute accuracy is at most this much below the reference's."""

_ENOUGH = 100
_RESAMPLES = 400
_OUTSIDE = 0.05
"""An interval is given where the gain is known in all but this share of the resamples."""


@dataclass(frozen=True)
class Row:
    """One arm. ``None`` stands for what is not known.

    Attributes:
        name: Of the arm.
        arm: Steps, solver and plan.
        speed_up: Of the plain pipeline with the plans' steps and its own solver over this one.
        psnr: Mean distance to the reference in dB.
        ssim: Mean similarity to the reference.
        ms_ssim: The same over several scales, where the pictures are large enough.
        side: Pixels of the pictures' shorter side.
        metrics: Means of what else was asked for, see `accel.measure.metrics`, by name.
        right: Share of pictures in which every stated fact holds.
        attributes: Attribute accuracy: mean share of a prompt's stated facts that hold.
        facts: Share of pictures in which a fact holds, by its kind.
        kid: Distance to real pictures.
        fid: Fréchet distance to real pictures, see `Measured.fid`.
        fid_floor: The same of as many other real pictures.
        gain: Frontier gain at equal PSNR.
        content_gain: The same at equal content, see `accel.measure.frontier.content_gain`.
        flops: Share of the plain pipeline's operations.
        peak_bytes: Peak memory of a run, on a GPU.
        predicted: Cells that were predicted instead of computed.
        stages: Share of a run's time by stage, see `accel.measure.stages`.
    """

    name: str
    arm: Arm
    speed_up: Interval
    psnr: Interval | None
    ssim: float
    right: Interval | None
    attributes: Interval | None
    facts: dict[str, float]
    kid: float | None
    gain: Interval | None
    content_gain: float | None
    flops: float
    peak_bytes: int | None
    predicted: int
    stages: dict[str, float] | None = None
    ms_ssim: Interval | None = None
    side: int | None = None
    metrics: dict[str, Interval] = field(default_factory=dict)
    fid: float | None = None
    fid_floor: float | None = None


class Measured:
    """The journal's numbers as arrays by arm."""

    def __init__(self, setup: Setup, items: Sequence[Item]) -> None:
        self.setup, self.arms = setup, setup.arms
        self.pictures: dict[str, list[Item]] = {arm.name: [] for arm in self.arms}
        for item in items:
            if item["kind"] == "picture":
                self.pictures[item["arm"]].append(item)
        for found in self.pictures.values():
            found.sort(key=lambda item: item["prompt"])
        first = next(iter(self.pictures[self.arms[0].name]), {})
        self.metrics = [key for key in first if key not in PICTURE]
        self.costs = {item["arm"]: item for item in items if item["kind"] == "cost"}
        rounds = [item["seconds"] for item in items if item["kind"] == "round"]
        self.seconds = {arm.name: np.array([each[arm.name] for each in rounds]) for arm in self.arms}

    def values(self, arm: Arm, key: str) -> NDArray[np.floating]:
        """A number per prompt."""
        return np.array([item[key] for item in self.pictures[arm.name]], dtype=float)

    def known(self, arm: Arm, key: str) -> list[float] | None:
        """A number per prompt, or ``None`` where it was not measured."""
        found = [item[key] for item in self.pictures[arm.name] if item.get(key) is not None]
        return found if len(found) == len(self.pictures[arm.name]) else None

    def right(self, arm: Arm) -> NDArray[np.floating] | None:
        """Per prompt whether every stated fact holds; ``None`` without a judge."""
        facts = [item["facts"] for item in self.pictures[arm.name]]
        return None if facts[0] is None else np.array([all(each.values()) for each in facts], dtype=float)

    def attributes(self, arm: Arm) -> NDArray[np.floating] | None:
        """Attribute accuracy per prompt; ``None`` without a judge."""
        facts = [item["facts"] for item in self.pictures[arm.name]]
        return None if facts[0] is None else np.array([accuracy(each) for each in facts])

    def facts(self, arm: Arm) -> dict[str, float]:
        """Share of pictures in which a kind of fact holds, of those whose prompt states one."""
        held: dict[str, list[bool]] = {}
        for item in self.pictures[arm.name]:
            for kind, holds in (item["facts"] or {}).items():
                held.setdefault(kind, []).append(holds)
        return {kind: sum(values) / len(values) for kind, values in sorted(held.items())}

    def kid(self, arm: Arm, real: torch.Tensor | None) -> float | None:
        """Distance to the features of real pictures; ``None`` without them or with too few pictures."""
        found = self.pictures[arm.name]
        if real is None or len(found) < FEWEST:
            return None
        return kid(torch.tensor([item["features"] for item in found]), real)

    def fid(self, arm: Arm | None, real: torch.Tensor | None) -> float | None:
        """Fréchet distance to real pictures; without an arm, of as many other real ones.

        Its bias depends on the number of pictures, so that one means nothing without the other. ``None`` for fewer
        pictures than features, whose covariance is singular, and for more than half of the real ones.
        """
        count = len(self.setup.prompts)
        if real is None or not real.shape[1] <= count <= len(real) // 2:
            return None
        apart = torch.zeros(len(real), dtype=torch.bool)
        apart[torch.linspace(0, len(real) - 1, count).long()] = True
        found = real[apart] if arm is None else torch.tensor([item["features"] for item in self.pictures[arm.name]])
        return fid(found, real[~apart])

    def shares(self, arm: Arm) -> NDArray[np.floating]:
        """Time of each round as a share of the plain pipeline's with the plans' steps."""
        return np.asarray(self.seconds[arm.name] / self.seconds[Arm(self.setup.steps).name])


def rows(setup: Setup, items: Sequence[Item], judge: Judge | None = None) -> list[Row]:
    """A row per arm, in the order of the arms."""
    measured, real = Measured(setup, items), judge.real() if judge else None
    floor = measured.fid(None, real)
    return [replace(_row(measured, arm, real), fid_floor=floor) for arm in measured.arms]


def document(setup: Setup, head: Mapping[str, Any], items: Sequence[Item], found: Sequence[Row]) -> dict[str, Any]:
    """Everything as JSON: the rows, and the numbers they were computed from by arm, in the order of the prompts."""
    measured = Measured(setup, items)
    return {
        **head,
        "rows": [_as_json(row) for row in found],
        "arms": {arm.name: _numbers(measured, arm) for arm in measured.arms},
    }


def _numbers(measured: Measured, arm: Arm) -> dict[str, Any]:
    right, attributes = measured.right(arm), measured.attributes(arm)
    psnr = [item["psnr"] if item["psnr"] is None else round(item["psnr"], 2) for item in measured.pictures[arm.name]]
    return {
        "psnr": psnr,
        "ssim": [round(value, 4) for value in measured.values(arm, "ssim").tolist()],
        "ms_ssim": _rounded(measured.known(arm, "ms_ssim")),
        "metrics": {name: _rounded(measured.known(arm, name)) for name in measured.metrics},
        "right": None if right is None else right.astype(int).tolist(),
        "attributes": None if attributes is None else _rounded(attributes.tolist()),
        "seconds": [round(value, 5) for value in measured.seconds[arm.name].tolist()],
        "step_seconds": measured.costs[arm.name].get("step_seconds"),
    }


def _rounded(values: Sequence[float] | None) -> list[float] | None:
    return None if values is None else [round(value, 4) for value in values]


def _as_json(row: Row) -> dict[str, Any]:
    plan = row.arm.plan.to_dict() if row.arm.plan else None
    return {**asdict(row), "arm": {"steps": row.arm.steps, "solver": row.arm.solver, "plan": plan}}


def _row(measured: Measured, arm: Arm, real: torch.Tensor | None) -> Row:
    base = Arm(measured.setup.steps).name
    right, attributes = measured.right(arm), measured.attributes(arm)
    exact = arm == reference(measured.setup.steps, arm.solver)
    return Row(
        name=arm.name,
        arm=arm,
        speed_up=ratio(measured.seconds[base].tolist(), measured.seconds[arm.name].tolist()),
        psnr=None if exact else mean(measured.values(arm, "psnr").tolist()),
        ssim=float(measured.values(arm, "ssim").mean()),
        ms_ssim=_mean(measured.known(arm, "ms_ssim")),
        side=measured.pictures[arm.name][0].get("side"),
        metrics={name: found for name in measured.metrics if (found := _mean(measured.known(arm, name)))},
        right=None if right is None else mean(right.tolist()),
        attributes=None if attributes is None else mean(attributes.tolist()),
        facts=measured.facts(arm),
        kid=measured.kid(arm, real),
        fid=measured.fid(arm, real),
        gain=_gain(measured, arm) if arm.plan else None,
        content_gain=_content_gain(measured, arm) if arm.plan else None,
        flops=measured.costs[arm.name]["flops"] / measured.costs[base]["flops"],
        peak_bytes=measured.costs[arm.name]["peak_bytes"],
        predicted=measured.costs[arm.name]["predicted"],
        stages=measured.costs[arm.name].get("stages"),
    )


def _mean(values: Sequence[float] | None) -> Interval | None:
    return None if values is None else mean(values)


def _gain(measured: Measured, plan: Arm) -> Interval | None:
    """Frontier gain over the best solver's curve, resampled over prompts and rounds together."""
    plain = [arm for arm in arms((), measured.setup.steps, measured.setup.solvers)]
    quality = {arm: measured.values(arm, "psnr") for arm in (*plain, plan)}
    shares = {arm: measured.shares(arm) for arm in (*plain, plan)}
    unknown: list[None] = []

    def point(arm: Arm, prompts: Rows, rounds: Rows) -> Point:
        return Point(float(np.median(shares[arm][rounds])), float(quality[arm][prompts].mean()))

    def statistic(prompts: Rows, rounds: Rows) -> float:
        at = partial(point, prompts=prompts, rounds=rounds)
        curves = [[at(arm) for arm in plain if arm.solver == solver] for solver in measured.setup.solvers]
        found = gain(curves, at(plan))
        if found is None:
            unknown.append(None)
        return float("nan") if found is None else found

    counts = len(measured.setup.prompts), len(measured.seconds[plan.name])
    interval = resampled(statistic, *counts, resamples=_RESAMPLES)
    known = len(unknown) <= _OUTSIDE * _RESAMPLES and not np.isnan(interval.value)
    return interval if known else None


def _content_gain(measured: Measured, plan: Arm) -> float | None:
    """``None`` also below `_ENOUGH` prompts: a few pictures would be more than the tolerance."""
    share = {arm: measured.attributes(arm) for arm in measured.arms}
    if len(measured.setup.prompts) < _ENOUGH or any(values is None for values in share.values()):
        return None
    points = {
        arm: Point(float(np.median(measured.shares(arm))), float(np.mean(values)))
        for arm, values in share.items()
        if values is not None
    }
    target = points[reference(measured.setup.steps)].quality - TOLERANCE
    return content_gain([at for arm, at in points.items() if arm.plan is None], points[plan], target)
