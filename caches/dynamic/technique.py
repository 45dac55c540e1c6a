"""Residual caches that decide at run time: DBCache and first-block cache, TeaCache, MagCache, SeaCache."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from accel.caches.dynamic.executor import ResidualExecutor
from accel.caches.dynamic.indicators import indicator
from accel.caches.dynamic.judge import Limits
from accel.caches.dynamic.magnitudes import cells, resampled
from accel.caches.dynamic.streams import stretch
from accel.caches.predict import Axis, check_how
from accel.caches.table import Row, Table
from accel.clock import Clock
from accel.errors import AccelError
from accel.report import Recorder
from accel.sites import Site
from accel.target import Denoiser, Target
from accel.technique import Claim, Detach, Technique, positive

Kind = Literal["first_block", "tea", "sea", "mag"]


@dataclass(frozen=True)
class ResidualCache(Technique):
    """Predict what a stretch of blocks adds to its input, whenever an indicator sees little change.

    The first ``front`` and the last ``back`` blocks of a transformer always run (DBCache); of a UNet the part below
    ``level`` is the stretch. Each picture of a batch decides for itself; telling that from tensors waits for a GPU,
    once in every denoiser call that may be predicted (`mag` has decided before the run).
    """

    name: ClassVar[str] = "residual"
    summary: ClassVar[str] = "what a stretch of blocks adds, predicted whenever an indicator sees little change"
    source: ClassVar[str] = "arXiv:2411.19108, arXiv:2506.09045, arXiv:2602.18993"
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {"indicator": ("first_block", "sea"), "threshold": (0.1, 0.3)}

    indicator: Kind = "first_block"
    """What tells how much would change: ``first_block``, ``tea`` or ``sea``, see `accel.caches.dynamic.indicators`, or
    ``mag``, see `accel.caches.dynamic.magnitudes`."""
    threshold: float = 0.1
    """Predict below it; 0 computes everything. Each indicator has a scale of its own."""
    front: int = 1
    """Transformers: blocks that always run first. ``sea`` and ``mag`` need none."""
    back: int = 0
    """Transformers: blocks that always run last."""
    level: int = 1
    """UNets: the stretch is everything below this level (0 is the full resolution)."""
    warm_up: int | float = 3
    """Computed at the start: a number of steps, or a share of the run."""
    end: int = 1
    """Steps computed at the end."""
    max_consecutive: int = 2
    """Steps predicted in a row, at most."""
    how: str = "linear"
    """Predictor of the residual: ``reuse``, ``linear`` (Taylor's first order) or ``quadratic``."""
    axis: Axis = "time"
    """What the predictor runs along: ``time``, ``sigma`` or ``logsnr``."""
    ratios: tuple[float, ...] = ()
    """``mag``: what `accel.caches.dynamic.calibrate.calibrate_ratios` measured, for any number of steps."""
    coefficients: tuple[float, ...] = ()
    """``tea``: of the polynomial that a change goes through, the highest power first; none: the change itself."""
    power: float = 2.0
    """``sea``: the signal's power falls with this power of the frequency; 2 for pictures, 3 is usual for video."""

    def __post_init__(self) -> None:
        positive(self, level=self.level, max_consecutive=self.max_consecutive)
        check_how(self.how, self.axis, without=("zero", "fitted"))
        if self.indicator not in get_args(Kind):
            raise AccelError(f"residual: indicator is one of {', '.join(get_args(Kind))}, not {self.indicator!r}")
        least = 1 if self.indicator in ("first_block", "tea") else 0
        for name, smallest in {"front": least, "back": 0, "end": 0}.items():
            if type(value := getattr(self, name)) is not int or value < smallest:
                raise AccelError(f"residual: {name} is a whole number of at least {smallest} here, not {value!r}")
        share = isinstance(self.warm_up, float) and 0 < self.warm_up < 1
        if not share and (type(self.warm_up) is not int or self.warm_up < 1):
            raise AccelError(f"residual: warm_up is a number of steps or a share of the run, not {self.warm_up!r}")
        for name, number in {"threshold": self.threshold, "power": self.power}.items():
            if isinstance(number, bool) or not math.isfinite(number) or number < 0:
                raise AccelError(f"residual: {name} is a number of at least 0, not {number!r}")
        self._check_data()

    def _check_data(self) -> None:
        for name, kind in {"ratios": "mag", "coefficients": "tea"}.items():
            numbers = tuple(getattr(self, name))
            object.__setattr__(self, name, numbers)
            if numbers and self.indicator != kind:
                raise AccelError(f"residual: {name} belong to the indicator {kind}, not to {self.indicator}")
            if not all(math.isfinite(number) for number in numbers):
                raise AccelError(f"residual: {name} are numbers, not {numbers!r}")
        if self.indicator == "mag" and not self.ratios:
            raise AccelError("residual: mag needs ratios, measured by calibrate_ratios(pipe, prompts, steps)")
        if any(ratio <= 0 for ratio in self.ratios):
            raise AccelError(f"residual: ratios are positive, not {min(self.ratios)}")

    @property
    def claims(self) -> frozenset[Claim]:
        """What else keeps values inside of a stretch would keep them for rows that are predicted, too."""
        return frozenset({"block_outputs", "self_attn_outputs", "cross_attn_outputs"})

    def problems(self, target: Target) -> list[str]:
        return [f"residual: {problem}" for problem in target.lacking(self._stretch, "such stretch of blocks")]

    def table(self, sites: list[Site], steps: int) -> Table:
        """The method for ``steps`` steps; a ``0`` leaves the decision to the indicator, `mag` has decided by then."""
        warm_up = math.ceil(self.warm_up * steps) if isinstance(self.warm_up, float) else self.warm_up
        if self.indicator == "mag":
            ratios = resampled(self.ratios, steps)
            which = cells(ratios, self.threshold, self.max_consecutive, warm_up, self.end)
        else:
            which = "".join("0" if warm_up <= step < steps - self.end else "1" for step in range(steps))
        return Table(steps, {site.name: Row(which, self.how, self.axis) for site in sites})

    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Detach:
        found = {
            self._stretch(denoiser): indicator(self.indicator, denoiser, self.front, self.power)
            for denoiser in target.denoisers
        }
        accumulates = self.indicator in ("tea", "sea")
        limits = Limits(self.threshold, self.max_consecutive, accumulates, self.coefficients)
        sites = list(found)
        return ResidualExecutor(
            self.name, found, lambda steps: self.table(sites, steps), limits, clock, recorder
        ).attach()

    def _stretch(self, denoiser: Denoiser) -> Site:
        return stretch(denoiser, self.front, self.back, self.level)

    def __str__(self) -> str:
        if len(self.ratios) < 8:
            return super().__str__()
        rest = {key: value for key, value in self.settings().items() if key != "ratios"}
        inner = ", ".join(f"{key}={value}" for key, value in rest.items())
        return f"{self.name}({inner}, ratios of {len(self.ratios)} steps)"
