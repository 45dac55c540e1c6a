"""One run of a pipeline that tells about its steps, can be stopped in any of them, and leaves nothing behind."""

from __future__ import annotations

import inspect
import time
import warnings
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from accel.app.limits import Asked
from accel.app.streaming import Tell
from accel.commands.drawing import Request, check, draw
from accel.console import one_line
from accel.errors import AccelError, AccelWarning
from accel.measure.arms import Arm
from accel.measure.solvers import solvers
from accel.measure.timing import synchronise
from accel.pictures import to_image
from accel.plan import Plan

if TYPE_CHECKING:
    from PIL import Image

_PREVIEWS = 8
"""Previews of a run at most; they are not timed."""

_DECODED = 32
"""Edge of latents up to which a preview is decoded; of larger ones three channels are shown as they are."""


@dataclass(frozen=True)
class Step:
    """An event: ``number`` of ``steps`` steps of a phase are done."""

    phase: str
    number: int
    steps: int
    preview: Image.Image | None = None


@dataclass(frozen=True)
class Run:
    """What a run made. ``step_seconds`` are without the previews, the first with what comes before it."""

    picture: torch.Tensor
    """``(3, height, width)`` in 0 … 1."""
    seconds: float
    steps: int
    step_seconds: list[float]
    report: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    """What the libraries and the plan warned of."""


class Watched:
    """A pipeline that tells about its steps when it is called; everything else of it is its own."""

    def __init__(self, pipe: Any, phase: str, steps: int, tell: Tell) -> None:
        self._pipe, self._phase, self._steps, self._tell = pipe, phase, steps, tell
        self._every = max(1, -(-steps // _PREVIEWS))
        self.step_seconds: list[float] = []
        self.watching = 0.0
        """Seconds spent here and not in the pipeline."""

    def __call__(self, **arguments: Any) -> Any:
        if "callback_on_step_end" in inspect.signature(self._pipe.__call__).parameters:
            arguments["callback_on_step_end"] = self._step
        self._tell(Step(self._phase, 0, self._steps))
        self._since = time.perf_counter()
        return self._pipe(**arguments)

    def _step(self, pipe: Any, index: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        synchronise()
        now = time.perf_counter()
        self.step_seconds.append(now - self._since)
        done = index + 1
        shown = done % self._every == 0 and done < self._steps
        self._tell(Step(self._phase, done, self._steps, preview(pipe, tensors.get("latents")) if shown else None))
        self._since = time.perf_counter()
        self.watching += self._since - now
        return tensors

    def set_progress_bar_config(self, **_: Any) -> None:
        """No bar: the page has one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)


@torch.no_grad()
def preview(pipe: Any, latents: Any) -> Image.Image | None:
    """A rough picture of the first of ``latents`` ``(batch, channels, height, width)``; ``None`` for other shapes."""
    if not isinstance(latents, torch.Tensor) or latents.ndim != 4 or latents.shape[1] < 3:
        return None
    first = latents[:1]
    if max(first.shape[-2:]) <= _DECODED and (vae := getattr(pipe, "vae", None)) is not None:
        shift = getattr(vae.config, "shift_factor", None) or 0.0
        decoded = vae.decode((first / vae.config.scaling_factor + shift).to(vae.dtype), return_dict=False)[0]
        return to_image((decoded[0].float().cpu() / 2 + 0.5).clamp(0, 1))
    channels = first[0, :3].float().cpu()
    low, high = channels.amin((1, 2), keepdim=True), channels.amax((1, 2), keepdim=True)
    return to_image((channels - low) / (high - low).clamp(min=1e-6))


def run(pipe: Any, asked: Asked, steps: int, plan: Plan | None, phase: str, tell: Tell) -> Run:
    """Draw what was asked for in ``steps`` steps, plainly or under a plan that is attached for this run alone.

    Raises `AccelError` for what the pipeline cannot draw, and whatever ``tell`` raises.
    """
    if asked.solver not in (known := solvers(pipe)):
        raise AccelError(f"no solver {asked.solver!r} for {type(pipe).__name__}: there are {', '.join(known)}")
    request = Request(asked.prompt, steps, seed=asked.seed, guidance=asked.guidance, size=asked.size)
    watched = Watched(pipe, phase, steps, tell)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", AccelWarning)
        with Arm(steps, asked.solver, plan).ready(pipe) as handle:
            check(pipe, request)
            drawn = draw(watched, request)
        report = handle.report().to_dict() if handle else None
    return Run(
        picture=drawn.pictures[0],
        seconds=drawn.seconds - watched.watching,
        steps=steps,
        step_seconds=watched.step_seconds,
        report=report,
        notes=list(dict.fromkeys(one_line(each.message) for each in said if each.category is AccelWarning)),
    )


class PlainRuns:
    """The latest plain runs, each drawn once and kept: how a run was asked for → the run."""

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[Asked, int], Run] = OrderedDict()

    def get(self, pipe: Any, asked: Asked, steps: int, phase: str, tell: Tell) -> tuple[Run, bool]:
        """The plain run, and whether it had been drawn before."""
        key = (asked, steps)
        if reused := key in self._kept:
            self._kept.move_to_end(key)
        else:
            self._kept[key] = run(pipe, asked, steps, None, phase, tell)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return self._kept[key], reused
