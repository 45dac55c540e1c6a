"""DeepCache (arXiv:2312.00858), with the deep features extrapolated instead of reused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from accel.caches.executor import Executor
from accel.caches.predict import Axis, check_how
from accel.caches.table import Row, Table, every
from accel.clock import Clock
from accel.errors import AccelError
from accel.report import Recorder
from accel.sites import Site
from accel.target import Denoiser, Target
from accel.technique import Claim, Detach, Technique, positive


@dataclass(frozen=True)
class DeepCache(Technique):
    """Compute the deep part of the denoiser every ``interval``-th step and predict its output in between.

    The deep part is everything below a level of a UNet, or a range of a transformer's blocks. The paper reuses the last
    output; ``how="linear"`` extrapolates the last two, at the same cost and much closer to the plain picture.
    """

    name: ClassVar[str] = "deepcache"
    summary: ClassVar[str] = "the denoiser's deep part on some steps, its output extrapolated on the rest"
    source: ClassVar[str] = "arXiv:2312.00858"
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {"interval": (2, 3, 4), "warm_up": (2, 3)}

    interval: int = 2
    """Compute every ``interval``-th step after the warm-up."""
    warm_up: int = 3
    """Steps computed in full at the start."""
    how: str = "linear"
    """Predictor: ``reuse`` (the paper's), ``linear`` or ``quadratic``."""
    axis: Axis = "time"
    """What the predictor runs along: ``time``, ``sigma`` or ``logsnr``."""
    level: int = 1
    """UNets: the deep part starts at this level (0 is the full resolution)."""
    blocks: tuple[int, int] = (1, -1)
    """Transformers: the deep part is ``blocks[start:stop]``."""

    def __post_init__(self) -> None:
        positive(self, interval=self.interval, warm_up=self.warm_up, level=self.level)
        check_how(self.how, self.axis, without=("zero", "fitted"))
        if len(self.blocks) != 2 or any(type(end) is not int for end in self.blocks):
            raise AccelError(f"deepcache: blocks is a pair of whole numbers (start, stop), not {self.blocks!r}")

    @property
    def claims(self) -> frozenset[Claim]:
        return frozenset({"block_outputs"})

    def problems(self, target: Target) -> list[str]:
        return [f"deepcache: {problem}" for problem in target.lacking(self._region, "deep part to skip")]

    def table(self, sites: list[Site], steps: int) -> Table:
        """The method as a table for ``steps`` steps."""
        row = Row(every(self.interval, steps, self.warm_up), self.how, self.axis)
        return Table(steps, {site.name: row for site in sites})

    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Detach:
        regions = [self._region(denoiser) for denoiser in target.denoisers]
        return Executor(self.name, regions, lambda steps: self.table(regions, steps), clock, recorder).attach()

    def _region(self, denoiser: Denoiser) -> Site:
        return denoiser.deep(self.level, self.blocks)
