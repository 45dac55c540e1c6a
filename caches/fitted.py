"""Predictions with weights of their own for every cell, fitted to the final picture by `accel.caches.fitting`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from accel.caches.executor import Executor
from accel.caches.guidance import GuidanceExecutor
from accel.caches.table import Row, Table
from accel.clock import Clock
from accel.errors import AccelError
from accel.report import Recorder
from accel.sites import Site
from accel.target import Denoiser, Target
from accel.technique import Claim, Detach, Technique, positive


@dataclass(frozen=True)
class FittedCache(Technique):
    """The deep part of the denoiser and the guidance difference, each on chosen steps, predicted by fitted weights.

    It is for the model, the solver and the timesteps that it was fitted for; a run with others is computed plainly, and
    the report says so.
    """

    name: ClassVar[str] = "fitted"
    summary: ClassVar[str] = "deep part and guidance on some steps, predicted with weights fitted to the final picture"

    deep: Row | None = None
    """Cells and weights of the deep part; in JSON ``{"cells": …, "how": "fitted", "weights": …}``."""
    guidance: Row | None = None
    """Cells and weights of the guidance difference."""
    level: int = 1
    """UNets: the deep part starts at this level (0 is the full resolution)."""
    blocks: tuple[int, int] = (1, -1)
    """Transformers: the deep part is ``blocks[start:stop]``."""
    times: tuple[float, ...] = ()
    """The timesteps that it was fitted for; a run with others is computed plainly. None: any of that number."""

    def __post_init__(self) -> None:
        positive(self, level=self.level)
        for name in ("deep", "guidance"):
            object.__setattr__(self, name, _row(name, getattr(self, name)))
        lengths = {len(row.cells) for row in (self.deep, self.guidance) if row}
        lengths |= {len(self.times)} if self.times else set()
        if self.deep and self.deep.how == "zero":
            raise AccelError("fitted: the deep part cannot be predicted as zero: use another predictor")
        if len(lengths) > 1:
            raise AccelError(
                f"fitted: its rows are for {' and '.join(map(str, sorted(lengths)))} steps: use one number"
            )

    @property
    def steps(self) -> int:
        """The number of steps that it is for."""
        return next((len(row.cells) for row in (self.deep, self.guidance) if row), 0)

    @property
    def claims(self) -> frozenset[Claim]:
        claims: dict[Claim, Row | None] = {"block_outputs": self.deep, "batch_halves": self.guidance}
        return frozenset(claim for claim, row in claims.items() if row or not self.steps)

    def problems(self, target: Target) -> list[str]:
        if not self.steps:
            return ["fitted: it has no weights yet: make a plan with accel.caches.fitting.fit(pipe, prompts)"]
        problems = target.lacking(self._region, "deep part to skip") if self.deep else []
        return [f"fitted: {problem}" for problem in problems]

    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Detach:
        with ExitStack() as undo:
            if self.deep:
                regions = [self._region(denoiser) for denoiser in target.denoisers]
                rule = self._rule(self.name, self.deep, clock, recorder)
                undo.callback(Executor(self.name, regions, _table(regions, rule), clock, recorder).attach())
            if self.guidance:
                name = f"{self.name} guidance"
                rule = self._rule(name, self.guidance, clock, recorder)
                undo.callback(GuidanceExecutor(name, rule, clock, recorder).attach())
            return undo.pop_all().close

    def _rule(self, name: str, row: Row, clock: Clock, recorder: Recorder) -> Callable[[int], Row]:
        """``row`` for the runs that it was fitted for; for others one that computes everything."""

        def rule(steps: int) -> Row:
            assert clock.run is not None
            if steps != self.steps:
                recorder.decline(name, f"its weights are for {self.steps} steps, this run has {steps}")
            elif self.times and not all(map(partial(math.isclose, abs_tol=0.5), self.times, clock.run.times)):
                recorder.decline(name, "its weights are for other timesteps than this run's")
            else:
                return row
            return Row("1" * steps)

        return rule

    def _region(self, denoiser: Denoiser) -> Site:
        return denoiser.deep(self.level, self.blocks)

    def settings(self) -> dict[str, Any]:
        """The settings that differ from the defaults, JSON-ready: rows as objects."""
        rows = {name: row.to_dict() for name in ("deep", "guidance") if (row := getattr(self, name))}
        return super().settings() | rows

    def __str__(self) -> str:
        shares = [f"{name} {row.cells.count('1')}" for name in ("deep", "guidance") if (row := getattr(self, name))]
        return f"{self.name}({', '.join(shares)} of {self.steps})" if shares else self.name


def _table(regions: list[Site], rule: Callable[[int], Row]) -> Callable[[int], Table]:
    return lambda steps: Table(steps, dict.fromkeys((site.name for site in regions), rule(steps)))


def _row(name: str, given: Any) -> Row | None:
    if given is None or isinstance(given, Row):
        return given
    try:
        return Row(**given) if isinstance(given, Mapping) else Row(*given)
    except TypeError:
        raise AccelError(f"fitted: {name} is an object of cells, how and weights, not {given!r}") from None
