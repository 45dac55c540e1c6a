"""The measuring instruments, on things whose answer is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from diffusers import FlowMatchEulerDiscreteScheduler

from accel.errors import AccelError
from accel.measure.flops import count
from accel.measure.frontier import Point, gain, seconds_at
from accel.measure.memory import peak
from accel.measure.quality import psnr
from accel.measure.solvers import set_up
from accel.measure.timing import interleaved, ratio

# Timing


class Machine:
    """A clock, and work that takes known time on a machine that gets slower and slower."""

    def __init__(self, noise: float) -> None:
        self.now, self.noise, self.order = 0.0, random.Random(noise), list[str]()
        self.scatter = noise

    def work(self, name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.order.append(name)
            load = 1 + self.now / 20
            self.now += seconds * load * (1 + self.scatter * self.noise.random())

        return run

    def clock(self) -> float:
        return self.now


def test_equal_arms_have_a_ratio_of_one() -> None:
    machine = Machine(noise=0.3)
    seconds = interleaved({"a": machine.work("a", 1), "b": machine.work("b", 1)}, 30, clock=machine.clock)
    found = ratio(seconds["a"], seconds["b"])
    assert found.low < 1 < found.high and found.value == pytest.approx(1, abs=0.05)


def test_a_planted_slow_down_is_found_on_a_drifting_machine() -> None:
    machine = Machine(noise=0.3)
    seconds = interleaved({"slow": machine.work("s", 1.3), "plain": machine.work("p", 1)}, 30, clock=machine.clock)
    found = ratio(seconds["slow"], seconds["plain"])
    assert 1.1 < found.low < 1.3 < found.high < 1.5
    assert seconds["plain"][-1] > 2 * seconds["plain"][0]  # the drift is larger than what was planted


def test_arms_take_turns_after_a_warm_up_that_does_not_count() -> None:
    machine = Machine(noise=0)
    arms = {name: machine.work(name, 1) for name in "abc"}
    seconds = interleaved(arms, 3, warm_up=1, clock=machine.clock)
    rounds = ["".join(machine.order[i : i + 3]) for i in range(0, 12, 3)]
    assert rounds == ["cab", "abc", "bca", "cab"]
    assert all(len(values) == 3 for values in seconds.values())


# The honest baseline


def test_frontier_gain_interpolates_the_plain_curve_and_never_extrapolates() -> None:
    curve = [Point(1.0, 30.0), Point(2.0, 40.0), Point(4.0, 44.0)]
    assert seconds_at(curve, 35.0) == pytest.approx(1.5)
    assert gain([curve], Point(1.0, 42.0)) == pytest.approx(3.0)
    assert gain([curve], Point(2.0, 35.0)) == pytest.approx(0.75)
    assert gain([curve], Point(1.0, 45.0)) is None
    assert gain([curve], Point(2.0, 29.0)) == 0.5  # even the fastest plain way is better


def test_the_best_solver_counts_and_detours_of_a_curve_do_not() -> None:
    own = [Point(1.0, 20.0), Point(2.0, 30.0), Point(4.0, 40.0)]
    better = [Point(1.0, 32.0), Point(2.0, 31.0), Point(3.0, 42.0)]  # its second point is worse and slower
    assert gain([own], Point(1.0, 30.0)) == 2.0
    assert gain([own, better], Point(1.0, 30.0)) == 1.0
    assert gain([better], Point(1.0, 37.0)) == pytest.approx(2.0)


def test_psnr_is_per_picture() -> None:
    reference = torch.zeros(3, 3, 8, 8)
    pictures = torch.stack([torch.zeros(3, 8, 8), torch.full((3, 8, 8), 0.1), torch.full((3, 8, 8), 0.01)])
    first, second, third = psnr(pictures, reference).tolist()
    assert math.isinf(first) and (second, third) == (pytest.approx(20), pytest.approx(40))
    with pytest.raises(AccelError, match="3x3x8x8 and 1x3x8x8"):
        psnr(pictures, reference[:1])


# Operations and memory


def test_operations_are_those_of_the_formulas() -> None:
    query, text = torch.randn(2, 3, 64, 32), torch.randn(2, 3, 40, 32)
    attention = count(lambda: F.scaled_dot_product_attention(query, text, text))
    assert attention.total == 2 * (2 * 3 * 64 * 40 * 32) * 2  # two products, two operations each
    layers = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3, padding=1), torch.nn.Flatten(), torch.nn.Linear(512, 5))
    found = count(lambda: layers(torch.randn(2, 4, 8, 8)))
    assert found.modules["Sequential.0"] == 2 * (2 * 8 * 64) * (4 * 9)
    assert found.modules["Sequential.2"] == 2 * (2 * 5) * 512
    assert found.total == found.modules["Sequential.0"] + found.modules["Sequential.2"]


def test_peak_memory_sees_what_is_gone_after_the_run() -> None:
    megabytes = 80
    found = peak(lambda: torch.ones(megabytes * 2**18).sum().item())
    assert found.source == "resident memory, sampled"
    assert 0.9 * megabytes < found.bytes / 2**20 < 2 * megabytes


def test_the_peak_of_a_run_that_fails_is_its_failure() -> None:
    with pytest.raises(ZeroDivisionError):
        peak(lambda: 1 / 0)


def test_a_flow_matching_pipeline_is_given_a_multistep_solver_of_its_own_noise_levels() -> None:
    """Exact velocity of a Gaussian: ``x_0 = s/sqrt((1-sigma)^2 s^2 + sigma^2)`` of what starts at sigma = 1."""
    own = FlowMatchEulerDiscreteScheduler(shift=3.0)
    start, spread = torch.linspace(-2, 2, 101).double(), 0.5

    def error(scheduler: Any) -> float:
        scheduler.set_timesteps(20)
        x = start
        for sigma, t in zip(scheduler.sigmas, scheduler.timesteps, strict=False):
            variance = ((1 - sigma) * spread) ** 2 + sigma**2
            x = scheduler.step((sigma - (1 - sigma) * spread**2) / variance * x, t, x).prev_sample
        return float((x - spread * start).abs().mean())

    assert error(set_up("dpm++", own)) < 0.3 * error(own)
