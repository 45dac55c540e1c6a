"""A technique of your own: a table of [step × site], here the feed-forward layers on every other step.

Settings are a frozen dataclass; `attach` gets the target (what the pipeline is made of), the clock (where the run is)
and the recorder (what to report). The executor does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

import accel
from accel.caches.executor import Executor
from accel.caches.table import Row, Table, every
from accel.clock import Clock
from accel.report import Recorder
from accel.technique import Claim, Detach


@accel.register
@dataclass(frozen=True)
class FeedForwardCache(accel.Technique):
    """Extrapolate the feed-forward layers' outputs on every other step."""

    name: ClassVar[str] = "feed-forward"
    summary: ClassVar[str] = "feed-forward layers on every other step, extrapolated in between"

    warm_up: int = 4

    @property
    def claims(self) -> frozenset[Claim]:
        return frozenset({"block_outputs"})

    def problems(self, target: accel.Target) -> list[str]:
        return [] if target.of_kind("ff") else ["feed-forward: this denoiser has no feed-forward layers"]

    def attach(self, target: accel.Target, clock: Clock, recorder: Recorder) -> Detach:
        def table(steps: int) -> Table:
            return Table(steps, {"ff": Row(every(2, steps, self.warm_up), "linear")})

        return Executor(self.name, target.of_kind("ff"), table, clock, recorder).attach()


pipe = accel.load("tiny")
with accel.accelerate(pipe, FeedForwardCache()) as handle:
    pipe("a red star", num_inference_steps=20, generator=torch.Generator().manual_seed(0))
    print(handle.report())
