"""Where a helper hands over: planted qualities, and a helper that is the pipeline's own denoiser a little spoilt."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import accel
from accel.contract.trace import differences, trace
from accel.measure.arms import Arm
from accel.measure.intervals import Interval, mean
from accel.schedulers.stages import OWN, Stages
from accel.schedulers.switching import calibrate, candidates, every, furthest
from tests.families import case, run, with_scheduler
from tests.schedulers.small import small

STEPS, SEARCHED, FRESH = 20, range(0, 32, 2), range(1, 32, 2)
CALL = {"guidance_scale": 3.0, "height": 16, "width": 16}
TIMES = [999.0 - 50 * step for step in range(STEPS)]
PROMPTS = [f"{number} {colour} star" for number in ("a", "one") for colour in "red green blue white".split()]


class Planted:
    """Every part that the helper takes costs a dB; ``hidden`` more on the prompts not searched on."""

    def __init__(self, best: float, hidden: float = 0.0):
        self.best, self.hidden, self.asked = best, hidden, 0
        self.hardness = [random.Random(row).gauss(0, 0.5) for row in range(32)]

    def margins(self, arm: Arm, rows: Sequence[int]) -> list[float]:
        self.asked += 1
        assert arm.plan is not None
        (stages,) = arm.plan.techniques
        assert isinstance(stages, Stages)
        parts = [each.switches for each in every("helper", stages.models[1] == OWN, TIMES)].index(stages.switches) + 1
        return [self.best - parts + self.hardness[row] - self.hidden * (row in FRESH) for row in rows]

    def expected(self, arm: Arm) -> float:
        return 1.0

    def ratio(self, arm: Arm, other: Arm) -> Interval:
        return Interval(1.0, 1.0, 1.0)


@pytest.mark.parametrize("high", [True, False])
@pytest.mark.parametrize("best", [-3.0, 5.5, 12.2, 40.0])
def test_the_furthest_switch_is_found_by_halving(best: float, high: bool) -> None:
    turns = every("helper", high, TIMES)
    measure = Planted(best)
    found = furthest(turns, measure, STEPS, SEARCHED, FRESH)
    assert measure.asked <= 8

    def keeps(parts: int) -> bool:
        arm = Arm(STEPS, plan=accel.Plan((turns[parts - 1],)))
        return all(mean(measure.margins(arm, rows)).low >= 0 for rows in (SEARCHED, FRESH))

    assert found.parts == max((parts for parts in range(1, STEPS + 1) if keeps(parts)), default=0)
    assert found.stages == (turns[found.parts - 1] if found.parts else None)
    assert (found.margin is None) == (found.stages is None)
    assert ("no part" in str(found)) == (found.parts == 0)


def test_other_prompts_have_the_last_word() -> None:
    turns = every("helper", True, TIMES)
    easy, hard = (furthest(turns, Planted(12.2, hidden), STEPS, SEARCHED, FRESH) for hidden in (0.0, 3.0))
    assert hard.parts == easy.parts - 3 and hard.margin is not None and hard.margin.low >= 0


@pytest.mark.parametrize("high", [True, False])
def test_a_helper_takes_so_many_steps(high: bool) -> None:
    pipe = with_scheduler(case("sd").build(), "euler")
    run(case("sd"), pipe, steps=8)
    turns = every(copy.deepcopy(pipe.unet), high, pipe.scheduler.timesteps.tolist())
    assert len(turns) == 8
    for parts in (1, 3, 8):
        with accel.accelerate(pipe, turns[parts - 1]) as handle:
            run(case("sd"), pipe, steps=8)
            own, helper = "#" * (8 - parts), "=" * parts
            assert handle.report().techniques["stages"].strip == (helper + own if high else own + helper)


def test_a_helper_takes_as_much_as_it_does_well() -> None:
    """As good as the pipeline's own it takes all; spoilt it takes less, and nothing where it is hopeless."""
    pipe = with_scheduler(small(), "dpm++")
    before = trace(pipe)
    parts = []
    for spoilt in (0.0, 0.02, 5.0):
        found = calibrate(pipe, _spoilt(pipe.unet, spoilt), PROMPTS, "20 dB", steps=4, call=CALL, high=False)
        parts.append(found.parts)
        assert found.stages is None or (found.margin and found.margin.low >= 0)
    assert parts[0] == 4 >= parts[1] >= parts[2] and parts[2] < 4
    assert [line for line in differences(before, trace(pipe)) if "was added" not in line] == []


def _spoilt(network: torch.nn.Module, size: float) -> torch.nn.Module:
    other, noise = copy.deepcopy(network), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in other.parameters():
            weights += size * weights.std(correction=0) * torch.randn(weights.shape, generator=noise)
    return other


def test_candidates_are_both_ways_round() -> None:
    pipe: Any = small()
    plans = [plan.techniques[0] for plan in candidates(pipe, pipe.unet)]
    switches = [each.switches[0] for each in plans if isinstance(each, Stages)]
    assert switches == [250.0, 500.0, 750.0, 750.0, 500.0, 250.0]
    assert all(accel.check(pipe, plan) == [] for plan in plans)


def test_mistakes_are_told() -> None:
    pipe: Any = small()
    with pytest.raises(accel.AccelError, match="3 prompts are too few to calibrate a switch on: give at least 8"):
        calibrate(pipe, pipe.unet, PROMPTS[:3])
    with pytest.raises(accel.AccelError, match="needs a judge"):
        calibrate(pipe, pipe.unet, PROMPTS, "40 points")
    with pytest.raises(accel.Refused, match="they share no latents, or no prompts"):
        calibrate(pipe, case("sdxl").build().unet, PROMPTS)
