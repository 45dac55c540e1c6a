"""T-GATE (arXiv:2404.02747): the text has done its work after a while, so stop asking it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

from accel.caches.executor import Executor
from accel.caches.guidance import GuidanceExecutor, Survivor
from accel.caches.predict import check_how
from accel.caches.table import Row, Table, every
from accel.clock import Clock
from accel.errors import AccelError
from accel.report import Recorder
from accel.target import Target
from accel.technique import Claim, Detach, Technique, positive


@dataclass(frozen=True)
class TGate(Technique):
    """Freeze cross-attention after ``gate`` steps; before it, recompute self-attention only now and then.

    The paper also ends guidance at the gate. Here that is a switch of its own (``cutoff``): from the gate on only the
    surviving half of the batch is computed. The paper freezes the mean of both halves' cross-attention; here each half
    keeps its own, so that the surviving branch is what it would have been. Attention processors are never replaced:
    LoRA, IP-Adapter and any attention backend keep working.
    """

    name: ClassVar[str] = "tgate"
    summary: ClassVar[str] = "cross-attention frozen after a gate step, self-attention at intervals, guidance cut off"
    source: ClassVar[str] = "arXiv:2404.02747"
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {"gate": (0.4, 0.6), "cutoff": (None, "cond")}

    gate: int | float = 0.4
    """First frozen step: a whole number of steps, or a fraction of the run."""
    self_interval: int = 1
    """Before the gate, compute every ``self_interval``-th self-attention; 1 leaves it alone."""
    warm_up: int = 2
    """Steps at the start whose self-attention is always computed."""
    cutoff: Survivor | None = None
    """From the gate on compute only this half of a guided batch; ``None`` keeps guidance."""
    how: str = "reuse"
    """Predictor of the attention outputs: ``reuse`` (the paper's) or ``linear``."""

    def __post_init__(self) -> None:
        positive(self, self_interval=self.self_interval, warm_up=self.warm_up)
        fraction = isinstance(self.gate, float) and 0 < self.gate < 1
        if not fraction and (not isinstance(self.gate, int) or isinstance(self.gate, bool) or self.gate < 1):
            raise AccelError(f"tgate: gate is a number of steps (1, 2, …) or a fraction of the run, not {self.gate!r}")
        check_how(self.how, without=("zero", "fitted"))
        if self.cutoff not in (None, "cond", "uncond"):
            raise AccelError(f"tgate: cutoff is None, cond or uncond, not {self.cutoff!r}")

    @property
    def claims(self) -> frozenset[Claim]:
        claims: set[Claim] = {"cross_attn_outputs"}
        claims |= {"self_attn_outputs"} if self.self_interval > 1 else set()
        claims |= {"batch_halves"} if self.cutoff else set()
        return frozenset(claims)

    def problems(self, target: Target) -> list[str]:
        return [
            f"tgate: {denoiser.name} ({type(denoiser.module).__name__}) has no cross-attention to freeze: text and "
            "picture share their attention, or there is no text; deepcache works there"
            for denoiser in target.denoisers
            if not denoiser.of_kind("cross_attn")
        ]

    def table(self, steps: int) -> Table:
        """The method as a table for ``steps`` steps."""
        gate = self._gate(steps)
        rows = {"cross_attn": Row("1" * gate + "0" * (steps - gate), self.how)}
        if self.self_interval > 1:
            before = every(self.self_interval, gate, self.warm_up)
            rows["self_attn"] = Row(before + "1" * (steps - gate), self.how)
        return Table(steps, rows)

    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Detach:
        kinds = ("cross_attn", "self_attn") if self.self_interval > 1 else ("cross_attn",)
        with ExitStack() as undo:
            undo.callback(Executor(self.name, target.of_kind(*kinds), self.table, clock, recorder).attach())
            if self.cutoff:
                cut = GuidanceExecutor(f"{self.name} cutoff", self._cutoff_row, clock, recorder, self.cutoff)
                undo.callback(cut.attach())
            return undo.pop_all().close

    def _gate(self, steps: int) -> int:
        gate = round(self.gate * steps) if isinstance(self.gate, float) else self.gate
        return min(max(gate, 1), steps)

    def _cutoff_row(self, steps: int) -> Row:
        gate = self._gate(steps)
        return Row("1" * gate + "0" * (steps - gate), "zero")
