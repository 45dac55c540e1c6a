"""Static schedules of which outputs to compute (SmoothCache, arXiv:2411.10510): calibrated, learned or written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from accel.caches.executor import Executor
from accel.caches.predict import Axis, check_how
from accel.caches.schedule import calibrate, choose_cells, foreign, names
from accel.caches.schedule.curves import ErrorCurves
from accel.caches.schedule.solving import By, solve
from accel.caches.schedule.stretching import stretch
from accel.caches.schedule.work import by_kind
from accel.caches.table import Row, Table
from accel.clock import Clock
from accel.errors import AccelError
from accel.fingerprint import Fingerprint
from accel.plan import Plan
from accel.report import Recorder
from accel.target import Target
from accel.technique import Claim, Detach, Technique
from accel.watching import Prompt, watch

_EVERYTHING: frozenset[Claim] = frozenset({"self_attn_outputs", "cross_attn_outputs", "block_outputs"})
_CLAIMS: Mapping[str, frozenset[Claim]] = {
    **dict.fromkeys(("attn", "self_attn", "joint_attn"), frozenset[Claim]({"self_attn_outputs"})),
    **dict.fromkeys(("cross", "cross_attn"), frozenset[Claim]({"cross_attn_outputs"})),
    **dict.fromkeys(("mlp", "ff", "resnet", "block", "region", "sampler"), frozenset[Claim]({"block_outputs"})),
}
_READABLE = 100
"""Rows of more characters than this are summed up for people."""


@dataclass(frozen=True)
class SmoothCache(Technique):
    """Follow a schedule: for each component of the denoiser, which steps compute it; the others predict its output.

    Where the schedule comes from is free. `calibrated` measures it on a few prompts, `load` reads those of SmoothCache,
    Learning-to-Cache (arXiv:2406.01733) and HarmoniCa (arXiv:2410.01723), and ``rows`` may be written by hand. At
    another number of steps it is stretched, see `accel.caches.schedule.stretching`.
    """

    name: ClassVar[str] = "smoothcache"
    summary: ClassVar[str] = "outputs computed where a calibrated or learned schedule says so, predicted elsewhere"
    source: ClassVar[str] = "arXiv:2411.10510"

    rows: Mapping[str, str] | tuple[tuple[str, str], ...] = ()
    """What to compute, ``{"attn": "1101", "mlp": "1010"}``: a name from `accel.caches.schedule.names` and one character
    per step, ``1`` computes and ``0`` predicts. Kept as pairs."""
    how: str = "reuse"
    """Predictor: ``reuse`` (the paper's), ``linear`` or ``quadratic``."""
    axis: Axis = "time"
    """What the predictor runs along: ``time``, ``sigma`` or ``logsnr``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", _pairs(self.rows))
        check_how(self.how, self.axis, without=("zero", "fitted"))
        for name, cells in self.cells.items():
            if not isinstance(cells, str) or not cells.startswith("1") or set(cells) - {"0", "1"}:
                raise AccelError(
                    f"smoothcache: row {name} is not a text of 1 (compute) and 0 (predict) that begins with 1, when "
                    f"there is nothing to predict from yet: {cells!r}"
                )
        if len(lengths := sorted(set(map(len, self.cells.values())))) > 1:
            raise AccelError(f"smoothcache: its rows are for {' and '.join(map(str, lengths))} steps: use one number")
        if len(self.cells) < len(self.rows):
            raise AccelError("smoothcache: two of its rows have the same name: keep one of them")

    @property
    def cells(self) -> dict[str, str]:
        """The rows by name."""
        return dict(self.rows)

    # --- where schedules come from -----------------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | Path, how: str = "reuse", threshold: float = 0.1) -> SmoothCache:
        """Read a schedule or mask of another project, see `accel.caches.schedule.foreign`.

        The names in it are looked up when the plan is attached. ``threshold`` is for learned logits.
        """
        return cls(tuple(foreign.read(path, threshold).items()), how)

    @classmethod
    def fitted(
        cls,
        curves: ErrorCurves,
        *,
        alpha: float | None = None,
        target_share: float | None = None,
        how: str | None = None,
        by: By = "kind",
    ) -> Plan:
        """A plan from error curves, for one goal, see `accel.caches.schedule.solve`.

        The plan knows what it was calibrated for: another denoiser is refused, another solver warned of.
        """
        found = solve(curves, alpha=alpha, target_share=target_share, how=how, by=by)
        technique = cls(tuple(found.rows.items()), found.how, curves.axis)
        quality = {"alpha": found.alpha, "computed": found.share}
        return Plan((technique,), fingerprint=replace(curves.fingerprint, quality=quality))

    @classmethod
    def calibrated(
        cls,
        pipe: Any,
        prompts: Sequence[Prompt],
        *,
        alpha: float | None = None,
        target_share: float | None = None,
        target_db: float | None = None,
        how: str | None = None,
        by: By = "kind",
        **measuring: Any,
    ) -> Plan:
        """A plan for one goal, measured here and now.

        ``alpha`` and ``target_share`` are looked up in error curves (`fitted`), and ``measuring`` goes to
        `accel.caches.schedule.calibrate`. ``target_db`` is the distance of the final pictures to the plain ones, see
        `chosen`.
        """
        if target_db is not None:
            if alpha is not None or target_share is not None or by != "kind":
                raise AccelError("smoothcache: target_db is a goal of its own, for rows by kind: leave out the others")
            return cls.chosen(pipe, prompts, target_db=target_db, how=how or "linear", **measuring)
        curves = calibrate(pipe, prompts, **measuring)
        return cls.fitted(curves, alpha=alpha, target_share=target_share, how=how, by=by)

    @classmethod
    def chosen(
        cls,
        pipe: Any,
        prompts: Sequence[Prompt],
        *,
        target_db: float,
        how: str = "linear",
        axis: Axis = "time",
        kinds: Sequence[str] = names.KINDS,
        **measuring: Any,
    ) -> Plan:
        """The plan that skips the most work and stays ``target_db`` close to the plain pictures.

        What each cell does to the final picture is measured, see `accel.caches.schedule.choose_cells`, where
        ``measuring`` goes. ``kinds`` are the rows, such as ``ff``, or ``region`` for the stretch that DeepCache skips;
        they are weighed by their operations.
        """
        check_how(how, axis, without=("zero", "fitted"))
        target = Target.of(pipe)
        sites = names.sites_of(target, kinds)
        if not sites:
            raise AccelError(f"{type(pipe).__name__} has no {' and no '.join(kinds)} to predict: name other kinds")
        own = {"steps": 2, "seed": measuring.get("seed", 0), "call": measuring.get("call")}
        rows = by_kind(target, sites, lambda: watch(target, lambda clock: lambda: None, prompts[:1], **own))
        found = choose_cells(
            pipe, prompts, lambda cells: cls(tuple(cells.items()), how, axis), rows, target_db=target_db, how=how,
            **measuring,
        )  # fmt: skip
        computed = "".join(found.cells.values())
        quality = {"psnr": found.psnr, "computed": computed.count("1") / len(computed), "saved": found.saved}
        mark = Fingerprint.of(target, measuring.get("steps", 25), quality)
        return Plan((cls(tuple(found.cells.items()), how, axis),), fingerprint=mark)

    # --- a technique -------------------------------------------------------------------------------------------

    @property
    def claims(self) -> frozenset[Claim]:
        taken = [_CLAIMS.get(names.split(name)[0], _EVERYTHING) for name in self.cells]
        return frozenset().union(*taken) if taken else _EVERYTHING

    def problems(self, target: Target) -> list[str]:
        if not self.rows:
            ways = "SmoothCache.calibrated(pipe, prompts, target_share=0.5) or SmoothCache.load(file)"
            return [f"smoothcache: it has no schedule to follow: make one with {ways}"]
        _, problems = names.assign(list(self.cells), target)
        return [f"smoothcache: {problem}" for problem in problems]

    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Detach:
        assigned, _ = names.assign(list(self.cells), target)

        def table(steps: int) -> Table:
            rows = {name: Row(stretch(cells, steps), self.how, self.axis) for name, cells in self.cells.items()}
            return Table(steps, {site.name: rows[name] for site, name in assigned.items()})

        return Executor(self.name, list(assigned), table, clock, recorder).attach()

    # --- as text -----------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """The settings that differ from the defaults, JSON-ready: the rows as an object."""
        changed = super().settings()
        return {**changed, "rows": self.cells} if self.rows else changed

    def __str__(self) -> str:
        rows = self.cells.values()
        every = "".join(rows)
        if len(every) <= _READABLE:
            return super().__str__()
        share = every.count("1") / len(every)
        return f"{self.name}({len(rows)} rows of {len(next(iter(rows)))} steps, {share:.0%} computed, how={self.how})"


def _pairs(rows: Any) -> tuple[tuple[str, str], ...]:
    try:
        return tuple((name, cells) for name, cells in (rows.items() if isinstance(rows, Mapping) else rows))
    except (TypeError, ValueError):
        raise AccelError(f"smoothcache: rows is a mapping from names to texts of 1 and 0, not {rows!r}") from None
