"""FORA (arXiv:2407.01425): attention and feed-forward outputs of a transformer at fixed intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from accel.caches.executor import Executor
from accel.caches.predict import Axis, check_how
from accel.caches.schedule.names import KINDS, layers, sites_of
from accel.caches.table import Row, Table, every
from accel.clock import Clock
from accel.report import Recorder
from accel.target import Target
from accel.technique import Claim, Detach, Technique, positive


@dataclass(frozen=True)
class Fora(Technique):
    """Compute every attention and feed-forward output on each ``interval``-th step and predict it in between.

    The simplest static cache, and the baseline of the calibrated ones: nothing is measured, all blocks are treated
    alike. Norms, modulation and what adds the outputs up still run.
    """

    name: ClassVar[str] = "fora"
    summary: ClassVar[str] = "attention and feed-forward outputs on some steps, predicted on the rest"
    source: ClassVar[str] = "arXiv:2407.01425"
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {"interval": (2, 3), "warm_up": (2,), "how": ("linear",)}

    interval: int = 2
    """Compute every ``interval``-th step after the warm-up; 1 computes them all."""
    warm_up: int = 1
    """Steps computed in full at the start; ``linear`` has something to go on after two."""
    how: str = "reuse"
    """Predictor: ``reuse`` (the paper's), ``linear`` or ``quadratic``."""
    axis: Axis = "time"
    """What the predictor runs along: ``time``, ``sigma`` or ``logsnr``."""

    def __post_init__(self) -> None:
        positive(self, interval=self.interval, warm_up=self.warm_up)
        check_how(self.how, self.axis, without=("zero", "fitted"))

    @property
    def claims(self) -> frozenset[Claim]:
        return frozenset({"self_attn_outputs", "cross_attn_outputs", "block_outputs"})

    def problems(self, target: Target) -> list[str]:
        return [
            f"fora: {denoiser.name} ({type(denoiser.module).__name__}) has no attention and no feed-forward layer"
            for denoiser in target.denoisers
            if not layers(denoiser, KINDS)
        ]

    def table(self, steps: int) -> Table:
        """The method as a table for ``steps`` steps."""
        row = Row(every(self.interval, steps, self.warm_up), self.how, self.axis)
        return Table(steps, dict.fromkeys(KINDS, row))

    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Detach:
        return Executor(self.name, sites_of(target, KINDS), self.table, clock, recorder).attach()
