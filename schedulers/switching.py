"""Where one denoiser may hand over to another: the switch of `Stages`, calibrated on a floor of quality.

A helper takes the first or the last k of n steps, so the switch lies between two of their timesteps. Quality falls as k
grows, so the largest k that keeps the floor is found by halving.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accel.errors import AccelWarning, Refused
from accel.handle import check as problems_of
from accel.measure.arms import Arm, check
from accel.measure.drawn import Drawn, Task
from accel.measure.events import Stopwatch
from accel.measure.floor import Floor
from accel.measure.intervals import Interval, mean
from accel.measure.journal import Journal
from accel.measure.judging import Judge
from accel.measure.search import Evaluator
from accel.plan import Plan
from accel.schedulers.stages import OWN, Stages

_SHARES = (0.75, 0.5, 0.25)
FEWEST = 8
"""Prompts that a calibration needs: half of them to search on, half to judge by."""


@dataclass(frozen=True)
class Switch:
    """The furthest switch that keeps a floor.

    Attributes:
        stages: To attach; ``None`` where the helper may not take a single step.
        parts: How many of the steps it takes.
        of: How many steps there are.
        margin: How far above the floor this is on prompts not searched on; ``None`` where there is nothing to judge.
    """

    stages: Stages | None
    parts: int
    of: int
    margin: Interval | None

    def __str__(self) -> str:
        if self.stages is None:
            return "the helper may take no part of the run: a single step of it falls below the floor"
        return f"{self.stages}: the helper takes {self.parts} of {self.of} steps, {self.margin} above the floor"


def taking_turns(helper: Any, high: bool, switch: float) -> Stages:
    """``helper`` for the noise above the ``switch`` (``high``), or below."""
    return Stages((helper, OWN) if high else (OWN, helper), (switch,))


def every(helper: Any, high: bool, times: Sequence[float]) -> list[Stages]:
    """The ``helper`` for 1, 2, … and all of the steps at these falling ``times``."""
    between = [(earlier + later) / 2 for earlier, later in zip(times, times[1:], strict=False)]
    switches = [*between, 0.0] if high else [*reversed(between), times[0] + 1]
    return [taking_turns(helper, high, switch) for switch in switches]


def candidates(pipe: Any, helper: Any) -> list[Plan]:
    """For `accel.tune`: the helper at either end of the run, for three, two or one quarter of it."""
    whole = pipe.scheduler.config.get("num_train_timesteps", 1000)
    return [
        Plan((taking_turns(helper, high, whole * (1 - share if high else share)),))
        for high in (True, False)
        for share in _SHARES
    ]


def calibrate(
    pipe: Any,
    helper: Any,
    prompts: Sequence[str],
    floor: str | Mapping[str, float] | Floor = "40 dB",
    *,
    high: bool = True,
    steps: int = 25,
    judge: Judge | None = None,
    call: Mapping[str, Any] | None = None,
    seed: int = 0,
    batch: int = 8,
) -> Switch:
    """Let ``helper`` take as much of the run as the floor allows.

    Args:
        pipe: The pipeline; it is left as it was.
        helper: A folder or hub id of a pipeline, or a denoiser, see `Stages`.
        prompts: At least `FEWEST`.
        floor: As for `accel.tune`.
        high: Does the helper draw the outlines, at high noise, or the details?
        steps: Of every run.
        judge: Needed for a floor in points.
        call: Further arguments of the pipeline's call.
        seed: Prompt ``i`` starts from the noise of ``seed + i``.
        batch: Prompts drawn at once.

    Raises:
        AccelError: for too few prompts, a floor in points without a judge, a pipeline that has a plan attached, or a
            helper that cannot stand in for the pipeline's denoiser.
    """
    floor = Floor.asked(floor, len(prompts), FEWEST, "calibrate a switch", judged=judge is not None)
    turns = every(helper, high, _times(pipe.scheduler, steps))
    if problems := problems_of(pipe, turns[0]):
        raise Refused(type(pipe).__name__, problems)
    check(pipe, prompts[0], call or {})
    measure = Drawn(Task(pipe, prompts, floor, steps, judge, call or {}, seed, batch), Journal(None, {}), Stopwatch())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccelWarning)  # where a pipeline shifts its noise, some take no step
        return furthest(turns, measure, steps, range(0, len(prompts), 2), range(1, len(prompts), 2))


def furthest(
    turns: Sequence[Stages], measure: Evaluator, steps: int, searched: Sequence[int], fresh: Sequence[int]
) -> Switch:
    """The last of ``turns`` that keeps the floor with confidence, on both sets of prompts; they get worse in turn."""

    def margin(parts: int, rows: Sequence[int]) -> Interval:
        return mean(measure.margins(Arm(steps, plan=Plan((turns[parts - 1],))), rows))

    kept, lost = 0, len(turns) + 1
    while lost - kept > 1:
        middle = (kept + lost) // 2
        kept, lost = (middle, lost) if margin(middle, searched).low >= 0 else (kept, middle)
    while kept and (judged := margin(kept, fresh)).low < 0:
        kept -= 1
    return Switch(turns[kept - 1], kept, len(turns), judged) if kept else Switch(None, 0, len(turns), None)


def _times(scheduler: Any, steps: int) -> list[float]:
    """The timesteps of a run; those of a solver that visits one twice once."""
    fresh = copy.deepcopy(scheduler)
    fresh.set_timesteps(steps, **({"mu": 1.0} if fresh.config.get("use_dynamic_shifting") else {}))
    return list(dict.fromkeys(float(time) for time in fresh.timesteps))
